// Command gateway is the Edge Gateway daemon and its tools; it is installed as edge-gateway.
//
//	edge-gateway run -c FILE       run the gateway
//	edge-gateway check FILE        find every mistake of a config file
//	edge-gateway schema            print the config's JSON Schema
//	edge-gateway inspect DIR       show what a log directory holds, also a running gateway's
//	edge-gateway verify DIR        read all of a log and list what is wrong with it
//	edge-gateway salvage DIR       make a damaged log one that opens, and say what that costs
//	edge-gateway export DIR        write the records of a stream as JSON lines
//	edge-gateway status            show how a running gateway's uplinks do
//	edge-gateway deadletters …     list, show, send again and purge what far brokers refused for good
//	edge-gateway pause UPLINK      hold an uplink's records back; resume lets them go again
//	edge-gateway release UPLINK    give up what the log keeps for an uplink that was taken out of the config
//	edge-gateway choose …          say what to believe where a far cursor does not fit the log
//	edge-gateway probe UPLINK      try an uplink out and say in plain words what is wrong
//	edge-gateway hash-password     read a password, print its hash for the config
//	edge-gateway version
//
// The data path starts in daemon.go, where the parts are tied together: device → pipeline → wal → uplink.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"edgegateway/control/config"
	"edgegateway/wal"
)

// Exit codes, as the man page lists them.
const (
	exitOK      = 0
	exitOther   = 1 // anything not below
	exitUsage   = 2 // wrong command line
	exitDamaged = 3 // a log is damaged
	exitIO      = 4 // a file or folder cannot be read or written
	exitLocked  = 5 // another process has the log
	exitConfig  = 6 // mistakes in the config file

	exitHelp = -1 // help was asked for, and given: exitOK for the caller
)

const defaultConfig = "/etc/edge-gateway/gateway.yaml"

const usage = `usage: edge-gateway COMMAND

  run -c FILE [-log-level LEVEL]   run the gateway (levels: debug, info, warn, error)
  check FILE                       find every mistake of a config file
  schema                           print the JSON Schema of the config file
  inspect [-json] DIR              show what a log directory holds, also a running gateway's
  verify [-json] DIR               read all of a log and list what is wrong with it
  salvage [-dry-run] DIR           make a damaged log one that opens, and say what that costs
  export -stream NAME [-from N] [-to N] [-out FILE] DIR
                                   write the records of a stream as JSON lines
  status [-json]                   show how the uplinks do, and what needs a person
  deadletters list [-json] [UPLINK [STREAM]]
                                   list what far brokers refused for good
  deadletters show [-json] ID      show one of them whole
  deadletters resend [-json] ID…   send them again; -all [UPLINK [STREAM]] for all
  deadletters purge [-json] ID…    give them up; -all [-before TIME] [UPLINK [STREAM]] for all
  pause UPLINK                     hold its records back in the log, also over a restart
  resume UPLINK                    let them go again
  release [-yes] [-json] UPLINK [STREAM]
                                   give up what the log keeps for an uplink that is not in the config any more
  choose UPLINK STREAM resume|restart
                                   say what to believe where a far cursor does not fit the log
  probe [-stream NAME] [-json] UPLINK
                                   try an uplink out and say in plain words what is wrong
  hash-password                    read a password, print its hash for the config
  version                          print the version
  help COMMAND                     say more of a command

The commands from status to probe take -c FILE, the config file of the gateway.
Exit codes: 0 done, 1 not done, 2 wrong command line, 3 damaged log, 4 file cannot be read or written, 5 log in use, 6 mistakes in the config.
`

// usageOf returns what usage says of a command.
func usageOf(name string) string {
	var b strings.Builder
	b.WriteString("usage:\n")
	mine := false
	for line := range strings.Lines(usage) {
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "   "): // goes on
		case strings.HasPrefix(line, "  "):
			mine = words[0] == name
		default:
			mine = false
		}
		if mine {
			b.WriteString(strings.Replace(line, "  "+name, "  edge-gateway "+name, 1))
		}
	}
	return b.String()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs one command line and returns the exit code.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[0] == "help" {
		args = []string{args[1], "-help"}
	}
	code := dispatch(ctx, args, stdin, stdout, stderr)
	if code == exitHelp {
		return exitOK
	}
	return code
}

func dispatch(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	flags := flag.NewFlagSet("edge-gateway "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		if slices.ContainsFunc(args[1:], isHelp) {
			flags.SetOutput(stdout)
		}
		fmt.Fprint(flags.Output(), usageOf(args[0]))
		flags.PrintDefaults()
	}
	var err error
	switch args[0] {
	case "run":
		file := flags.String("c", defaultConfig, "config `file`")
		level := flags.String("log-level", "info", "lowest `level` that is logged")
		if code := parse(flags, args[1:], 0, stderr); code != exitOK {
			return code
		}
		err = runGateway(ctx, *file, *level, stderr)
	case "check":
		if code := parse(flags, args[1:], 1, stderr); code != exitOK {
			return code
		}
		if _, err = loadConfig(flags.Arg(0)); err == nil {
			fmt.Fprintf(stdout, "%s: ok\n", flags.Arg(0))
		}
	case "schema":
		if code := parse(flags, args[1:], 0, stderr); code != exitOK {
			return code
		}
		var text []byte
		if text, err = config.Schema("Edge Gateway", drivers, Config{}); err == nil {
			fmt.Fprintf(stdout, "%s\n", text)
		}
	case "inspect":
		asJSON := flags.Bool("json", false, "print JSON")
		if code := parse(flags, args[1:], 1, stderr); code != exitOK {
			return code
		}
		err = inspect(flags.Arg(0), *asJSON, stdout)
	case "verify":
		asJSON := flags.Bool("json", false, "print JSON")
		if code := parse(flags, args[1:], 1, stderr); code != exitOK {
			return code
		}
		err = verify(flags.Arg(0), *asJSON, stdout, stderr)
	case "salvage":
		dryRun := flags.Bool("dry-run", false, "only say what would be done")
		if code := parse(flags, args[1:], 1, stderr); code != exitOK {
			return code
		}
		err = salvage(flags.Arg(0), *dryRun, stdout, stderr)
	case "export":
		var sel wal.Selection
		flags.StringVar(&sel.Stream, "stream", "", "`name` of the stream")
		flags.Uint64Var(&sel.From, "from", 0, "first `sequence`; 0: the oldest")
		flags.Uint64Var(&sel.To, "to", 0, "last `sequence`; 0: the newest")
		out := flags.String("out", "", "new `file` to write to; standard output where it is missing")
		if code := parse(flags, args[1:], 1, stderr); code != exitOK {
			return code
		}
		err = export(flags.Arg(0), sel, *out, stdout, stderr)
	case "status", "deadletters", "pause", "resume", "release", "choose", "probe":
		o := operator{flags: flags, args: args[1:], stdout: stdout, stderr: stderr}
		var code int
		if code, err = o.run(ctx, args[0]); code != exitOK {
			return code
		}
	case "hash-password":
		if code := parse(flags, args[1:], 0, stderr); code != exitOK {
			return code
		}
		err = hashPassword(stdin, stdout, stderr)
	case "version":
		fmt.Fprintf(stdout, "edge-gateway %s %s/%s %s\n", version(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "edge-gateway: there is no command %q\n%s", args[0], usage)
		return exitUsage
	}
	code := exitCode(err)
	switch {
	case code == exitConfig: // the file comes first in each line, as editors and CI want it
		fmt.Fprintln(stderr, err)
	case err != nil:
		fmt.Fprintf(stderr, "edge-gateway: %v\n", err)
	}
	return code
}

func isHelp(arg string) bool {
	return strings.TrimLeft(arg, "-") == "help" || arg == "-h" || arg == "--h"
}

// parse reads a command's flags, before and behind its arguments, of which it wants so many.
func parse(flags *flag.FlagSet, args []string, want int, stderr io.Writer) int {
	return parseRange(flags, args, want, want, stderr)
}

// parseRange is parse for a command with arguments that may be left out.
func parseRange(flags *flag.FlagSet, args []string, least, most int, stderr io.Writer) int {
	var plain []string
	for {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return exitHelp
			}
			return exitUsage
		}
		if flags.NArg() == 0 {
			break
		}
		plain, args = append(plain, flags.Arg(0)), flags.Args()[1:]
	}
	if err := flags.Parse(append([]string{"--"}, plain...)); err != nil {
		return exitUsage
	}
	if n := flags.NArg(); n < least || n > most {
		want := strconv.Itoa(least)
		if most > least {
			want = fmt.Sprintf("%d to %d", least, most)
		}
		_, name, _ := strings.Cut(flags.Name(), " ")
		fmt.Fprintf(stderr, "%s: want %s arguments, got %d\n%s", flags.Name(), want, n, usageOf(name))
		return exitUsage
	}
	if i := slices.Index(flags.Args(), ""); i >= 0 {
		fmt.Fprintf(stderr, "%s: argument %d is empty\n", flags.Name(), i+1)
		return exitUsage
	}
	return exitOK
}

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if _, ok := errors.AsType[config.Errors](err); ok {
		return exitConfig
	}
	if errors.Is(err, wal.ErrLocked) {
		return exitLocked
	}
	if errors.Is(err, wal.ErrDamaged) || errors.Is(err, wal.ErrVersion) {
		return exitDamaged
	}
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return exitIO
	}
	return exitOther
}

func runGateway(ctx context.Context, file, level string, stderr io.Writer) error {
	var lowest slog.Level
	if err := lowest.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("-log-level: %w (want debug, info, warn or error)", err)
	}
	options := &slog.HandlerOptions{Level: lowest}
	if os.Getenv("JOURNAL_STREAM") != "" { // the journal has the time
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	c, err := loadConfig(file)
	if err != nil {
		return err
	}
	g, err := newGateway(c, slog.New(slog.NewTextHandler(stderr, options)))
	if err != nil {
		return err
	}
	return g.run(ctx)
}

// version is what the build was given with -ldflags, or the module's version.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

var buildVersion string // set by the Makefile: -X main.buildVersion=…

// hashPassword reads one line. The password is never an argument, where every user of the machine could read it.
func hashPassword(stdin io.Reader, stdout, stderr io.Writer) error {
	fmt.Fprint(stderr, "password: ")
	line, err := bufio.NewReader(io.LimitReader(stdin, 4096)).ReadString('\n')
	if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
		return fmt.Errorf("read the password: %w", err)
	}
	hash, err := makeHash(strings.TrimRight(line, "\r\n"))
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, hash)
	return nil
}
