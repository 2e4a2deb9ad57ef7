package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "edgegateway"

// allowed says what of ours and of the outside each package may import, besides the standard library. This is the import
// rule of docs/ARCHITECTURE.md. Every package has a line, a new one too.
var allowed = map[string]struct{ ours, outside []string }{
	"pipeline":       {},
	"wal":            {outside: []string{"github.com/klauspost/compress", "go.etcd.io/bbolt", "golang.org/x/sys"}},
	"device":         {ours: []string{"pipeline"}},
	"device/modbus":  {ours: []string{"device", "pipeline"}, outside: []string{"github.com/simonvetter/modbus", "golang.org/x/sys"}},
	"device/mqtt":    {ours: []string{"device", "pipeline"}, outside: []string{"github.com/mochi-mqtt/server/v2", "golang.org/x/crypto", "golang.org/x/sys"}},
	"uplink":         {ours: []string{"pipeline", "wal"}},
	"uplink/kafka":   {ours: []string{"uplink", "pipeline"}, outside: []string{"github.com/twmb/franz-go"}},
	"uplink/nats":    {ours: []string{"uplink", "pipeline"}, outside: []string{"github.com/nats-io/nats.go"}},
	"uplink/pulsar":  {ours: []string{"uplink", "pipeline"}, outside: []string{"github.com/apache/pulsar-client-go", "github.com/prometheus/client_golang"}},
	"uplink/redis":   {ours: []string{"uplink", "pipeline"}, outside: []string{"github.com/redis/go-redis/v9"}},
	"control":        {ours: []string{"device", "uplink", "wal", "pipeline"}, outside: []string{"github.com/prometheus/client_golang"}},
	"control/config": {ours: []string{"pipeline"}, outside: []string{"github.com/goccy/go-yaml"}},
	"packaging/deb":  {},
	"webui":          {ours: []string{"control", "pipeline", "device"}, outside: []string{"github.com/go-chi/chi/v5", "github.com/prometheus/client_golang", "golang.org/x/crypto", "maragu.dev/gomponents"}},
}

// owners are the functions that write `go` (or WaitGroup.Go). Each waits for what it started, or the type it belongs to
// does where the comment says.
var owners = []string{
	"cmd/gateway: (*gateway).run",
	"cmd/gateway: (*gateway).start",        // attached.end waits
	"device/modbus: (*link).keepConnected", // link.Run waits, in shut
	"device/modbus: dial",                  // conn.close waits
	"device/mqtt: (*Broker).Run",
	"device/mqtt: (*guard).admit",  // guard.Close waits
	"device/mqtt: (*guard).handle", // guard.Close waits
	"uplink: (*LiveFirst).Run",
	"uplink: (*Runner).session",
	"uplink/kafka: (*Config).openExact", // exact.Close waits
	"uplink/kafka: (*exact).launch",     // exact.Close waits
	"uplink/kafka: (*exact).look",
	"uplink/kafka: (*exact).open", // exact.Close waits
	"uplink/kafka: (*exact).pump", // exact.Close waits
	"uplink/kafka: (*link).ask",
	"uplink/kafka: (*session).launch",       // session.Close waits
	"uplink/nats: (*batchSession).answer",   // ends with the session's context
	"uplink/pulsar: (*Config).signInOAuth2", // ends with the library's timeout
	"uplink/pulsar: (*exactSession).open",   // link.hangUp waits
	"uplink/pulsar: (*link).do",             // link.hangUp waits, or the goroutine that goes on when its time is up
	"uplink/pulsar: (*link).hangUp",         // for a bounded time; what is left ends with the library's timeout
	"uplink/pulsar: (*link).lastMessage",    // link.hangUp waits
	"uplink/pulsar: (*link).together",
	"uplink/pulsar: (*notes).listen", // exactSession.Close waits; what gives the topic up ends with the library's timeout
	"uplink/pulsar: (*session).cut",  // session.Close waits
	"uplink/pulsar: (*tail).from",    // link.hangUp waits
	"uplink/redis: (*sentinels).master",
	"uplink/redis: (*session).connect", // session.Close waits
	"uplink/redis: (*session).launch",  // session.Close waits
	"wal: (*Log).prepare",              // the committer waits, at the latest in end
	"wal: Open",                        // Log.Close waits
	"webui: (*Server).Run",
}

// goPackage is what `go list -json` says of a package.
type goPackage struct {
	ImportPath string
	Dir        string
	Doc        string
	Imports    []string
	GoFiles    []string
}

func goList(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var packages []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func under(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

func TestImportRule(t *testing.T) {
	for _, p := range goList(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if under(name, []string{"cmd", "test", "uplink/uplinktest"}) {
			continue
		}
		rule, ok := allowed[name]
		if !ok {
			t.Errorf("%s has no line in the import rule", name)
			continue
		}
		for _, imported := range p.Imports {
			ours, isOurs := strings.CutPrefix(imported, module+"/")
			switch {
			case isOurs && !slices.Contains(rule.ours, ours):
				t.Errorf("%s imports %s", name, ours)
			case !isOurs && strings.Contains(strings.SplitN(imported, "/", 2)[0], ".") && !under(imported, rule.outside):
				t.Errorf("%s imports %s", name, imported)
			}
		}
	}
}

func TestEveryPackageHasADocThatNamesIt(t *testing.T) {
	for _, p := range goList(t, "./...") {
		if len(p.GoFiles) > 0 && !strings.HasPrefix(p.Doc, "Package ") && !strings.HasPrefix(p.Doc, "Command ") {
			t.Errorf("%s has no package doc", p.ImportPath)
		}
	}
}

// driverModules names what must be gone from the build when a driver is left out.
var driverModules = map[string]string{
	"modbus": "github.com/simonvetter/modbus",
	"mqtt":   "github.com/mochi-mqtt/server/v2",
	"kafka":  "github.com/twmb/franz-go",
	"nats":   "github.com/nats-io/nats.go",
	"pulsar": "github.com/apache/pulsar-client-go",
	"redis":  "github.com/redis/go-redis/v9",
}

func TestEachDriverCanBeLeftOut(t *testing.T) {
	files, err := filepath.Glob("with_*.go")
	if err != nil || len(files) != len(driverModules) {
		t.Fatalf("%d files with_*.go, %d drivers known (%v)", len(files), len(driverModules), err)
	}
	for name, mod := range driverModules {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "no_"+name, "-o", os.DevNull, ".")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("build with no_%s: %v\n%s", name, err, out)
			}
			for _, p := range goList(t, "-deps", "-tags", "no_"+name, "./cmd/gateway") {
				if p.ImportPath == mod || strings.HasPrefix(p.ImportPath, mod+"/") {
					t.Errorf("built with no_%s and still linked: %s", name, p.ImportPath)
				}
			}
		})
	}
}

func TestNothingOfTheTestsIsLinkedIntoTheGateway(t *testing.T) {
	for _, p := range goList(t, "-deps", "./cmd/gateway") {
		if strings.HasPrefix(p.ImportPath, module+"/test") || strings.Contains(p.ImportPath, "nats-server") {
			t.Errorf("linked: %s", p.ImportPath)
		}
		if strings.HasPrefix(p.ImportPath, module) && slices.Contains(p.Imports, "testing") { // a library of Pulsar's has it in, too
			t.Errorf("%s imports testing", p.ImportPath)
		}
	}
}

// TestNoTextTemplateIsLinked looks into the binary and not at the imports: gomponents imports html/template for a function
// that escapes, which is harmless. What costs megabytes is the code that carries out a template.
func TestNoTextTemplateIsLinked(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "gateway")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is shipped
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", binary).Output()
	if err != nil {
		t.Fatalf("go tool nm: %v", err)
	}
	if !bytes.Contains(symbols, []byte(" T main.main\n")) {
		t.Fatal("the list of symbols lacks main.main")
	}
	if bytes.Contains(symbols, []byte(" text/template.(*state).")) {
		t.Error("the gateway can carry out text/template: the linker then keeps every exported method, 8 MB of them " +
			"(docs/adr/0009-page-without-templates.md)")
	}
}

// TestOwnersOfGoStatements keeps the list of who starts goroutines, so that a new one is a decision and not an accident.
func TestOwnersOfGoStatements(t *testing.T) {
	found := map[string]bool{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if name == "test" || name == "build" || strings.HasPrefix(d.Name(), ".") && name != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(name, "uplinktest") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && startsGoroutine(f) {
				found[filepath.ToSlash(filepath.Dir(name))+": "+funcName(f)] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Sorted(maps.Keys(found)) {
		if !slices.Contains(owners, f) {
			t.Errorf("%s starts a goroutine and is not in the list of owners", f)
		}
	}
	for _, f := range owners {
		if !found[f] {
			t.Errorf("%s is in the list of owners and starts no goroutine", f)
		}
	}
}

func startsGoroutine(f *ast.FuncDecl) bool {
	starts := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.GoStmt:
			starts = true
		case *ast.CallExpr:
			sel, ok := x.Fun.(*ast.SelectorExpr)
			if ok && sel.Sel.Name == "Go" && len(x.Args) == 1 {
				starts = true
			}
		}
		return !starts
	})
	return starts
}

func funcName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	switch x := f.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if id, ok := x.X.(*ast.Ident); ok {
			return "(*" + id.Name + ")." + f.Name.Name
		}
	case *ast.Ident:
		return x.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
