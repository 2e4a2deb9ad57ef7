package uplink

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"edgegateway/pipeline"
)

// Expand fills the placeholders {gateway}, {stream} and {uplink} of a topic, subject or key.
func Expand(template string, env Env) string {
	route := cmp.Or(env.Route, env.Stream)
	return strings.NewReplacer("{gateway}", env.Gateway, "{stream}", route, "{uplink}", env.Uplink).Replace(template)
}

// Template is a topic, subject or key that may have placeholders of a message: {topic}, {source} and {key}.
type Template struct {
	parts []string // text, placeholder, text, …
	clean func(string) string
}

// NewTemplate fills the placeholders of env. clean makes what comes from a message legal in a name at the far side.
func NewTemplate(template string, env Env, clean func(string) string) *Template {
	t := &Template{clean: clean}
	rest := Expand(template, env)
	for {
		at, name := len(rest), ""
		for _, p := range messagePlaceholders {
			if i := strings.Index(rest, p); i >= 0 && i < at {
				at, name = i, p
			}
		}
		t.parts = append(t.parts, rest[:at])
		if name == "" {
			return t
		}
		t.parts = append(t.parts, name)
		rest = rest[at+len(name):]
	}
}

var messagePlaceholders = [...]string{"{topic}", "{source}", "{key}"}

// ByMessage reports whether what Of returns depends on the message.
func (t *Template) ByMessage() bool { return len(t.parts) > 1 }

// Of fills the placeholders of a message.
func (t *Template) Of(m *pipeline.Message) string {
	if !t.ByMessage() {
		return t.parts[0]
	}
	var b strings.Builder
	for i, part := range t.parts {
		if i%2 == 0 {
			b.WriteString(part)
			continue
		}
		value := m.Topic
		switch part {
		case "{source}":
			value = m.Source
		case "{key}":
			value = m.PartitionKey()
		}
		b.WriteString(t.clean(value))
	}
	return b.String()
}

// CheckTemplate returns the mistakes of a template for Expand. path is the key of the config that holds it.
func CheckTemplate(path, template string) []pipeline.Problem {
	return checkTemplate(path, template, "{gateway}", "{stream}", "{uplink}")
}

// CheckMessageTemplate returns the mistakes of a template for NewTemplate.
func CheckMessageTemplate(path, template string) []pipeline.Problem {
	return checkTemplate(path, template, append([]string{"{gateway}", "{stream}", "{uplink}"}, messagePlaceholders[:]...)...)
}

func checkTemplate(path, template string, names ...string) []pipeline.Problem {
	last := len(names) - 1
	known := "want " + strings.Join(names[:last], ", ") + " or " + names[last]
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
		if name := rest[begin : begin+end+2]; !slices.Contains(names, name) {
			mistake("unknown placeholder %s", name)
		}
		rest = rest[begin+end+2:]
	}
}
