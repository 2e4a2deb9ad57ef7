package e2e_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgegateway/test/e2e"
	"edgegateway/test/rig"
)

// plan is how a run goes.
type plan struct {
	tags    string
	kills   int
	outages int // of each broker
	rate    int // messages a second of each paho client
	hasty   bool
}

// run is one load with everything that takes part in it.
type run struct {
	t       *testing.T
	plan    plan
	random  *rand.Rand
	brokers *brokers
	slave   func() // starts the slave again
	config  string
	gateway *e2e.Gateway
	clients *clients

	disturbances []disturbance
	evidence     evidence
}

const roundTrip = time.Second // timeout of the device

const runConfig = `
gateway: {id: e2e, state_dir: state}
page: {listen: "%s"}
devices:
  plant:
    driver: modbus
    address: "127.0.0.1:%d"
    timeout: 1s
    units:
      - {name: one, unit: 1, points: [
          {name: clock, table: holding, address: 0, type: uint64, every: 100ms},
          {name: complement, table: holding, address: 4, type: uint64, every: 100ms},
          {name: counter, table: holding, address: 8, type: uint64, every: 100ms}]}
      - {name: two, unit: 2, points: [
          {name: clock, table: holding, address: 0, type: uint64, every: 100ms},
          {name: complement, table: holding, address: 4, type: uint64, every: 100ms},
          {name: counter, table: holding, address: 8, type: uint64, every: 100ms}]}
  broker:
    driver: mqtt
    listen: "127.0.0.1:%d"
    users: {line: {password_hash: "%s", publish: ["line/#"]}}
streams:
  main: {from: [plant, broker], uplinks: [kafka, nats, redis]}
`

// start sets everything up and begins the load.
func start(t *testing.T, p plan) *run {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &run{t: t, plan: p, random: rand.New(rand.NewPCG(seed, 0))}
	r.brokers = startBrokers(t)
	slavePort, mqttPort, pagePort := rig.FreePort(t), rig.FreePort(t), rig.FreePort(t)
	python := filepath.Join(rig.Setup(t, "python"), "python", "bin", "python")
	var slave *process
	r.slave = func() {
		if slave != nil {
			slave.kill()
		}
		slave = startProcess(t, "pymodbus", python, filepath.Join(rig.Root(t), "test", "e2e", "slave.py"), strconv.Itoa(slavePort))
	}
	r.slave()
	page := net.JoinHostPort("127.0.0.1", strconv.Itoa(pagePort))
	r.config = fmt.Sprintf(runConfig, page, slavePort, mqttPort, passwordHash(t)) + r.brokers.uplinks()
	r.gateway = e2e.NewGateway(t, program(t, p.tags), t.TempDir(), r.config)
	r.gateway.Page, r.gateway.StopWithin = page, stopWithin
	r.gateway.Start()
	r.clients = startClients(t, mqttPort, p.rate)
	r.awaitAcks(30 * time.Second)
	return r
}

// between sleeps for a random time.
func (r *run) between(least, most time.Duration) {
	time.Sleep(least + time.Duration(r.random.Int64N(int64(most-least))))
}

// awaitAcks waits until the clients get on, but not for long.
func (r *run) awaitAcks(most time.Duration) {
	r.t.Helper()
	before := r.clients.progress()
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if r.clients.progress() > before {
			return
		}
		r.gateway.MustRun()
		r.clients.alive()
	}
}

// kill ends the gateway at a random moment and starts it again: half of the time during its start, otherwise under load.
func (r *run) kill() {
	r.t.Helper()
	if r.plan.hasty || r.random.IntN(2) == 0 {
		r.awaitAcks(5 * time.Second)
		r.between(time.Millisecond, 1500*time.Millisecond)
	} else {
		r.between(10*time.Millisecond, 1500*time.Millisecond)
	}
	r.clients.alive()
	began := time.Now()
	r.gateway.Kill9()
	r.disturbances = append(r.disturbances, disturbance{"kill", began, time.Now()})
	r.gateway.Start()
}

// outage is a broker that is down from one kill to a later one.
type outage struct {
	name   string
	broker *rig.Server
	nth    int
	down   bool
	began  time.Time
}

func (o *outage) begin() {
	o.broker.WaitReady() // it may still be on its way up from the outage before
	o.began = time.Now()
	if o.nth%2 == 0 {
		o.broker.Stop()
	} else {
		o.broker.Kill9()
	}
	o.down = true
}

func (r *run) end(o *outage) {
	const upAgain = 15 * time.Second // Kafka refuses and falters for a while after an outage
	o.broker.Launch()
	o.down = false
	if o.name == "kafka" {
		r.disturbances = append(r.disturbances, disturbance{"outage of kafka", o.began, time.Now().Add(upAgain)})
	}
}

// disturb kills the gateway, has the brokers fail in turn, and stops the gateway once as one should.
func (r *run) disturb() {
	r.t.Helper()
	var outages []*outage
	for i := range r.plan.outages {
		outages = append(outages, &outage{name: "kafka", broker: r.brokers.kafka, nth: i},
			&outage{name: "nats", broker: r.brokers.nats, nth: i}, &outage{name: "redis", broker: r.brokers.redis, nth: i + 1})
	}
	for k := range r.plan.kills {
		// The i-th outage begins before its share of the kills and ends after the first kill or two of it.
		for i, o := range outages {
			first := i * r.plan.kills / len(outages)
			if k == first {
				o.begin()
			}
			if o.down && k > first+i%2 {
				r.end(o)
			}
		}
		if k == r.plan.kills/3 || k == 2*r.plan.kills/3 {
			r.slave() // kill it and start it again
		}
		r.kill()
		if k == r.plan.kills/2 && !r.plan.hasty {
			r.endAll(outages)
			r.stopAsOneShould()
		}
	}
	r.endAll(outages)
	r.awaitAcks(10 * time.Second)
	time.Sleep(time.Second)
}

// endAll has every broker up when it returns.
func (r *run) endAll(outages []*outage) {
	for _, o := range outages {
		if o.down {
			r.end(o)
		}
	}
	for _, broker := range []*rig.Server{r.brokers.kafka, r.brokers.nats, r.brokers.redis} {
		broker.WaitReady()
	}
}

// stopAsOneShould stops the gateway under load and far from any disturbance, after which nothing may be sent twice.
func (r *run) stopAsOneShould() {
	r.t.Helper()
	r.awaitAcks(10 * time.Second)
	time.Sleep(3 * time.Second)
	r.t.Logf("stopped under load within %v", r.stop())
	time.Sleep(1500 * time.Millisecond)
	r.gateway.Start()
	r.awaitAcks(10 * time.Second)
	time.Sleep(3 * time.Second)
}

// stop stops the gateway as one should. It waits a second for the confirmations of what is in flight: a stop that took
// longer may have left Kafka in doubt, as a kill does; a shorter one may not.
func (r *run) stop() time.Duration {
	r.t.Helper()
	const patience = time.Second
	began := time.Now()
	took := r.gateway.Stop()
	if took >= patience {
		r.disturbances = append(r.disturbances, disturbance{"stop", began, time.Now()})
	}
	return took
}

// settle ends the load and waits until all is delivered. The gateway is stopped and started for it: what a clean stop leaves
// must not be sent twice. Its second run reads the points once and no more, so that the end of the log stands still.
func (r *run) settle() {
	r.t.Helper()
	r.evidence = evidence{ledgers: r.clients.finish(), roundTrip: roundTrip}
	r.awaitBacklog(100, 4*time.Minute)
	r.stop()
	r.gateway.SetConfig(strings.ReplaceAll(r.config, "every: 100ms", "every: 24h"))
	r.gateway.Start()
	time.Sleep(2500 * time.Millisecond) // the readings of the start are stored within max_delay
	r.awaitBacklog(0, time.Minute)
	r.t.Logf("stopped within %v", r.stop())
	r.evidence.records = r.stored()
	r.evidence.disturbances = r.disturbances
	r.evidence.brokers = r.brokers.read(r.t)
}

// awaitBacklog waits until every uplink is connected and has confirmed all but a few records.
func (r *run) awaitBacklog(few float64, limit time.Duration) {
	r.t.Helper()
	said := ""
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		r.gateway.MustRun()
		metrics, err := r.gateway.Metrics()
		if err != nil {
			said = err.Error()
			continue
		}
		sending, left := 0, 0.0
		for _, name := range []string{"kafka", "nats", "redis"} {
			labels := `stream="main",uplink="` + name + `"}`
			left += metrics["edge_gateway_backlog_records{"+labels]
			if metrics[`edge_gateway_uplink_state{state="sending",`+labels] == 1 {
				sending++
			}
		}
		said = fmt.Sprintf("%d uplinks connected, backlog %v records", sending, left)
		if sending == 3 && left <= few {
			return
		}
	}
	r.t.Fatalf("not delivered within %v: %s", limit, said)
}

// stored asks the log how many records it has had.
func (r *run) stored() uint64 {
	r.t.Helper()
	out, err := exec.Command(program(r.t, r.plan.tags), "inspect", "-json", filepath.Join(r.gateway.Dir, "state")).Output()
	var lanes []struct {
		Streams []struct {
			Name    string
			Records uint64
		}
	}
	if err == nil {
		err = json.Unmarshal(out, &lanes)
	}
	if err != nil || len(lanes) != 1 || len(lanes[0].Streams) != 1 {
		r.t.Fatalf("inspect: %v\n%s", err, out)
	}
	return lanes[0].Streams[0].Records
}
