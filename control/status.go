package control

import (
	"time"

	"edgegateway/device"
	"edgegateway/pipeline"
)

// Status is everything the page, the metrics and the commands show: one consistent picture, taken at Time. Slices are
// sorted by name.
type Status struct {
	Gateway string
	Version string
	Time    time.Time
	Started time.Time
	// Problems says in plain words what needs a person, worst first. Empty means that all is well.
	Problems []Problem
	Devices  []Device
	Streams  []Stream
	Uplinks  []Uplink
	Lanes    []Lane
	Flash    Flash
	// Removed are uplinks that are not in the config any more and still hold a place in the log.
	Removed []Removed
	// Credentials are the files of uplinks that end at some time or cannot be read.
	Credentials []Credential
	// Unrouted counts messages that no stream has asked for since the start.
	Unrouted uint64
}

// Removed is an uplink of a stream that was taken out of the config. What it has not confirmed stays in the log until it is
// released.
type Removed struct {
	Uplink  string
	Stream  string
	Lane    string
	Backlog Backlog
}

// Credential is a file that an uplink signs in with.
type Credential struct {
	Uplink  string
	Key     string // of the config
	File    string
	Expires time.Time // zero for never, or not known
	Error   string    // why it cannot be read; what was read before is used on
}

// Flash is the wear of the flash memory by all lanes together.
type Flash struct {
	Budget uint64 // bytes that it may be written in its life; 0 where that is not known
	Years  int    // how long it has to last
	// Written is what the lanes have cost it since their logs began. PerDay is the present rate, over at least an hour and
	// at most a day; 0 before. Lasts is the forecast until the budget is used up; 0 where nothing can be said.
	Written uint64
	PerDay  float64
	Lasts   time.Duration
}

// Severity ranks a Problem.
type Severity string

// Severities: a warning is data at risk, an error is data that is not stored or not delivered now.
const (
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Problem is one thing that needs a person.
type Problem struct {
	Severity Severity
	Where    string // "device boiler", "uplink cloud", "lane default"
	Text     string // what is wrong
	Hint     string // what a person can do about it; may be empty
}

// Device is a device with its last values.
type Device struct {
	Name   string
	Driver string
	device.Status
	Values []LastValue // newest message of each topic, sorted by topic; at most 500
	Hidden int         // topics that did not fit into Values; 1 also when it is not known how many
}

// LastValue is the newest message of a topic.
type LastValue struct {
	Topic   string
	Value   string // as a person reads it, at most 64 characters
	Unit    string
	Quality pipeline.Quality
	Reason  string
	Time    time.Time
}

// Stream is a stream with what waits for each of its uplinks.
type Stream struct {
	Name string
	Lane string
	// Records is the number stored since the log began, Rate the records a second over the last 10 s.
	Records uint64
	Rate    float64
	// Backlog is that of the uplink furthest behind.
	Backlog Backlog
	// Waiting is the data that waits for the slowest uplink, bounded by Quota where that is not 0. Full says that the stream
	// is at its quota.
	Waiting uint64
	Quota   uint64
	Full    bool
	// Dropped counts records that went before each uplink had them, RefusedEver those that were never taken because the lane
	// or the quota was full, both since the log began.
	Dropped     uint64
	RefusedEver uint64
	// Refused counts messages that were not taken since the start: lane full or stopped.
	Refused uint64
}

// Backlog is what is stored and not yet confirmed.
type Backlog struct {
	Records uint64
	Bytes   uint64        // of the records' data, estimated from their mean size
	Age     time.Duration // of the oldest record; 0 without a backlog
}

// LinkState is how an uplink does for one stream, in one word.
type LinkState string

// The states of a link.
const (
	Connecting LinkState = "connecting"
	Sending    LinkState = "sending" // connected; idle or sending
	Waiting    LinkState = "waiting" // failed; the next try comes after a pause
	Paused     LinkState = "paused"  // an operator holds its records back
	Stopped    LinkState = "stopped" // its lane has stopped, or it was told to
)

// Uplink is one uplink of one stream.
type Uplink struct {
	Name   string
	Driver string
	Stream string
	State  LinkState
	Since  time.Time
	// Delivery and Order are what is promised, in the words of the config.
	Delivery, Order string
	// Error is the last error in plain words; it stays until the next confirmation. NextTry is set while Waiting.
	Error   string
	NextTry time.Time
	// Choices are those of which an operator is to choose one (edge-gateway choose) before anything is sent.
	Choices []string
	// LastAck is when the far broker last confirmed a record; zero if never since the start.
	LastAck     time.Time
	Acked       uint64 // records confirmed since the start
	Rate        float64
	Backlog     Backlog
	DeadLetters uint64 // refused for good and kept
	// Held are records refused for now, and those that wait behind them; others go on. HeldFor is why.
	Held    uint64
	HeldFor string
	// Limit is what the sending waits for by the uplink's own bounds. Quota is the payload that the uplink may send a day, for
	// all its streams together, and QuotaUsed what it has; 0 without a quota.
	Limit            string
	QuotaUsed, Quota uint64
	// Older are the records of the backlog while new ones go beside it; 0 where all go in order.
	Older uint64
	// InDoubt is for how long the oldest record is on its way of which it is not known whether the far broker has it; 0 for none.
	InDoubt time.Duration
	// Figures are the driver's own.
	Figures []Figure
}

// Figure is a metric of a driver's own, shown as edge_gateway_uplink_NAME.
type Figure struct {
	Name, Help string
	Counter    bool // it only grows
	Value      float64
}

// LaneState is how a lane does, in one word.
type LaneState string

// The states of a lane.
const (
	LaneOK      LaneState = "ok"
	LaneFull    LaneState = "full"    // at max_bytes, or no space on the disk
	LaneStopped LaneState = "stopped" // I/O error, damage, or it could not be opened; Error says which
)

// Doubt is a reason not to trust the medium under a lane, in the words of the log.
type Doubt struct {
	Kind, Text, Hint string
}

// Lane is one log directory.
type Lane struct {
	Name     string
	State    LaneState
	Error    string
	Epoch    uint64
	Bytes    int64 // on disk
	MaxBytes int64
	Segments int
	Held     int64  // of Bytes, from the first record on that an uplink has not confirmed
	Room     int64  // free on its disk; negative where that is not known
	Written  uint64 // bytes handed to the disk since the log began
	Flash    uint64 // the same as flash memory programs it
	Doubts   []Doubt
	// FullIn is the forecast until max_bytes at the present rate; 0 when the lane is not growing.
	FullIn  time.Duration
	Commits uint64
	Dropped uint64 // records dropped by drop_oldest and max_age since the log began
	Refused uint64 // records refused by drop_newest since the log began
	// LettersLost counts dead letters that went because there were too many, since the log began.
	LettersLost uint64
	// LettersWaiting are dead letters for which the full disk has no room yet; their records stay in the log.
	LettersWaiting int
}
