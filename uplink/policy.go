package uplink

import (
	"context"
	"time"

	"edgegateway/pipeline"
)

// Policy is the section `sending` of an uplink: what is common to all drivers. The zero value means the defaults.
type Policy struct {
	Start            string        `yaml:"start" doc:"Where a stream begins at this uplink the first time: oldest, newest, or a time such as 2026-11-30T12:00:00Z: the first record of that time or later, in the order in which they were stored, and all behind it. Earlier ones are never sent." default:"oldest"`
	RetryAttempts    int           `yaml:"retry_attempts" doc:"How often a record may be refused for now before it becomes a dead letter. 0 for ever. Only what the far side says of this record counts: an uplink that cannot connect uses up none." default:"0" min:"0"`
	RetryAge         time.Duration `yaml:"retry_age" doc:"How long a record is tried before it becomes a dead letter, from the first time it is sent; when the gateway starts it begins anew. 0s for ever. An outage counts." default:"0s" min:"0s"`
	RecordsPerSecond int           `yaml:"records_per_second" doc:"Most records a second, for all streams of this uplink together. 0 for no bound." default:"0" min:"0"`
	BytesPerSecond   pipeline.Size `yaml:"bytes_per_second" doc:"Most payload a second, for all streams of this uplink together. 0B for no bound." default:"0B"`
	BytesPerDay      pipeline.Size `yaml:"bytes_per_day" doc:"Most payload a day (UTC), for metered links; what is over waits for the next day. 0B for no bound." default:"0B"`
	Backfill         string        `yaml:"backfill" doc:"After an outage: in_order sends the oldest first; live_first sends new records at once and the backlog beside them, with order: none only." enum:"in_order|live_first" default:"in_order"`
}

// HasPolicy is implemented by drivers whose config has the section; all of ours have it.
type HasPolicy interface{ SendingPolicy() *Policy }

// Watcher is implemented by sessions that can be fenced by another instance. The Runner asks one that is idle every few
// seconds, so that the older of two gateways learns of the other within ten seconds also when it has nothing to send.
type Watcher interface {
	// Alive asks the far side whether this session still owns its place. An error ends the session as one of Send does. A Send
	// may begin meanwhile.
	Alive(ctx context.Context) error
}

// Prober is implemented by drivers; `edge-gateway probe UPLINK` prints what it finds.
type Prober interface {
	// Probe connects, signs in, looks for the place the records go to and at the rights there, and, where that is harmless,
	// writes a test record and reads it back. It calls step for each thing it has tried, in order, and ends with the first that
	// failed. It never touches a far cursor and never fences a session.
	Probe(ctx context.Context, env Env, step func(Step))
}

// Step is one thing that a probe has tried.
type Step struct {
	Name string // what was tried, in a few plain words: "sign in as gw"
	Note string // what was seen: "3 brokers, Kafka 4.3"
	Err  error  // in plain words, with what would be right; nil: it works
}
