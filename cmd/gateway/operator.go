package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"edgegateway/control"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// operator runs the commands that are for a running gateway.
type operator struct {
	flags          *flag.FlagSet
	args           []string
	stdout, stderr io.Writer

	file string // of the config
}

const manyArguments = 10_000 // of a command that takes any number of them

// run runs a command. The exit code is that of a wrong command line, or 0.
func (o *operator) run(ctx context.Context, name string) (code int, err error) {
	o.flags.StringVar(&o.file, "c", defaultConfig, "config `file` of the gateway")
	switch name {
	case "deadletters":
		return o.deadletters(ctx)
	case "pause", "resume":
		if code := o.parse(1, 1); code != exitOK {
			return code, nil
		}
		return exitOK, o.pause(ctx, name)
	case "status":
		asJSON := o.flags.Bool("json", false, "print JSON")
		if code := o.parse(0, 0); code != exitOK {
			return code, nil
		}
		return exitOK, o.status(ctx, *asJSON)
	case "release":
		yes := o.flags.Bool("yes", false, "do it; without this the command says what would be given up")
		asJSON := o.flags.Bool("json", false, "print JSON")
		if code := o.parse(1, 2); code != exitOK {
			return code, nil
		}
		return exitOK, o.release(ctx, *yes, *asJSON)
	case "choose":
		if code := o.parse(3, 3); code != exitOK {
			return code, nil
		}
		return exitOK, o.choose(ctx)
	default:
		stream := o.flags.String("stream", "", "`name` of the stream to try; all streams of the uplink where it is missing")
		asJSON := o.flags.Bool("json", false, "print JSON, a line for each step")
		if code := o.parse(1, 1); code != exitOK {
			return code, nil
		}
		return exitOK, probe(ctx, o.file, o.flags.Arg(0), *stream, *asJSON, o.stdout)
	}
}

func (o *operator) parse(least, most int) int {
	return parseRange(o.flags, o.args, least, most, o.stderr)
}

// ask gives the gateway a command.
func (o *operator) ask(ctx context.Context, method, path string, request, answer any) error {
	dir, err := stateDir(o.file)
	if err != nil {
		return err
	}
	return askGateway(ctx, dir, method, path, request, answer)
}

func (o *operator) pause(ctx context.Context, verb string) error {
	var answer pauseAnswer
	err := o.ask(ctx, http.MethodPost, "/v1/uplinks/"+url.PathEscape(o.flags.Arg(0))+"/"+verb, nil, &answer)
	if errors.Is(err, errNotRunning) {
		return fmt.Errorf("%w (start it first; it remembers over a restart what is paused)", err)
	}
	if err != nil {
		return err
	}
	said := map[string]string{"pause": "is paused: its records wait in the log", "resume": "is not paused"}[verb]
	if !answer.Changed {
		said += " (it was so before)"
	}
	_, err = fmt.Fprintf(o.stdout, "uplink %s %s\n", o.flags.Arg(0), said)
	return err
}

func (o *operator) choose(ctx context.Context) error {
	uplinkName, q := o.flags.Arg(0), chooseRequest{o.flags.Arg(1), o.flags.Arg(2)}
	err := o.ask(ctx, http.MethodPost, "/v1/uplinks/"+url.PathEscape(uplinkName)+"/choose", q, &done{})
	said := "the uplink tries again with it now"
	if errors.Is(err, errNotRunning) {
		var c *Config
		if c, err = loadConfig(o.file); err == nil {
			err = leaveChoice(c, uplinkName, q.Stream, uplink.Choice(q.Choice))
			said = "the gateway does not run; it is followed at the next start, if there is something to choose then, and forgotten otherwise"
		}
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.stdout, "%s is chosen for uplink %s of stream %s: %s\n", q.Choice, uplinkName, q.Stream, said)
	return err
}

func (o *operator) release(ctx context.Context, yes, asJSON bool) error {
	q := releaseRequest{Stream: o.flags.Arg(1), Yes: yes}
	var answer releaseAnswer
	err := o.ask(ctx, http.MethodPost, "/v1/uplinks/"+url.PathEscape(o.flags.Arg(0))+"/release", q, &answer)
	if errors.Is(err, errNotRunning) {
		return fmt.Errorf("%w (start it: it holds the log)", err)
	}
	if err != nil {
		return err
	}
	if asJSON {
		if err := printJSON(o.stdout, answer); err != nil {
			return err
		}
		answer.Cursors = nil // they are printed
	}
	said := "would be given up"
	if yes {
		said = "given up"
	}
	for _, c := range answer.Cursors {
		fmt.Fprintf(o.stdout, "stream %s: %d records (%s) %s\n", c.Stream, c.Records, bytesText(int64(c.Bytes)), said)
		if c.Letters > 0 {
			fmt.Fprintf(o.stdout, "stream %s: %d dead letters stay (edge-gateway deadletters purge -all %s %s)\n", c.Stream, c.Letters, o.flags.Arg(0), c.Stream)
		}
	}
	if !yes {
		return errors.New("nothing was done (say -yes to give them up: they are not sent any more)")
	}
	return nil
}

// deadletters runs one of the commands about dead letters.
func (o *operator) deadletters(ctx context.Context) (code int, err error) {
	if len(o.args) == 0 {
		fmt.Fprint(o.stderr, usageOf("deadletters"))
		return exitUsage, nil
	}
	verb := o.args[0]
	o.args = o.args[1:]
	if isHelp(verb) {
		fmt.Fprint(o.stdout, usageOf("deadletters"))
		return exitHelp, nil
	}
	asJSON := o.flags.Bool("json", false, "print JSON")
	switch verb {
	case "list":
		if code := o.parse(0, 2); code != exitOK {
			return code, nil
		}
		return exitOK, o.listLetters(ctx, *asJSON)
	case "show":
		if code := o.parse(1, 1); code != exitOK {
			return code, nil
		}
		return exitOK, o.showLetter(ctx, *asJSON)
	case "resend", "purge":
		var c letterChoice
		before := ""
		o.flags.BoolVar(&c.All, "all", false, "all dead letters, or those of an uplink, or of one stream of it")
		if verb == "purge" {
			o.flags.StringVar(&before, "before", "", "only those refused before this `time`, such as 2026-11-30T12:00:00Z, or 24h for a day ago; with -all")
		}
		if code := o.parse(0, manyArguments); code != exitOK {
			return code, nil
		}
		return exitOK, o.workOnLetters(ctx, verb, &c, before, *asJSON)
	}
	fmt.Fprintf(o.stderr, "edge-gateway deadletters: there is no command %q (want list, show, resend or purge)\n", verb)
	return exitUsage, nil
}

func (o *operator) workOnLetters(ctx context.Context, verb string, c *letterChoice, before string, asJSON bool) error {
	c.IDs = o.flags.Args()
	if c.All {
		if len(c.IDs) > 2 {
			return errors.New("-all takes an uplink and a stream at the most")
		}
		c.IDs, c.Uplink, c.Stream = nil, o.flags.Arg(0), o.flags.Arg(1)
	}
	if before != "" {
		var err error
		if c.Before, err = timeBefore(before, time.Now()); err != nil {
			return err
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	var count letterCount
	err := o.ask(ctx, http.MethodPost, "/v1/deadletters/"+verb, c, &count)
	if errors.Is(err, errNotRunning) {
		return fmt.Errorf("%w (start it: it holds the log; list and show work without it)", err)
	}
	if err != nil {
		return err
	}
	if asJSON {
		if err := printJSON(o.stdout, count); err != nil {
			return err
		}
	} else {
		said := map[string]string{"resend": "given to the log to be sent again", "purge": "purged"}[verb]
		if _, err := fmt.Fprintf(o.stdout, "%d %s\n", count.Count, said); err != nil {
			return err
		}
	}
	if count.Error != "" {
		return errors.New(count.Error)
	}
	return nil
}

// timeBefore reads a point in time, or how long ago it was.
func timeBefore(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("-before %q is no time (want 2026-11-30T12:00:00Z, or 24h for a day ago)", text)
	}
	return t, nil
}

func (o *operator) listLetters(ctx context.Context, asJSON bool) error {
	uplinkName, stream := o.flags.Arg(0), o.flags.Arg(1)
	list := letterList{Letters: []letterInfo{}}
	query := url.Values{"uplink": {uplinkName}, "stream": {stream}}
	err := o.ask(ctx, http.MethodGet, "/v1/deadletters?"+query.Encode(), nil, &list)
	if errors.Is(err, errNotRunning) {
		c := letterChoice{All: true, Uplink: uplinkName, Stream: stream}
		err = o.offline(func(lane string, r *wal.Report) {
			list.Lost += r.Lost
			for i := range r.Letters {
				if c.takes(&r.Letters[i]) {
					list.Letters = append(list.Letters, newLetterInfo(lane, &r.Letters[i]))
				}
			}
		})
		list.sort()
	}
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(o.stdout, list)
	}
	if len(list.Letters) > 0 {
		t := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "ID\tREFUSED\tDRIVER\tATTEMPTS\tBYTES\tREASON")
		for _, d := range list.Letters {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n", d.ID, timeText(d.Refused), dash(d.Driver), countText(d.Attempts), d.Bytes, oneLine(d.Reason))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprint(o.stdout, control.CountOf(uint64(len(list.Letters)), "dead letter"))
	if list.Lost > 0 {
		fmt.Fprintf(o.stdout, "; %d older ones went because there were too many", list.Lost)
	}
	_, err = fmt.Fprintln(o.stdout)
	return err
}

func (o *operator) showLetter(ctx context.Context, asJSON bool) error {
	id := o.flags.Arg(0)
	c := letterChoice{IDs: []string{id}}
	if err := c.check(); err != nil {
		return err
	}
	var info letterInfo
	err := o.ask(ctx, http.MethodGet, "/v1/deadletter?"+url.Values{"id": {id}}.Encode(), nil, &info)
	if errors.Is(err, errNotRunning) {
		gateway := ""
		if c, _ := decodeConfig(o.file); c != nil { // it was read before
			gateway = c.Gateway.ID
		}
		err = o.offline(func(lane string, r *wal.Report) {
			for i := range r.Letters {
				if c.takes(&r.Letters[i]) {
					info = newLetterInfo(lane, &r.Letters[i]).whole(gateway, r.Epoch, &r.Letters[i])
				}
			}
		})
		if err == nil && info.ID == "" {
			err = noLetter(id)
		}
	}
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(o.stdout, info)
	}
	fmt.Fprintf(o.stdout, "id        %s\nstored    %s\nrefused   %s\ndriver    %s\nattempts  %s\nlane      %s\nbytes     %d\nreason    %s\n",
		info.ID, timeText(info.Time), timeText(info.Refused), dash(info.Driver), countText(info.Attempts), info.Lane, info.Bytes, info.Reason)
	if info.Message == nil {
		_, err = fmt.Fprintf(o.stdout, "stored as %q (it cannot be decoded)\n", info.Base64)
		return err
	}
	_, err = fmt.Fprintf(o.stdout, "%s\n", info.Message)
	return err
}

// offline reads the logs of a gateway that does not run, without changing them.
func (o *operator) offline(lane func(name string, r *wal.Report)) error {
	dir, err := stateDir(o.file)
	if err != nil {
		return err
	}
	reports, err := inspectLanes(dir)
	for i := range reports {
		lane(laneName(&reports[i]), &reports[i])
	}
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// countText writes a number that may not be known.
func countText(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
