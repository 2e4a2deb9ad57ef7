// Command plant shows the gateway at work on one machine, with nothing else installed: a boiler on Modbus TCP, a packaging
// line that publishes over MQTT, and a NATS JetStream server as the far broker. It starts the gateway beside them.
//
//	plant run [-once] GATEWAY-BINARY   run all of it until Ctrl-C (with -once: until the first confirmed record)
//	plant watch                        print what arrives at the far broker
//	plant publish TOPIC PAYLOAD        publish to the gateway's local broker
//
// Everything it keeps is in the folder .run of the working directory; the next run goes on where the last one was.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "plant:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want run, watch or publish")
	}
	switch args[0] {
	case "run":
		flags := flag.NewFlagSet("plant run", flag.ContinueOnError)
		once := flags.Bool("once", false, "stop after the first confirmed record")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() != 1 {
			return errors.New("run: want the path of the gateway's binary")
		}
		return run(ctx, flags.Arg(0), *once)
	case "watch":
		s, err := loadSettings()
		if err != nil {
			return err
		}
		return watch(ctx, s.address(s.NATS), func(subject, line string) { fmt.Println(subject, line) })
	case "publish":
		if len(args) != 3 {
			return errors.New("publish: want a topic and a payload")
		}
		return publish(ctx, args[1], args[2])
	default:
		return fmt.Errorf("there is no command %q (want run, watch or publish)", args[0])
	}
}

func publish(ctx context.Context, topic, payload string) error {
	s, err := loadSettings()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := connectMQTT(ctx, s.address(s.MQTT), "demo", s.Password)
	if err != nil {
		return err
	}
	if err := c.AwaitConnection(ctx); err != nil {
		return fmt.Errorf("the gateway's broker on %s does not answer: is `make run` running?", s.address(s.MQTT))
	}
	answer, err := c.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: []byte(payload)})
	if err != nil {
		return err
	}
	fmt.Printf("acknowledged after it was on stable storage (reason code %#x)\n", answer.ReasonCode)
	return c.Disconnect(ctx)
}

// run starts everything, says how to use it, and stops everything.
func run(ctx context.Context, binary string, once bool) error {
	began := time.Now()
	s, err := makeSettings()
	if err != nil {
		return err
	}
	far, err := startNATS(s.NATS, runDir+"/nats")
	if err != nil {
		return err
	}
	defer func() { far.Shutdown(); far.WaitForShutdown() }()
	nc, js, err := connectJetStream(s.address(s.NATS))
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := makeFarStream(ctx, js); err != nil {
		return err
	}
	b := &boiler{water: 64, outside: 4}
	stopBoiler, err := serveBoiler(b, s.address(s.Modbus))
	if err != nil {
		return fmt.Errorf("the boiler cannot be served: %w", err)
	}
	defer stopBoiler() //nolint:errcheck // nothing is left to do then

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { b.run(ctx) })

	gw, err := startGateway(binary)
	if err != nil {
		return err
	}
	parts.Go(func() { stop(gw.wait()) })
	defer gw.stop()
	client, err := connectMQTT(ctx, s.address(s.MQTT), "line1", s.Password)
	if err != nil {
		return err
	}
	parts.Go(func() { publishLine(ctx, client) })

	parts.Go(func() {
		err := watch(ctx, s.address(s.NATS), func() func(string, string) {
			first := true
			return func(string, string) {
				if !first {
					return
				}
				first = false
				fmt.Printf("\nfirst record confirmed by the far broker %.1f s after the start\n", time.Since(began).Seconds())
				if once {
					stop(context.Canceled)
				}
			}
		}())
		if err != nil && ctx.Err() == nil {
			stop(err)
		}
	})
	if !once {
		gw.introduce(ctx, s)
	}
	<-ctx.Done()
	fmt.Println("\nstopping; everything that was acknowledged is kept in .run and goes on with the next `make run`")
	return context.Cause(ctx)
}

// gatewayProcess is the gateway, a process group of its own so that Ctrl-C reaches it through us, after its clients.
type gatewayProcess struct {
	cmd   *exec.Cmd
	log   *os.File
	lines sync.WaitGroup

	page chan pageLine
	done chan struct{}
	err  error // of the process; read after done
}

type pageLine struct{ url, code string }

func startGateway(binary string) (*gatewayProcess, error) {
	log, err := os.OpenFile(runDir+"/gateway.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	g := &gatewayProcess{cmd: exec.Command(binary, "run", "-c", configFile), log: log, page: make(chan pageLine, 1), done: make(chan struct{})}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	stderr, err := g.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	g.lines.Go(func() { g.follow(stderr) })
	return g, nil
}

var pagePattern = regexp.MustCompile(`msg="page (?:is served|waits[^"]*)".* url=(\S+)(?: setup_code=(\S+))?`)

// follow keeps the gateway's log lines and finds the page's address in them.
func (g *gatewayProcess) follow(stderr io.Reader) {
	scanner := bufio.NewScanner(stderr)
	for scanner.Scan() {
		fmt.Fprintln(g.log, scanner.Text())
		if m := pagePattern.FindStringSubmatch(scanner.Text()); m != nil {
			select {
			case g.page <- pageLine{m[1], m[2]}:
			default:
			}
		}
	}
}

func (g *gatewayProcess) wait() error {
	g.lines.Wait()
	g.err = g.cmd.Wait()
	close(g.done)
	if g.err != nil {
		return fmt.Errorf("the gateway ended (%w); see .run/gateway.log", g.err)
	}
	return errors.New("the gateway ended; see .run/gateway.log")
}

// stop ends the gateway and waits for it.
func (g *gatewayProcess) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-g.done:
	case <-time.After(5 * time.Second):
		_ = g.cmd.Process.Kill()
		<-g.done
	}
	_ = g.log.Close()
}

// introduce prints the five lines that a newcomer needs.
func (g *gatewayProcess) introduce(ctx context.Context, s *settings) {
	var page pageLine
	select {
	case page = <-g.page:
	case <-ctx.Done():
		return
	case <-time.After(20 * time.Second):
		page.url = "(not served; see .run/gateway.log)"
	}
	code := page.code
	if code == "" {
		code = "not needed any more, the page has its password (begin anew: rm -r .run)"
	}
	fmt.Printf(`
  page     %s
  code     %s
  publish  mosquitto_pub -p %d -u demo -P %s -q 1 -t line1/note -m 42     (or: build/plant publish line1/note 42)
  watch    build/plant watch
  stop     Ctrl-C
`, page.url, code, s.MQTT, s.Password)
}
