package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"edgegateway/pipeline"
)

// scalar decodes a single value.
func (d *decoder) scalar(n ast.Node, v reflect.Value, path string, f field) {
	d.positions[path] = position(n) // closer than the key's
	text, isText, ok := scalarText(n)
	if !ok {
		d.add(position(n), path, "want %s, got %s", kindName(v.Type()), describe(n))
		return
	}
	if v.Type() == secretType {
		d.secret(n, text, v, path, f)
		return
	}
	if name, isEnv := envName(text); isEnv && isText {
		value, set := d.src.Getenv(name)
		if !set {
			d.add(position(n), path, "environment variable %s is not set", name)
			return
		}
		text = value
	} else if reason := wrongKind(n, v, isText); reason != "" {
		d.add(position(n), path, "%s", reason)
		return
	}
	if err := setText(v, text); err != nil {
		d.add(position(n), path, "%s", err.Error())
		return
	}
	d.ranges(n, v, path, f, text)
}

// wrongKind says what is wrong with a value of another type than the field's: YAML's `yes: no` and `id: 007` are not texts.
func wrongKind(n ast.Node, v reflect.Value, isText bool) string {
	// Durations and sizes are texts in YAML, though 0 needs no unit.
	asText := v.Kind() == reflect.String || v.Type() == durationType || v.Type() == sizeType
	switch {
	case v.Kind() == reflect.String && !isText:
		return "want text, got " + describe(n) + ` (put it in quotes: "` + n.GetToken().Value + `")`
	case !asText && isText:
		return "want " + kindName(v.Type()) + ", got text"
	case v.Kind() == reflect.Bool:
		if _, ok := n.(*ast.BoolNode); !ok {
			return "want true or false, got " + describe(n)
		}
	case v.CanInt() || v.CanUint():
		if _, isFloat := n.(*ast.FloatNode); isFloat {
			return "want " + kindName(v.Type()) + ", got " + n.GetToken().Value
		}
	}
	if _, isBool := n.(*ast.BoolNode); isBool && v.Kind() != reflect.Bool {
		return "want " + kindName(v.Type()) + ", got true or false"
	}
	return ""
}

func scalarText(n ast.Node) (text string, isText, ok bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true, true
	case *ast.LiteralNode:
		return x.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, false, true
	default:
		return "", false, false
	}
}

// envName recognizes ${NAME} as a whole value.
func envName(s string) (string, bool) {
	if name, ok := strings.CutPrefix(s, "${"); ok {
		if name, ok := strings.CutSuffix(name, "}"); ok && name != "" && !strings.ContainsAny(name, "${} ") {
			return name, true
		}
	}
	return "", false
}

func (d *decoder) ranges(n ast.Node, v reflect.Value, path string, f field, text string) {
	if len(f.enum) > 0 && !slices.Contains(f.enum, text) {
		d.add(position(n), path, "unknown value %q: %s", text, known(text, f.enum))
		return
	}
	for _, bound := range []struct {
		limit, text string
		sign        int
	}{{f.min, "at least", -1}, {f.max, "at most", 1}} {
		if bound.limit == "" {
			continue
		}
		limit := reflect.New(v.Type()).Elem()
		if err := setText(limit, bound.limit); err != nil {
			panic("config: range of " + path + ": " + err.Error())
		}
		if compare(v, limit) == bound.sign {
			d.add(position(n), path, "%s is out of range (want %s)", text, wantRange(f))
			return
		}
	}
}

func wantRange(f field) string {
	switch {
	case f.max == "":
		return "at least " + f.min
	case f.min == "":
		return "at most " + f.max
	default:
		return f.min + " to " + f.max
	}
}

func compare(a, b reflect.Value) int {
	switch {
	case a.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	default:
		return cmp.Compare(len(a.String()), len(b.String()))
	}
}

// secret takes ${NAME} only. What stands in the file in clear is refused without being shown again.
func (d *decoder) secret(n ast.Node, text string, v reflect.Value, path string, f field) {
	name, isEnv := envName(text)
	if !isEnv {
		d.add(position(n), path, "a secret does not stand in the file (want %s)", f.wants())
		return
	}
	value, set := d.src.Getenv(name)
	if !set {
		d.add(position(n), path, "environment variable %s is not set", name)
		return
	}
	v.Set(reflect.ValueOf(pipeline.NewSecret(value)))
}

func (d *decoder) secretFile(n ast.Node, v reflect.Value, path string, depth int) {
	if n = d.resolve(n, path, depth); n == nil {
		return
	}
	file, isText, ok := scalarText(n)
	if !ok || !isText {
		d.add(position(n), path, "want the path of a file, got %s", describe(n))
		return
	}
	readFile := d.src.ReadFile
	secret, err := pipeline.FileSecret(file, func() (string, error) {
		content, err := readFile(file)
		if err != nil {
			return "", fmt.Errorf("%w (want a file that holds the secret alone)", err)
		}
		value := strings.TrimRight(string(content), "\r\n")
		if value == "" || strings.ContainsAny(value, "\r\n") {
			return "", fmt.Errorf("%s holds no secret (want one line)", file)
		}
		return value, nil
	})
	if err != nil {
		d.add(position(n), path, "%v", err)
		return
	}
	v.Set(reflect.ValueOf(secret))
}
