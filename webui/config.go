package webui

import (
	"fmt"
	"net"
	"strings"
	"time"

	"edgegateway/pipeline"
)

// Config is the section `page` of the config file.
type Config struct {
	Listen      string        `yaml:"listen" default:"127.0.0.1:8080" doc:"Address and port of the page; 0.0.0.0:8080 opens it to the network, where sign-in travels unencrypted."`
	Hosts       []string      `yaml:"hosts" doc:"Further names under which the page may be reached; IP addresses, localhost and the machine's own name always work."`
	SessionIdle time.Duration `yaml:"session_idle" default:"30m" min:"1m" max:"24h" doc:"Time without an open page after which a sign-in ends."`
	SessionMax  time.Duration `yaml:"session_max" default:"12h" min:"5m" max:"720h" doc:"Time after which a sign-in ends in any case."`
	MetricsOpen bool          `yaml:"metrics_open" default:"false" doc:"Give /metrics to everybody who reaches the port; otherwise only to this machine and to who has signed in."`
}

// Check implements pipeline.Checker.
func (c Config) Check() []pipeline.Problem {
	var problems []pipeline.Problem
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		problems = append(problems, pipeline.Problem{
			Path: "listen",
			Text: fmt.Sprintf("%q is not an address with a port (want something like 127.0.0.1:8080)", c.Listen),
		})
	}
	for i, h := range c.Hosts {
		if h == "" || strings.ContainsAny(h, "/:*@ ") {
			problems = append(problems, pipeline.Problem{
				Path: fmt.Sprintf("hosts[%d]", i),
				Text: fmt.Sprintf("%q is not a host name (want a name without scheme, port or path, such as gateway.plant.example)", h),
			})
		}
	}
	if c.SessionMax < c.SessionIdle {
		problems = append(problems, pipeline.Problem{
			Path: "session_max",
			Text: fmt.Sprintf("is shorter than session_idle (want at least %s)", c.SessionIdle),
		})
	}
	return problems
}
