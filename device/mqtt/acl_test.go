package mqtt_test

import (
	"fmt"
	"strings"
	"testing"

	"edgegateway/device/mqtt"
)

func TestRights(t *testing.T) {
	h := hash(t, password)
	conf := config(t)
	conf.Users = map[string]mqtt.User{
		"dev":   {PasswordHash: h, Publish: []string{"dev/#", "+/status"}, Subscribe: []string{"dev/#", "+/cmd"}},
		"all":   {PasswordHash: h, Publish: []string{"#"}, Subscribe: []string{"#"}},
		"sys":   {PasswordHash: h, Publish: []string{"$SYS/#", "$local/x"}, Subscribe: []string{"$SYS/#"}},
		"quiet": {PasswordHash: h},
	}
	sink := newSink().auto(t, 0)
	b := start(t, conf, sink)
	long, deep := strings.Repeat("x", 1025), strings.Repeat("/", 32)
	for _, row := range []struct {
		user, topic string
		may         bool
	}{
		{"dev", "dev/a", true},
		{"dev", "dev/a/b/c", true},
		{"dev", "dev", true},
		{"dev", "boiler/status", true},
		{"dev", "device/a", false},
		{"dev", "a/b/status", false},
		{"dev", "boiler/status/x", false},
		{"dev", "DEV/a", false},
		{"dev", "", false},
		{"dev", "$SYS/status", false},
		{"dev", "$x/status", false},
		{"all", "anything/at/all", true},
		{"all", "/", true},
		{"all", "$SYS/broker/x", false},
		{"all", "$sys/x", false},
		{"all", "$share/g/x", false},
		{"all", "$testtopic/x", false},
		{"sys", "$SYS/x", false},
		{"sys", "$local/x", true},
		{"quiet", "dev/a", false},
		{"all", long, false},
		{"all", deep, false},
		{"all", deep[1:], true},
	} {
		t.Run(fmt.Sprintf("%s publishes to %.20q", row.user, row.topic), func(t *testing.T) {
			c := signIn(t, b.Addr(), options{id: "p" + row.user, version: 5, user: row.user, pass: password})
			before := len(sink.messages())
			c.publish(row.topic, "x", 1, 1, 0)
			p := c.read()
			if ok := p.kind == puback && p.reason() == 0; ok != row.may {
				t.Errorf("got packet type %d, reason %#x; may publish: %v", p.kind, p.reason(), row.may)
			}
			if stored := len(sink.messages()) > before; stored != row.may {
				t.Errorf("stored: %v, want %v", stored, row.may)
			}
		})
	}
	for _, row := range []struct {
		user, filter string
		want         byte
	}{
		{"dev", "dev/#", 1},
		{"dev", "dev/+/x", 1},
		{"dev", "dev", 1},
		{"dev", "boiler/cmd", 1},
		{"dev", "+/cmd", 1},
		{"dev", "#", 0x87},
		{"dev", "+/#", 0x87},
		{"dev", "+", 0x87},
		{"dev", "boiler/+", 0x87},
		{"dev", "boiler/cmd/#", 0x87},
		{"dev", "$share/g/dev/#", 1},
		{"dev", "$share/g/#", 0x87},
		{"dev", "$share/x/secret", 0x87},
		{"dev", "$SHARE/g/#", 0x87},
		{"dev", "$SYS/#", 0x87},
		{"all", "#", 1},
		{"all", "+/+", 1},
		{"all", "$SYS/#", 0x87},
		{"all", "$share/g/$SYS/#", 0x87},
		{"all", "$testtopic/#", 0x87},
		{"sys", "$SYS/#", 1},
		{"sys", "#", 0x87},
		{"quiet", "a", 0x87},
		{"all", "$share//x", 0x8f},
		{"all", "$share/g", 0x8f},
		{"all", "$share/g/", 0x8f},
		{"all", "a#", 0x8f},
		{"all", "a/#/b", 0x8f},
		{"all", "a+/b", 0x8f},
		{"all", "", 0x8f},
		{"all", long, 0x8f},
		{"all", deep, 0x8f},
	} {
		t.Run(fmt.Sprintf("%s subscribes to %.20q", row.user, row.filter), func(t *testing.T) {
			c := signIn(t, b.Addr(), options{id: "s" + row.user, version: 5, user: row.user, pass: password})
			if got := c.subscribe(1, 1, row.filter)[0]; got != row.want {
				t.Errorf("SUBACK %#x, want %#x", got, row.want)
			}
		})
	}
}

func TestARetainedMessageIsNotReadThroughAWildcard(t *testing.T) { // F19
	h := hash(t, password)
	conf := config(t)
	conf.Users["narrow"] = mqtt.User{PasswordHash: h, Subscribe: []string{"open/#"}}
	b := start(t, conf, newSink().auto(t, 0))
	pub := signIn(t, b.Addr(), options{id: "p"})
	watch := signIn(t, b.Addr(), options{id: "w"})
	watch.subscribe(1, 0, "secret", "open/x")
	pub.publish("secret", "s", 1, 1, retain)
	pub.publish("open/x", "o", 1, 2, retain)
	watch.wantDelivery()
	watch.wantDelivery()
	c := signIn(t, b.Addr(), options{id: "n", version: 5, user: "narrow", pass: password})
	if got := c.subscribe(1, 0, "#", "$share/g/#", "open/+"); got[0] != 0x87 || got[1] != 0x87 || got[2] != 0 {
		t.Fatalf("SUBACK % x", got)
	}
	if d := c.wantDelivery(); d.topic != "open/x" || !d.retain {
		t.Errorf("got %+v", d)
	}
	c.wantSilence()
}
