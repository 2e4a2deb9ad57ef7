package pipeline

import (
	"context"
	"errors"
	"time"
)

// Batch is what a source hands over in one piece. Its records, the processor state they changed, and Once become
// durable in one commit per lane, or not at all.
type Batch struct {
	Messages []Message
	// Once, when set, is the name under which the lanes remember that this batch was taken, in the same commit. A
	// second batch with that name is acknowledged without being stored again, also after a power cut, until a batch
	// names it in Forget. This is what an MQTT QoS 2 packet identifier needs (MQTT 5, section 4.3.3).
	Once string
	// Forget holds names that were used as Once and may be used for something new from now on.
	Forget []string
	// Order names the party that gets the acknowledgements, such as an MQTT client: done is called in the order of Put
	// among the batches of one Order. Different parties never wait for each other.
	Order string
	// Urgent says that somebody waits for done: the commit is made at once. Otherwise it may wait up to the lane's
	// max_delay, because flash wears with the number of commits.
	Urgent bool
}

// Sink is where sources put their messages. Pipeline implements it.
type Sink interface {
	// Put takes b, which belongs to the pipeline from then on, and returns; it waits only for room in the lanes. Once Put has returned nil, done is called exactly
	// once, in the order of the Put calls of one Order: with nil when everything of b that any stream wants is on
	// stable storage, or with an error when it is not and will not be. A source acknowledges from done and nowhere
	// else. done must not block and must not call Put. It may be called before Put returns. It may be nil.
	//
	// When Put returns an error nothing of b was taken and done is never called: ErrFull when a lane is full and its
	// policy is to refuse, ErrStopped when a lane has stopped after an I/O error or could not be opened, or the
	// context's error.
	Put(ctx context.Context, b Batch, done func(error)) error
	// Remembered returns the Once names that begin with prefix and were not forgotten, in no order. A source calls it
	// at its start to learn what it had taken before a crash.
	Remembered(prefix string) []string
}

// Errors of Put and of done. They are wrapped with the lane and the cause.
var (
	ErrFull    = errors.New("lane is full")
	ErrStopped = errors.New("lane has stopped")
)

// Entry is one record on its way into a lane: a message that has passed its stream's processors, encoded.
type Entry struct {
	Stream string
	Time   time.Time
	Data   []byte
}

// Change sets the value of a key in a lane's state, or deletes it where Value is nil.
type Change struct {
	Key   string
	Value []byte
}

// Lane is what the pipeline needs of a lane of the log.
type Lane interface {
	// Append queues entries and changes for the next commit, which holds all of them or none. It waits for room while
	// the lane is bounded to `block`. The callback follows the rules of Sink.Put; the order is that of Append.
	Append(ctx context.Context, entries []Entry, changes []Change, urgent bool, done func(error)) error
	// State calls yield for each key with the prefix, in no order, until yield returns false.
	State(prefix string, yield func(key string, value []byte) bool)
}
