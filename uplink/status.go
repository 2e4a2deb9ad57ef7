package uplink

import "time"

// State is how a Runner does, in one word.
type State string

// The states of a Runner.
const (
	Connecting State = "connecting"
	Sending    State = "sending" // connected; idle or sending
	Waiting    State = "waiting" // failed; the next try comes after a pause
	Paused     State = "paused"  // told to hold its records; no session is open
	Stopped    State = "stopped" // told to stop, or the log gives no more records
)

// Status is a picture of a Runner.
type Status struct {
	State State
	Since time.Time
	// Error is the last error in plain words; it stays until the next confirmation, or until an idle session was asked and has
	// answered. Config says that a person must mend something. NextTry is set while Waiting.
	Error   string
	Config  bool
	NextTry time.Time
	// Choices are those of which an operator is to choose one, for as long as nothing is sent before.
	Choices []Choice
	// LastAck is when the far broker last confirmed a record; zero if never since the start.
	LastAck time.Time
	Acked   uint64 // records confirmed since the start
	Dropped uint64 // records that became dead letters since the start
	// InDoubt is when the oldest record was sent first of which it is not known whether the far side has it; zero for none.
	InDoubt time.Time
	// InFlight is the number of records sent and not yet answered for.
	InFlight int
	// Held is the number of records that the far side has refused for now, and of those that wait behind them for their key:
	// with order: key or none only. Others go on. HeldFor is why the last of them was refused.
	Held    int
	HeldFor string
	// Limit is what the sending waits for, for longer than a moment: the daily quota, or one that the far side keeps. It goes on a
	// sentence that begins with "It".
	Limit    string
	own, far string // whose it is
	// Attempts is how often the far side has refused the record that it refused last; 0 when that has its outcome.
	Attempts int
}

// Status returns a consistent picture.
func (r *Runner) Status() Status {
	r.mu.Lock()
	s, f := r.status, r.flight
	r.mu.Unlock()
	if f != nil { // its mutex comes before the Runner's
		s.InDoubt = f.inDoubt()
	}
	return s
}

func (r *Runner) enter(s State, nextTry time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enterLocked(s, nextTry)
}

func (r *Runner) enterLocked(s State, nextTry time.Time) {
	if r.status.State != s {
		r.status.State, r.status.Since = s, time.Now()
	}
	r.status.NextTry = nextTry
}

// connected marks the end of Open. A broker that takes the connection and then fails each time is still down: the line
// that says otherwise waits for a confirmation.
func (r *Runner) connected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enterLocked(Sending, time.Time{})
	r.status.Choices = nil
	if r.status.Error == "" {
		r.sayLocked(r.log.Info, "uplink connected", "")
	}
}

func (r *Runner) failed(err error, nextTry time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enterLocked(Waiting, nextTry)
	r.status.Error, r.status.Config, r.status.Choices = err.Error(), IsConfig(err), choicesOf(err)
	r.asked = r.asked || len(r.status.Choices) > 0
	log := r.log.Warn
	if r.status.Config {
		log = r.log.Error
	}
	r.sayLocked(log, "uplink failed, will retry", r.status.Error)
}

func (r *Runner) stopped(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enterLocked(Stopped, time.Time{})
	r.status.InFlight, r.status.Held = 0, 0
	if err == nil {
		r.sayLocked(r.log.Info, "uplink stopped", "")
		return
	}
	r.status.Error = err.Error()
	r.sayLocked(r.log.Error, "uplink stopped", r.status.Error)
}

// confirmed counts n acks and ends the outage that was reported, if any.
func (r *Runner) confirmed(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Acked += uint64(n)
	r.status.LastAck = time.Now()
	r.worksLocked()
}

func (r *Runner) worksLocked() {
	r.asked = false
	if r.status.Error != "" {
		r.status.Error, r.status.Config, r.status.Choices = "", false, nil
		r.sayLocked(r.log.Info, "uplink connected", "")
	}
}

// alive notes that an idle session owns its place, which ends an outage as well as a confirmation does.
func (r *Runner) alive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.worksLocked()
}

func (r *Runner) dropped(seq uint64, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Dropped++
	if r.status.Dropped&(r.status.Dropped-1) == 0 { // 1st, 2nd, 4th, 8th, …: a flood of them is a few lines
		r.log.Warn("record refused for good, kept as a dead letter",
			"seq", seq, "reason", reason, "since_start", r.status.Dropped)
	}
}

func (r *Runner) inFlight(n, held int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.InFlight, r.status.Held = n, held
	if held == 0 {
		r.status.HeldFor = ""
	}
}

// holding notes that a record is held, and says so once for each reason.
func (r *Runner) holding(seq uint64, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.HeldFor = reason
	if r.heldSaid != reason {
		r.heldSaid = reason
		r.log.Warn("record refused for now, others go on", "seq", seq, "reason", reason)
	}
}

// attempted notes how often the far side has refused a record; no attempts: it has its outcome.
func (r *Runner) attempted(seq uint64, attempts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if attempts > 0 || seq == r.attempt {
		r.attempt, r.status.Attempts = seq, attempts
	}
}

// sayLocked writes one line for a change and nothing for a repetition.
func (r *Runner) sayLocked(log func(string, ...any), message, err string) {
	key := message + err
	if key == r.said {
		return
	}
	r.said = key
	if err == "" {
		log(message)
		return
	}
	log(message, "err", err)
}
