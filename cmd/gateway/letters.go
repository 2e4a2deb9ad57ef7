package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// letterInfo is a dead letter as the commands show it.
type letterInfo struct {
	ID       string          `json:"id"`
	Uplink   string          `json:"uplink"`
	Stream   string          `json:"stream"`
	Seq      uint64          `json:"seq"`
	Lane     string          `json:"lane"`
	Driver   string          `json:"driver,omitempty"`
	Time     time.Time       `json:"time"`
	Refused  time.Time       `json:"refused"`
	Reason   string          `json:"reason"`
	Attempts int             `json:"attempts"`
	Bytes    int             `json:"bytes"`
	Message  json.RawMessage `json:"message,omitempty"` // of a single one: what the far side would have got
	Base64   []byte          `json:"base64,omitempty"`  // where it cannot be decoded: as it is stored
}

// letterName is the name of a dead letter for people: no two of a gateway have the same.
func letterName(d *wal.DeadLetter) string {
	return d.Uplink + "/" + d.Stream + "/" + strconv.FormatUint(d.Seq, 10)
}

func newLetterInfo(lane string, d *wal.DeadLetter) letterInfo {
	return letterInfo{
		ID: letterName(d), Uplink: d.Uplink, Stream: d.Stream, Seq: d.Seq, Lane: lane,
		Time: d.Time, Refused: d.Refused, Reason: d.Reason, Bytes: len(d.Data),
		Driver: d.Driver, Attempts: d.Attempts,
	}
}

// whole adds what is in the letter.
func (i letterInfo) whole(gateway string, epoch uint64, d *wal.DeadLetter) letterInfo {
	m, err := pipeline.Decode(d.Data)
	if err != nil {
		i.Base64 = d.Data
		return i
	}
	i.Message = pipeline.AppendJSON(nil, pipeline.RecordID{Gateway: gateway, Stream: d.Stream, Epoch: epoch, Seq: d.Seq}, &m)
	return i
}

// letterChoice says which dead letters a command is about.
type letterChoice struct {
	IDs    []string  `json:"ids,omitempty"`
	All    bool      `json:"all,omitempty"` // of those of Uplink and Stream; empty is any
	Uplink string    `json:"uplink,omitempty"`
	Stream string    `json:"stream,omitempty"`
	Before time.Time `json:"before,omitzero"` // refused before; zero is any
}

// check refuses what would choose more or less than was meant.
func (c *letterChoice) check() error {
	switch {
	case c.All && len(c.IDs) > 0:
		return errors.New("both -all and names of dead letters (want one of them)")
	case !c.All && len(c.IDs) == 0:
		return errors.New("which dead letters? name them as `deadletters list` shows them, or say -all")
	case !c.All && !c.Before.IsZero():
		return errors.New("-before goes with -all")
	}
	for _, id := range c.IDs {
		if parts := strings.Split(id, "/"); len(parts) != 3 {
			return fmt.Errorf("%q names no dead letter (want UPLINK/STREAM/SEQUENCE, as `deadletters list` shows it)", id)
		}
	}
	return nil
}

// takes tells whether a dead letter is among the chosen. A stream takes those of it that were sent again and refused again.
func (c *letterChoice) takes(d *wal.DeadLetter) bool {
	if len(c.IDs) > 0 {
		return slices.Contains(c.IDs, letterName(d))
	}
	return (c.Uplink == "" || c.Uplink == d.Uplink) &&
		(c.Stream == "" || c.Stream == d.Stream || c.Stream == baseStream(d.Stream)) &&
		(c.Before.IsZero() || d.Refused.Before(c.Before))
}

// missing returns the named ones that are not among the found.
func (c *letterChoice) missing(found []wal.DeadLetter) []string {
	var list []string
	for _, id := range c.IDs {
		if !slices.ContainsFunc(found, func(d wal.DeadLetter) bool { return letterName(&d) == id }) {
			list = append(list, id)
		}
	}
	return list
}

// lettersOf returns the chosen dead letters of each open lane.
func (g *gateway) lettersOf(c *letterChoice) map[*laneRun][]wal.DeadLetter {
	found := map[*laneRun][]wal.DeadLetter{}
	for _, l := range g.lanes {
		log, _ := l.opened()
		if log == nil {
			continue
		}
		log.DeadLetters(func(d wal.DeadLetter) bool {
			if c.takes(&d) {
				found[l] = append(found[l], d)
			}
			return true
		})
	}
	return found
}

// letterList is the answer to list.
type letterList struct {
	Letters []letterInfo `json:"letters"`
	Lost    uint64       `json:"lost"` // that went because there were too many, since the logs began
}

func (g *gateway) listLetters(uplinkName, stream string) letterList {
	list := letterList{Letters: []letterInfo{}}
	for l, letters := range g.lettersOf(&letterChoice{All: true, Uplink: uplinkName, Stream: stream}) {
		for i := range letters {
			list.Letters = append(list.Letters, g.driverOf(newLetterInfo(l.name, &letters[i])))
		}
	}
	for _, l := range g.lanes {
		if log, _ := l.opened(); log != nil {
			list.Lost += log.Stats().DeadLettersLost
		}
	}
	list.sort()
	return list
}

func (l *letterList) sort() {
	slices.SortFunc(l.Letters, func(a, b letterInfo) int { return cmp.Or(a.Refused.Compare(b.Refused), strings.Compare(a.ID, b.ID)) })
}

// driverOf fills in the driver as the config has it now, where the letter does not know it.
func (g *gateway) driverOf(i letterInfo) letterInfo {
	if component, ok := g.config.Uplinks[i.Uplink]; ok && i.Driver == "" {
		i.Driver = component.Driver
	}
	return i
}

func (g *gateway) showLetter(id string) (letterInfo, error) {
	c := letterChoice{IDs: []string{id}}
	if err := c.check(); err != nil {
		return letterInfo{}, err
	}
	for l, letters := range g.lettersOf(&c) {
		if log, _ := l.opened(); log != nil {
			return g.driverOf(newLetterInfo(l.name, &letters[0])).whole(g.config.Gateway.ID, log.Epoch(), &letters[0]), nil
		}
	}
	return letterInfo{}, noLetter(id)
}

func noLetter(ids ...string) error {
	return fmt.Errorf("there is no dead letter %s (edge-gateway deadletters list shows those there are)", strings.Join(ids, ", "))
}

// letterCount is the answer to resend and purge.
type letterCount struct {
	Count int    `json:"count"`
	Error string `json:"error,omitempty"` // what kept the others from it
}

// resendLetters sends the chosen ones again. One at a time works on them, so that two commands do not double one.
func (g *gateway) resendLetters(ctx context.Context, c *letterChoice) (letterCount, error) {
	return g.eachLane(c, func(l *laneRun, letters []wal.DeadLetter) (n int, err error) {
		byUplink := map[[2]string][]wal.DeadLetter{}
		for _, d := range letters {
			key := [2]string{d.Uplink, baseStream(d.Stream)}
			byUplink[key] = append(byUplink[key], d)
		}
		for _, some := range byUplink {
			sent, failed := g.resend(ctx, l, some)
			n, err = n+sent, errors.Join(err, failed)
		}
		return n, err
	})
}

func (g *gateway) purgeLetters(ctx context.Context, c *letterChoice) (letterCount, error) {
	return g.eachLane(c, func(l *laneRun, letters []wal.DeadLetter) (int, error) {
		log, err := l.opened()
		if log == nil {
			return 0, err
		}
		numbers := make([]uint64, 0, len(letters))
		var stay error
		for i := range letters {
			if err := g.isPassed(ctx, &letters[i]); err != nil {
				stay = cmp.Or(stay, err) // one says it for all
				continue
			}
			numbers = append(numbers, letters[i].Number)
		}
		n, err := log.Purge(numbers)
		return n, errors.Join(err, stay)
	})
}

func (g *gateway) eachLane(c *letterChoice, do func(*laneRun, []wal.DeadLetter) (int, error)) (letterCount, error) {
	if err := c.check(); err != nil {
		return letterCount{}, err
	}
	g.lettersMu.Lock()
	defer g.lettersMu.Unlock()
	found := g.lettersOf(c)
	if len(found) == 0 && c.All {
		return letterCount{}, g.isThere(c.Uplink, c.Stream)
	}
	var all []wal.DeadLetter
	for _, letters := range found {
		all = append(all, letters...)
	}
	if missing := c.missing(all); len(missing) > 0 {
		return letterCount{}, noLetter(missing...)
	}
	var count letterCount
	var failed error
	for l, letters := range found {
		n, err := do(l, letters)
		count.Count += n
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		count.Error = failed.Error()
	}
	return count, nil
}
