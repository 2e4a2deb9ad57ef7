package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"edgegateway/control/config"
	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/webui"
)

// Config is the config file.
type Config struct {
	Gateway Gateway                     `yaml:"gateway" doc:"What concerns the gateway as a whole." required:"true"`
	Page    webui.Config                `yaml:"page" doc:"The local web page."`
	Lanes   map[string]Lane             `yaml:"lanes" doc:"Log directories, by name. The lane \"default\" is there without being mentioned." keys:"name"`
	Devices map[string]config.Component `yaml:"devices" doc:"What produces messages, by name." drivers:"device" keys:"name"`
	Streams map[string]Stream           `yaml:"streams" doc:"Which messages go through which processors and lane to which uplinks, by name." keys:"name"`
	Uplinks map[string]config.Component `yaml:"uplinks" doc:"Far brokers, by name." drivers:"uplink" keys:"name"`
}

// Gateway is the section of the gateway as a whole.
type Gateway struct {
	ID       string `yaml:"id" doc:"Name of this gateway, part of each record's id. Never give it to another gateway." required:"true"`
	StateDir string `yaml:"state_dir" doc:"Folder for the log and the page's password." default:"/var/lib/edge-gateway"`

	FlashBudget pipeline.Size `yaml:"flash_budget" doc:"What the flash memory may be written in its life (TBW of its data sheet). 0B for not known; then nothing is forecast." default:"0B"`
	FlashYears  int           `yaml:"flash_years" doc:"How long the flash memory has to last. A forecast below it is a warning." default:"5" min:"1" max:"50"`
}

// Lane is the section of one lane.
type Lane struct {
	MaxBytes    pipeline.Size `yaml:"max_bytes" doc:"Room on the disk." default:"512MiB" min:"16MiB"`
	MaxAge      time.Duration `yaml:"max_age" doc:"Records older than this are dropped and counted, delivered or not. 0s keeps them." default:"0s" min:"0s"`
	WhenFull    string        `yaml:"when_full" doc:"block: sources slow down and MQTT is not acknowledged. drop_oldest and drop_newest lose records, and count them." enum:"block|drop_oldest|drop_newest" default:"block"`
	MaxDelay    time.Duration `yaml:"max_delay" doc:"How long a reading nobody waits for may stay in memory. Longer spares the flash." default:"1s" min:"10ms" max:"1m"`
	Codec       string        `yaml:"codec" doc:"How records are compressed: s2 costs hardly any time; zstd makes them smaller still and takes more, for a tight flash budget." enum:"s2|zstd|none" default:"s2"`
	Verify      string        `yaml:"verify" doc:"How much of the log is looked at when the lane is opened. newest: the newest segment; full: every record, which takes as long as reading max_bytes." enum:"newest|full" default:"newest"`
	OnDamage    string        `yaml:"on_damage" doc:"What to do when the log is damaged. stop: the lane waits for a person; salvage: it keeps what can be read and goes on, for sites nobody visits." enum:"stop|salvage" default:"stop"`
	UrgentDelay time.Duration `yaml:"urgent_delay" doc:"How long an MQTT publish waits for company before its commit." default:"0s" min:"0s" max:"100ms"`
}

// Stream is the section of one stream.
type Stream struct {
	From       []string        `yaml:"from" doc:"Sources: DEVICE, or DEVICE:TOPIC/FILTER with + and # as in MQTT." required:"true" min:"1"`
	Processors []pipeline.Step `yaml:"processors" doc:"What is done to messages before they are stored, in this order."`
	Lane       string          `yaml:"lane" doc:"Name of the lane that stores the stream." default:"default"`
	Uplinks    []string        `yaml:"uplinks" doc:"Names of the uplinks that get each record." required:"true" min:"1"`
	Quota      pipeline.Size   `yaml:"quota" doc:"Most data of this stream that may wait in its lane. Beyond it the lane's when_full is followed for this stream alone. 0B for no quota." default:"0B"`
	GapRecords bool            `yaml:"gap_records" doc:"Whether a record in the stream tells the far side of records that were dropped or refused." default:"false"`
	Delivery   string          `yaml:"delivery" doc:"at_least_once may double after a crash; effectively_once does not, where the far side can tell." enum:"at_least_once|effectively_once|exactly_once" default:"at_least_once"`
	Order      string          `yaml:"order" doc:"What waits while a record is held: the whole stream (strict), the records of its key (key), or nothing (none)." enum:"strict|key|none" default:"strict"`
}

func (s *Stream) promise() uplink.Promise {
	return uplink.Promise{Delivery: uplink.Delivery(s.Delivery), Order: uplink.Order(s.Order)}
}

const (
	defaultLane     = "default"
	onDamageSalvage = "salvage"
)

// minQuota is a few of the largest MQTT packets.
const minQuota pipeline.Size = 1 << 20

// defaultBytes is max_bytes of the default lane where the config does not mention it.
const defaultBytes pipeline.Size = 512 << 20

// loadConfig reads and checks a file. Its error is config.Errors, or what kept the file from being read.
func loadConfig(path string) (*Config, error) {
	c, err := decodeConfig(path)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// stateDir returns the state folder that a config file names. For that the rest of the file may have mistakes, and its secrets
// may be for the gateway's eyes only.
func stateDir(path string) (string, error) {
	c, err := decodeConfig(path)
	if c == nil || c.Gateway.StateDir == "" {
		return "", err
	}
	return c.Gateway.StateDir, nil
}

// decodeConfig returns what could be read of the file also where it has mistakes; nil where nothing could.
func decodeConfig(path string) (*Config, error) {
	content, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	var c Config
	src := config.Source{
		Name: path, Content: content, Getenv: os.LookupEnv,
		ReadFile: func(name string) ([]byte, error) {
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(path), name)
			}
			return readBounded(name)
		},
	}
	if err := config.Decode(src, drivers, &c); err != nil {
		return &c, err
	}
	if _, ok := c.Lanes[defaultLane]; !ok {
		if c.Lanes == nil {
			c.Lanes = map[string]Lane{}
		}
		c.Lanes[defaultLane] = Lane{MaxBytes: defaultBytes, WhenFull: "block", MaxDelay: time.Second, Codec: "s2", Verify: "newest", OnDamage: "stop"}
	}
	return &c, nil
}

// laneBytes returns the max_bytes of a lane, of the default one also where it is not mentioned.
func (c *Config) laneBytes(name string) pipeline.Size {
	if lane, ok := c.Lanes[name]; ok || name != defaultLane {
		return lane.MaxBytes
	}
	return defaultBytes
}

// readBounded refuses what cannot be a config or a secret before it takes the memory.
func readBounded(path string) ([]byte, error) {
	const most = 4 << 20
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s: want a regular file of at most %v", path, pipeline.Size(most))
	}
	return os.ReadFile(path)
}

// Check finds what no single section can tell: references to what is not there, and promises nobody can keep.
func (c *Config) Check() []pipeline.Problem {
	var problems []pipeline.Problem
	add := func(path, format string, args ...any) {
		problems = append(problems, pipeline.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
	}
	if !config.IsName(c.Gateway.ID) {
		add("gateway.id", "%q is not a name (want letters, digits, - and _, at most 63, beginning with a letter or digit)", c.Gateway.ID)
	}
	for name, s := range c.Streams {
		path := "streams." + name
		for i, from := range s.From {
			at := fmt.Sprintf("%s.from[%d]", path, i)
			sel, err := pipeline.ParseSelector(from)
			if err != nil {
				add(at, "%v", err)
			} else if _, ok := c.Devices[sel.Source]; !ok {
				add(at, "there is no device %q (%s)", sel.Source, have(c.Devices))
			}
		}
		if _, ok := c.Lanes[s.Lane]; !ok && s.Lane != defaultLane {
			add(path+".lane", "there is no lane %q (%s)", s.Lane, have(c.Lanes))
		}
		if room := c.laneBytes(s.Lane); s.Quota != 0 && (s.Quota < minQuota || s.Quota >= room) {
			add(path+".quota", "%v cannot be a quota in lane %s (want at least %v and less than its max_bytes, %v)", s.Quota, s.Lane, minQuota, room)
		}
		for i, u := range s.Uplinks {
			at := fmt.Sprintf("%s.uplinks[%d]", path, i)
			component, ok := c.Uplinks[u]
			switch {
			case !ok:
				add(at, "there is no uplink %q (%s)", u, have(c.Uplinks))
			case slices.Index(s.Uplinks, u) < i:
				add(at, "uplink %q is named twice", u)
			default:
				c.checkPromise(add, path, name, s, u, component)
			}
		}
	}
	return problems
}

// checkPromise refuses a delivery that the uplink's driver or the lane's policy cannot keep.
func (c *Config) checkPromise(add func(path, format string, args ...any), path, stream string, s Stream, name string, component config.Component) {
	promise := s.promise()
	if err := uplink.CheckPromise(component.Settings.(uplink.Driver), promise); err != nil {
		add(path+".delivery", "uplink %s (%s) cannot keep %s with order %s: %v", name, component.Driver, s.Delivery, s.Order, err)
	}
	policy := policyOf(component.Settings)
	if err := policy.CheckOrder(promise.Order); err != nil {
		add(path+".order", "uplink %s (%s) has %v", name, component.Driver, err)
	}
	if lane, ok := c.Lanes[s.Lane]; ok && lane.WhenFull != "block" && promise.Delivery == uplink.ExactlyOnce {
		add(path+".delivery", "lane %s drops records when it is full, so %s cannot be exactly once (want when_full: block)", s.Lane, stream)
	}
}

// have lists the names there are, for an error about one there is not.
func have[V any](m map[string]V) string {
	if len(m) == 0 {
		return "there is none"
	}
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return "there is " + strings.Join(names, ", ")
}
