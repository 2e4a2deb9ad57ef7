package mqtt

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"edgegateway/device"
	"edgegateway/pipeline"
)

// Config is the section of a local MQTT broker in the config file. Nobody may sign in, publish or subscribe but those it
// names.
type Config struct {
	Listen         string          `yaml:"listen" default:"127.0.0.1:1883" doc:"Address and port the broker listens on; 0.0.0.0:1883 for all networks."`
	Users          map[string]User `yaml:"users" doc:"Users by name."`
	Anonymous      *Access         `yaml:"anonymous" doc:"Rights of clients without a user name. Without this key there is no anonymous access."`
	MaxPacket      pipeline.Size   `yaml:"max_packet" default:"256KiB" min:"1KiB" max:"256KiB" doc:"Largest packet a client may send."`
	MaxConnections int             `yaml:"max_connections" default:"200" min:"1" max:"10000" doc:"Connections at a time, signed in or not."`
	ReceiveMaximum int             `yaml:"receive_maximum" default:"1024" min:"1" max:"65535" doc:"Publishes of one client that may wait for their commit at a time."`
	ConnectTimeout time.Duration   `yaml:"connect_timeout" default:"5s" min:"100ms" max:"1m" doc:"Time a connection has to sign in."`
}

// User is one user of the broker.
type User struct {
	PasswordHash string   `yaml:"password_hash" required:"true" doc:"Hash of the password, bcrypt or argon2id, as 'edge-gateway hash-password' prints it."`
	Publish      []string `yaml:"publish" doc:"Topic filters the user may publish to."`
	Subscribe    []string `yaml:"subscribe" doc:"Topic filters the user may subscribe to."`
}

// Access is what clients without a user name may do.
type Access struct {
	Publish   []string `yaml:"publish" doc:"Topic filters anybody may publish to."`
	Subscribe []string `yaml:"subscribe" doc:"Topic filters anybody may subscribe to."`
}

var (
	_ device.Driver    = Config{}
	_ pipeline.Checker = Config{}
)

// Check returns the mistakes that the tags of Config cannot tell.
func (c Config) Check() []pipeline.Problem {
	var problems []pipeline.Problem
	add := func(path, format string, args ...any) {
		problems = append(problems, pipeline.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
	}
	if host, port, err := net.SplitHostPort(c.Listen); err != nil {
		add("listen", "%q is not an address with a port (want one such as 127.0.0.1:1883)", c.Listen)
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		add("listen", "%q is not a port (want 1 to 65535)", port)
	} else if host == "" && n != 0 {
		add("listen", "the address is missing (want 127.0.0.1:%d for this machine only, 0.0.0.0:%d for all networks)", n, n)
	}
	filters := func(path string, list []string) {
		for i, f := range list {
			if text := aclFilterProblem(f); text != "" {
				add(path+"["+strconv.Itoa(i)+"]", "%s", text)
			}
		}
	}
	for _, name := range sortedNames(c.Users) {
		u, path := c.Users[name], "users."+name
		if name == "" {
			add("users", "a user has an empty name (use anonymous for clients without one)")
		}
		if _, err := parseHash(u.PasswordHash); err != nil {
			add(path+".password_hash", "%s", err)
		}
		filters(path+".publish", u.Publish)
		filters(path+".subscribe", u.Subscribe)
	}
	if c.Anonymous != nil {
		filters("anonymous.publish", c.Anonymous.Publish)
		filters("anonymous.subscribe", c.Anonymous.Subscribe)
	}
	if len(c.Users) == 0 && c.Anonymous == nil {
		add("users", "nobody can sign in (want at least one user, or anonymous)")
	}
	return problems
}

func sortedNames(users map[string]User) []string {
	names := make([]string, 0, len(users))
	for name := range users {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
