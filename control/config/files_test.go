package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgegateway/control/config"
	"edgegateway/pipeline"
)

type withFiles struct {
	Password pipeline.Secret `yaml:"password"`
	Token    pipeline.Secret `yaml:"token"`
	Creds    string          `yaml:"creds_file"`
	Other    string          `yaml:"other"`
	TLS      struct {
		CA   string `yaml:"ca_file"`
		Cert string `yaml:"cert_file"`
	} `yaml:"tls"`
}

func (*withFiles) Check() []pipeline.Problem { return nil }

func TestASecretFollowsItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old\n")
	var c withFiles
	src := config.Source{
		Name: "g.yaml", Content: []byte("password_file: " + file + "\ntoken: ${T}\ncreds_file: a.creds\nother: x\ntls: {ca_file: ca.pem}\n"),
		ReadFile: os.ReadFile, Getenv: func(string) (string, bool) { return "tok", true },
	}
	if err := config.Decode(src, nil, &c); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		text, want string
		broken     bool
	}{{"old\n", "old", false}, {"new", "new", false}, {"", "new", true}, {"a\nb\n", "new", true}, {"newer", "newer", false}} {
		write(step.text)
		copied := c
		if got, err := copied.Password.Read(); got != step.want || (err != nil) != step.broken || c.Password.Reveal() != step.want {
			t.Errorf("file holds %q: got %q, %v", step.text, got, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := c.Password.Reveal(); got != "newer" {
		t.Errorf("without its file: %q, want the last good value", got)
	}
	var keys []string
	for _, f := range config.Files(&c) {
		keys = append(keys, f.Key+"="+f.Path)
	}
	want := []string{"creds_file=a.creds", "password_file=" + file, "tls.ca_file=ca.pem"}
	if !slices.Equal(keys, want) {
		t.Errorf("Files = %v, want %v", keys, want)
	}
	if got := fmt.Sprintf("%v %+v %#v", c, c, c.Password); strings.Contains(got, "newer") || strings.Contains(got, "tok ") {
		t.Errorf("the secret is shown: %s", got)
	}
}
