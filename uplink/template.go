package uplink

import (
	"cmp"
	"fmt"
	"strings"

	"edgegateway/pipeline"
)

// Expand fills the placeholders {gateway}, {stream} and {uplink} of a topic, subject or key.
func Expand(template string, env Env) string {
	route := cmp.Or(env.Route, env.Stream)
	return strings.NewReplacer("{gateway}", env.Gateway, "{stream}", route, "{uplink}", env.Uplink).Replace(template)
}

// CheckTemplate returns the mistakes of a template for Expand. path is the key of the config that holds it.
func CheckTemplate(path, template string) []pipeline.Problem {
	const known = "want {gateway}, {stream} or {uplink}"
	var problems []pipeline.Problem
	mistake := func(format string, args ...any) {
		problems = append(problems, pipeline.Problem{Path: path, Text: fmt.Sprintf(format, args...) + " (" + known + ")"})
	}
	rest := template
	for {
		begin := strings.IndexAny(rest, "{}")
		if begin < 0 {
			return problems
		}
		if rest[begin] == '}' {
			mistake("%q has a } without a {", template)
			return problems
		}
		end := strings.IndexAny(rest[begin+1:], "{}")
		if end < 0 || rest[begin+1+end] == '{' {
			mistake("%q has a { without a }", template)
			return problems
		}
		switch name := rest[begin : begin+end+2]; name {
		case "{gateway}", "{stream}", "{uplink}":
		default:
			mistake("unknown placeholder %s", name)
		}
		rest = rest[begin+end+2:]
	}
}
