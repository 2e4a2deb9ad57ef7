package mqtt_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"edgegateway/device"
	"edgegateway/device/mqtt"

	"golang.org/x/crypto/bcrypt"
)

func TestSignIn(t *testing.T) {
	argon, err := mqtt.HashPassword(password)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name       string
		o          options
		anonymous  bool
		v3, v5     byte
		failsTotal uint64
	}{
		{name: "right password, bcrypt", o: options{user: "dev", pass: password}},
		{name: "right password, argon2id", o: options{user: "argon", pass: password}},
		{name: "wrong password, bcrypt", o: options{user: "dev", pass: "wrong"}, v3: 5, v5: 0x86, failsTotal: 1},
		{name: "wrong password, argon2id", o: options{user: "argon", pass: "wrong"}, v3: 5, v5: 0x86, failsTotal: 1},
		{name: "unknown user", o: options{user: "nobody", pass: password}, v3: 5, v5: 0x86, failsTotal: 1},
		{name: "no password", o: options{user: "dev"}, v3: 5, v5: 0x86, failsTotal: 1},
		{name: "no user name", v3: 5, v5: 0x86},
		{name: "no user name, where anonymous access is configured", anonymous: true},
		{name: "wrong password, where anonymous access is configured", o: options{user: "dev", pass: "wrong"}, anonymous: true, v3: 5, v5: 0x86, failsTotal: 1},
		{name: "client id that is too long", o: options{user: "dev", pass: password, id: strings.Repeat("x", 300)}, v3: 2, v5: 0x85},
	} {
		for version, want := range map[byte]byte{4: row.v3, 5: row.v5} {
			t.Run(fmt.Sprintf("%s, version byte %d", row.name, version), func(t *testing.T) {
				conf := config(t)
				conf.Users["argon"] = mqtt.User{PasswordHash: argon}
				if row.anonymous {
					conf.Anonymous = &mqtt.Access{Publish: []string{"open/#"}}
				}
				b := start(t, conf, newSink().auto(t, 0))
				o := row.o
				o.version = version
				if o.id == "" {
					o.id = "c"
				}
				c := dial(t, b.Addr())
				if got := c.connect(o).reason(); got != want {
					t.Errorf("CONNACK %#x, want %#x", got, want)
				}
				if want != 0 {
					c.wantEnd()
				}
				if got := b.Status().Counters["sign_in_failures_total"]; got != row.failsTotal {
					t.Errorf("sign_in_failures_total = %d, want %d", got, row.failsTotal)
				}
			})
		}
	}
}

func TestAnAddressRunsOutOfSignInAttempts(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	signIn(t, b.Addr(), options{id: "before", user: "dev", pass: password})
	last := byte(0)
	for range 12 {
		last = dial(t, b.Addr()).connect(options{version: 5, id: "x", user: "dev", pass: "wrong"}).reason()
	}
	if last != 0x9F {
		t.Errorf("the last attempt got CONNACK %#x, want 0x9f (connection rate exceeded)", last)
	}
	// Another user of the address has to wait; one whose password was verified before does not.
	if got := dial(t, b.Addr()).connect(options{version: 5, id: "y", user: "admin", pass: password}).reason(); got != 0x9F {
		t.Errorf("a user not seen before got CONNACK %#x, want 0x9f", got)
	}
	signIn(t, b.Addr(), options{id: "after", user: "dev", pass: password})
}

func TestAHundredClientsSignInAtOnce(t *testing.T) {
	conf := config(t)
	argon, err := mqtt.HashPassword(password)
	if err != nil {
		t.Fatal(err)
	}
	conf.Users["argon"] = mqtt.User{PasswordHash: argon}
	b := start(t, conf, newSink().auto(t, 0))
	var wg sync.WaitGroup
	for i := range 100 {
		c := dial(t, b.Addr())
		wg.Go(func() {
			if got := c.connect(options{id: fmt.Sprint(i), user: "argon", pass: password}).reason(); got != 0 {
				t.Errorf("client %d: CONNACK %#x", i, got)
			}
		})
	}
	wg.Wait()
}

func TestAClientIDBelongsToItsUser(t *testing.T) { // T25
	b := start(t, config(t), newSink().auto(t, 0))
	owner := signIn(t, b.Addr(), options{id: "c", user: "admin", pass: password, keep: true})
	owner.subscribe(1, 1, "dev/secret")
	for _, keep := range []bool{true, false} {
		if got := dial(t, b.Addr()).connect(options{id: "c", user: "dev", pass: password, keep: keep}).reason(); got != 2 {
			t.Errorf("another user with the same client id (keep session: %v) got CONNACK %d, want 2", keep, got)
		}
	}
	owner.wantSilence()
}

func TestHashPassword(t *testing.T) {
	h, err := mqtt.HashPassword("secret")
	if err != nil || !strings.HasPrefix(h, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Fatalf("HashPassword = %q, %v", h, err)
	}
	again, _ := mqtt.HashPassword("secret")
	if again == h {
		t.Error("two hashes have the same salt")
	}
	if _, err := mqtt.HashPassword(""); err == nil {
		t.Error("an empty password got a hash")
	}
}

func TestCheckTellsWhatIsWrong(t *testing.T) {
	good := hash(t, "x")
	costly := "$2b$15$" + strings.Repeat("a", 53)
	for _, row := range []struct {
		name   string
		change func(*mqtt.Config)
		path   string
		text   string
	}{
		{"a listen address without port", func(c *mqtt.Config) { c.Listen = "localhost" }, "listen", "not an address with a port"},
		{"a port that is a name", func(c *mqtt.Config) { c.Listen = "127.0.0.1:mqtt" }, "listen", "not a port"},
		{"no address", func(c *mqtt.Config) { c.Listen = ":1883" }, "listen", "0.0.0.0:1883"},
		{"a password in clear", func(c *mqtt.Config) { c.Users["u"] = mqtt.User{PasswordHash: "secret"} }, "users.u.password_hash", "not a password hash"},
		{"argon2id that is cut off", func(c *mqtt.Config) { c.Users["u"] = mqtt.User{PasswordHash: "$argon2id$v=19$m=1"} }, "users.u.password_hash", "not a password hash"},
		{"argon2id that eats the memory", func(c *mqtt.Config) {
			c.Users["u"] = mqtt.User{PasswordHash: "$argon2id$v=19$m=4194304,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA"}
		}, "users.u.password_hash", "takes too much"},
		{"bcrypt that takes seconds", func(c *mqtt.Config) { c.Users["u"] = mqtt.User{PasswordHash: costly} }, "users.u.password_hash", "takes too long"},
		{"a filter with a stray wildcard", func(c *mqtt.Config) {
			c.Users["u"] = mqtt.User{PasswordHash: good, Publish: []string{"ok", "a/b#"}}
		}, "users.u.publish[1]", "not a topic filter"},
		{"a filter with $share", func(c *mqtt.Config) {
			c.Users["u"] = mqtt.User{PasswordHash: good, Subscribe: []string{"$share/g/a"}}
		}, "users.u.subscribe[0]", "without $share"},
		{"an empty anonymous filter", func(c *mqtt.Config) { c.Anonymous = &mqtt.Access{Publish: []string{""}} }, "anonymous.publish[0]", "not a topic filter"},
		{"nobody who may sign in", func(c *mqtt.Config) { c.Users = nil }, "users", "nobody can sign in"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := config(t)
			row.change(&c)
			got := c.Check()
			if len(got) != 1 || got[0].Path != row.path || !strings.Contains(got[0].Text, row.text) {
				t.Errorf("Check() = %v, want one problem at %s with %q", got, row.path, row.text)
			}
		})
	}
	// An argon2id or bcrypt hash of each kind passes.
	for _, prefix := range []string{"$2a$", "$2b$", "$2y$"} {
		b, _ := bcrypt.GenerateFromPassword([]byte("x"), bcrypt.MinCost)
		c := config(t)
		c.Users = map[string]mqtt.User{"u": {PasswordHash: prefix + string(b[4:])}}
		if got := c.Check(); len(got) != 0 {
			t.Errorf("%s: %v", prefix, got)
		}
	}
}

func TestAPortThatIsTakenIsToldInOneLine(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := config(t)
	c.Listen = ln.Addr().String()
	_, err = c.Open(device.Env{Name: "local", Sink: newSink()})
	want := "listen " + c.Listen + ": address already in use (is another broker running?"
	if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Open() = %v, want %q…", err, want)
	}
}

// mochi takes a client out of its index by the client id when its connection has ended, which can be after the next
// connection with that id stands there: it would get nothing.
func TestAClientThatTakesItsSessionOverGetsDeliveries(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	pub := signIn(t, b.Addr(), options{id: "pub"})
	for i := range 300 {
		sub := signIn(t, b.Addr(), options{id: "sub", version: byte(4 + i%2)}) // while the one before is still connected
		sub.subscribe(1, 0, "dev/x")
		pub.publish("dev/x", strconv.Itoa(i), 1, uint16(i+1), 0)
		pub.wantAck(puback, uint16(i+1), 0)
		if got := sub.wantDelivery().payload; got != strconv.Itoa(i) {
			t.Fatalf("connection %d got %q", i, got)
		}
	}
}
