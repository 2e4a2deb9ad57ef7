package config_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"edgegateway/control/config"
	"edgegateway/pipeline"
)

type root struct {
	ID      string                      `yaml:"id" required:"true" doc:"Name of the gateway."`
	Port    uint16                      `yaml:"port" default:"1883" min:"1"`
	Every   time.Duration               `yaml:"every" default:"1s" min:"10ms" max:"1h"`
	Room    pipeline.Size               `yaml:"room" default:"64MiB"`
	Mode    string                      `yaml:"mode" enum:"block|drop_oldest" default:"block"`
	Secret  pipeline.Secret             `yaml:"password"`
	Factor  float64                     `yaml:"factor" default:"1"`
	On      bool                        `yaml:"on"`
	Names   []string                    `yaml:"names" max:"3"`
	Steps   []pipeline.Step             `yaml:"steps"`
	Devices map[string]config.Component `yaml:"devices" drivers:"device" keys:"name"`
	Sub     *sub                        `yaml:"sub"`
}

type sub struct {
	A int `yaml:"a" required:"true" min:"-5" max:"5"`
	B int `yaml:"b" default:"7"`
}

func (*root) Check() []pipeline.Problem { return nil }

type pump struct {
	Address string `yaml:"address" required:"true"`
	Points  []struct {
		Type string `yaml:"type" enum:"int16|uint16" default:"int16"`
	} `yaml:"points"`
}

func (p *pump) Check() []pipeline.Problem {
	if p.Address == "nowhere" {
		return []pipeline.Problem{{Path: "address", Text: "is nowhere (want a place)"}}
	}
	return nil
}

var drivers = config.Drivers{"device": {"pump": func() any { return &pump{} }}}

func decode(t *testing.T, text string) (root, error) {
	t.Helper()
	env := map[string]string{"PASS": "s3cret", "GW": "plant-7"}
	var r root
	err := config.Decode(config.Source{
		Name: "g.yaml", Content: []byte(text),
		Getenv:   func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: os.ReadFile,
	}, drivers, &r)
	return r, err
}

func TestDecodeFillsValuesAndDefaults(t *testing.T) {
	secret := t.TempDir() + "/pw"
	if err := os.WriteFile(secret, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := decode(t, `
id: ${GW}
every: 250ms
room: 2GiB
password_file: `+secret+`
names: &n [a, "b"]
devices:
  boiler: {driver: pump, address: here, points: [{type: uint16}, {}]}
sub: {a: -5}
steps:
  - throttle: {every: 1s}
  - scale: {factor: 2}
`)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := r.Devices["boiler"].Settings.(*pump)
	if !ok || r.Devices["boiler"].Driver != "pump" || p.Address != "here" || p.Points[0].Type != "uint16" || p.Points[1].Type != "int16" {
		t.Errorf("devices = %+v", r.Devices)
	}
	if r.ID != "plant-7" || r.Port != 1883 || r.Every != 250*time.Millisecond || r.Room != 2<<30 || r.Mode != "block" || r.Factor != 1 {
		t.Errorf("root = %+v", r)
	}
	if r.Secret.Reveal() != "from-file" {
		t.Errorf("secret = %q", r.Secret.Reveal())
	}
	if r.Sub == nil || r.Sub.A != -5 || r.Sub.B != 7 || len(r.Names) != 2 || len(r.Steps) != 2 || r.Steps[1].Scale.Factor != 2 {
		t.Errorf("root = %+v sub %+v", r, r.Sub)
	}
}

var mistakeTests = []struct{ name, text, want string }{
	{"an unknown key names the nearest one", "id: a\nprot: 1\n", `g.yaml:2:1: prot: unknown key "prot": did you mean "port"?`},
	{"an unknown key deep inside", "id: a\nsub:\n  a: 1\n  c: 2\n", `g.yaml:4:3: sub.c: unknown key "c": want one of a, b`},
	{"a missing key", "port: 1\n", `g.yaml:1:1: id: is missing (want name of the gateway)`},
	{"a missing key of a section", "id: a\nsub: {b: 1}\n", `g.yaml:2:1: sub.a: is missing`},
	{"text for a number", "id: a\nport: high\n", `g.yaml:2:7: port: want a whole number, got text`},
	{"a number for text", "id: 7\n", `g.yaml:1:5: id: want text, got a number (put it in quotes: "7")`},
	{"a fraction for a whole number", "id: a\nport: 1.5\n", `g.yaml:2:7: port: want a whole number, got 1.5`},
	{"a number that does not fit", "id: a\nport: 70000\n", `g.yaml:2:7: port: want a whole number from 0 to 65535, got "70000"`},
	{"out of range", "id: a\nsub: {a: 6}\n", `g.yaml:2:10: sub.a: 6 is out of range (want -5 to 5)`},
	{"a duration without a unit", "id: a\nevery: 5\n", `g.yaml:2:8: every: "5" is not a duration`},
	{"a duration out of range", "id: a\nevery: 2h\n", `g.yaml:2:8: every: 2h is out of range (want 10ms to 1h)`},
	{"a size with a wrong unit", "id: a\nroom: 5MB\n", `g.yaml:2:7: room: "5MB" is not a size`},
	{"a value that is not in the list", "id: a\nmode: drop_oldset\n", `g.yaml:2:7: mode: unknown value "drop_oldset": did you mean "drop_oldest"?`},
	{"yes is not true", "id: a\non: yes\n", `g.yaml:2:5: on: want true or false, got text`},
	{"a list where a section belongs", "id: a\nsub: [1]\n", `g.yaml:2:6: sub: want the keys a, b, got a list`},
	{"a section where a list belongs", "id: a\nnames: {a: 1}\n", `g.yaml:2:9: names: want a list`},
	{"too many entries", "id: a\nnames: [a, b, c, d]\n", `g.yaml:2:8: names: has 4 entries (want at most 3)`},
	{"a secret in clear is not shown again", "id: a\npassword: hunter2\n", `g.yaml:2:11: password: a secret does not stand in the file`},
	{"an unset variable", "id: a\npassword: ${NOPE}\n", `g.yaml:2:11: password: environment variable NOPE is not set`},
	{"a missing secret file", "id: a\npassword_file: /does/not/exist\n", `g.yaml:2:16: password_file: open /does/not/exist: no such file`},
	{"an unknown driver", "id: a\ndevices:\n  b: {driver: pmup}\n", `g.yaml:3:15: devices.b.driver: there is no device driver "pmup" in this build: did you mean "pump"?`},
	{"a section without a driver", "id: a\ndevices:\n  b: {address: x}\n", `g.yaml:3:3: devices.b.driver: is missing (want one of pump)`},
	{"a name that is none", "id: a\ndevices:\n  \"b/c\": {driver: pump, address: x}\n", `g.yaml:3:3: devices.b/c: "b/c" is not a name`},
	{"a driver's own rule", "id: a\ndevices:\n  b: {driver: pump, address: nowhere}\n", `g.yaml:3:30: devices.b.address: is nowhere (want a place)`},
	{"a processor with two kinds", "id: a\nsteps:\n  - {filter: {}, throttle: {every: 1s}}\n", `g.yaml:3:6: steps[0]: a processor has exactly one of`},
	{"broken YAML", "id: [a\n", `g.yaml:1:`},
	{"the same key twice", "id: a\nid: b\n", `g.yaml:2:1: not valid YAML: mapping key "id" already defined`},
	{"an alias without anchor", "id: a\nnames: *nope\n", `g.yaml:2:8: names: there is no anchor &nope`},
	{"an empty file", "", `g.yaml: the file is empty`},
	{"an empty value of a required key", "id:\n", `g.yaml:1:5: id: has no value (want name of the gateway)`},
	{"two documents", "id: a\n---\nid: b\n", `g.yaml:3:1: the file holds a second document`},
}

func TestDecodeMistakes(t *testing.T) {
	for _, tt := range mistakeTests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := decode(t, tt.text)
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got  %s\nwant %s…", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the secret is shown: %s", err)
			}
		})
	}
}

func TestDecodeFindsAllMistakesInOrder(t *testing.T) {
	_, err := decode(t, "port: x\nevery: 1\nfoo: 2\nsub: {a: 9}\n")
	errs, ok := errors.AsType[config.Errors](err)
	if !ok || len(errs) != 5 {
		t.Fatalf("got %d errors: %v", len(errs), err)
	}
	for i := 1; i < len(errs); i++ {
		if errs[i].Line < errs[i-1].Line {
			t.Errorf("not in the order of the file:\n%v", err)
		}
	}
}

func TestSchemaHasDefaultsAndDrivers(t *testing.T) {
	text, err := config.Schema("t", drivers, root{})
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Properties map[string]struct {
			Default     any
			Description string
		}
		Required []string
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.Properties["port"].Default != float64(1883) || s.Properties["every"].Default != "1s" || len(s.Required) != 1 {
		t.Errorf("schema: %s", text)
	}
	for _, want := range []string{`"password_file"`, `"const": "pump"`, `"minimum": -5`, `"enum": [`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("schema has no %s:\n%s", want, text)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, tt := range mistakeTests {
		f.Add(tt.text)
	}
	f.Add("id: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		var r root
		err := config.Decode(config.Source{
			Name: "f", Content: []byte(text),
			Getenv:   func(string) (string, bool) { return "", false },
			ReadFile: func(string) ([]byte, error) { return nil, errors.New("none") },
		}, drivers, &r)
		if errs, ok := errors.AsType[config.Errors](err); err != nil && (!ok || len(errs) == 0) {
			t.Errorf("error without a mistake: %v", err)
		}
	})
}
