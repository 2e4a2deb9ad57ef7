package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestACaseThatFailsIsSkippedOrNeverComesCounts(t *testing.T) {
	r := newResults()
	r.read(strings.NewReader(`not json
{"Action":"output","Package":"p","Test":"TestSuite/nats_x","Output":"    suite.go:1: conformance nats at_least_once has 4 cases\n"}
{"Action":"pass","Package":"p","Test":"TestSuite/nats_x/one"}
{"Action":"fail","Package":"p","Test":"TestSuite/nats_x/two"}
{"Action":"skip","Package":"p","Test":"TestSuite/nats_x/three"}
{"Action":"pass","Package":"q","Test":"TestSuite/nats_x/of another package"}
{"Action":"pass","Package":"p","Test":"TestSuite/another"}
{"Action":"pass","Package":"p","Test":"TestSuite/nats_x/one/a part of it"}
{"Action":"fail","Package":"p","Test":"TestSuite/nats_x"}
`), io.Discard)
	var out bytes.Buffer
	failed := r.print(&out, []string{"kafka", "nats", "redis"})
	for _, want := range []string{"conformance nats at_least_once: cases 4 failed 3\n", "conformance kafka at_least_once: cases 1 failed 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s\nwant %s", out.String(), want)
		}
	}
	if strings.Count(out.String(), "failed 1\n")+3 != failed {
		t.Errorf("%d failed in\n%s", failed, out.String())
	}
}
