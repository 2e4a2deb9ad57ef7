package uplinktest

import (
	"testing"

	"edgegateway/uplink"
)

// revoked takes the right to write away in mid-flow: the records are held, none becomes a dead letter, and a person is asked.
func revoked(t *testing.T, b *bench) {
	driver, revoke, renew := b.suite.Access(t, b.addr, b.place)
	cfg := b.config()
	cfg.Driver = driver
	r := uplink.New(cfg)
	stop := b.start(r)
	for range 2 {
		b.append(200)
		b.waitSettled()
		revoke()
		b.append(200)
		if !waitStatus(r, func(s uplink.Status) bool {
			b.append(1) // the broker may take a while, and a connection without work does not know
			return s.Config
		}) {
			t.Errorf("Status = %+v without the right to write, want an error that a person must mend", r.Status())
		}
		t.Logf("in plain words: %s", r.Status().Error)
		renew()
	}
	b.waitSettled()
	stop()
	b.wantNoLetters()
	b.check(b.log.Again())
}

// deleted takes the place away between two records. What it held is gone with it; what was not confirmed by then arrives in the
// place that is made again, in order.
func deleted(t *testing.T, b *bench) {
	r, stop := b.runner()
	b.append(300)
	b.waitSettled()
	b.suite.Delete(t, b.server.Addr, b.place)
	b.append(300)
	if b.suite.Prepare != nil {
		if !waitStatus(r, func(s uplink.Status) bool { return s.Config }) {
			t.Errorf("Status = %+v with the place gone, want an error that a person must mend", r.Status())
		}
		t.Logf("in plain words: %s", r.Status().Error)
		b.suite.Prepare(t, b.server.Addr, b.place)
	}
	b.waitSettled()
	b.append(300)
	b.waitSettled()
	stop()
	b.wantNoLetters()
	mayDouble := 0
	if b.suite.Doubles {
		mayDouble = b.log.Again()
	}
	b.suite.judge(b.suite.Read(t, b.server.Addr, b.place), 300, b.log.Len(), nil).mustBe(t, mayDouble)
}

func (b *bench) wantNoLetters() {
	b.Helper()
	if letters := b.log.Letters(); len(letters) > 0 {
		b.Errorf("%d records became dead letters, want none; the first: %+v", len(letters), letters[0])
	}
}
