package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"edgegateway/pipeline"
)

// Component is a section whose shape depends on its `driver` key. The field that holds it (or a map of it) says in its tag
// `drivers:"KIND"` in which of the tables to look the driver up.
type Component struct {
	Driver   string
	Settings any // pointer to the driver's config struct
}

// Drivers are the tables by kind ("device", "uplink") and driver name; the functions make empty config structs.
type Drivers map[string]map[string]func() any

// Source is a config file's content and what its secrets may come from.
type Source struct {
	Name    string // as it stands in error messages
	Content []byte
	Getenv  func(name string) (value string, set bool)
	// ReadFile reads a secret's file. A relative path is relative to the folder of the config file; whoever sets ReadFile
	// sees to that.
	ReadFile func(path string) ([]byte, error)
}

// Decode fills dst, a pointer to a struct, from the file, and runs Check of everything that has one. It returns nil or
// Errors with every mistake of the file; dst is of no use then.
func Decode(src Source, drivers Drivers, dst pipeline.Checker) error {
	d := &decoder{src: src, drivers: drivers, positions: map[string]*token.Position{}, anchors: map[string]ast.Node{}}
	file, err := parser.ParseBytes(src.Content, 0)
	if err != nil {
		return Errors{d.syntaxError(err)}
	}
	var body ast.Node
	if len(file.Docs) > 0 {
		body = file.Docs[0].Body
	}
	if len(file.Docs) > 1 && file.Docs[1].Body != nil {
		d.add(position(file.Docs[1].Body), "", "the file holds a second document (want one; remove \"---\")")
	}
	if body == nil {
		d.add(nil, "", "the file is empty (want at least gateway.id)")
		return d.errs
	}
	v := reflect.ValueOf(dst).Elem()
	d.node(body, v, "", field{}, 0)
	if len(d.errs) == 0 {
		d.check(reflect.ValueOf(dst), "")
	}
	if len(d.errs) > 0 {
		return d.errs.sorted()
	}
	return nil
}

type decoder struct {
	src       Source
	drivers   Drivers
	positions map[string]*token.Position // of each path that stands in the file
	anchors   map[string]ast.Node
	errs      Errors
}

// maxDepth bounds recursion through nested nodes and aliases.
const maxDepth = 40

func (d *decoder) add(pos *token.Position, path, format string, args ...any) {
	e := Error{File: d.src.Name, Path: path, Text: fmt.Sprintf(format, args...)}
	if pos != nil {
		e.Line, e.Col = pos.Line, pos.Column
	}
	d.errs = append(d.errs, e)
}

func (d *decoder) syntaxError(err error) Error {
	if s, ok := errors.AsType[*yaml.SyntaxError](err); ok && s.Token != nil {
		return Error{File: d.src.Name, Line: s.Token.Position.Line, Col: s.Token.Position.Column, Text: "not valid YAML: " + s.Message}
	}
	return Error{File: d.src.Name, Text: "not valid YAML: " + strings.TrimSpace(err.Error())}
}

// node decodes n into v. f is the field that v stands in, for its tags.
func (d *decoder) node(n ast.Node, v reflect.Value, path string, f field, depth int) {
	n = d.resolve(n, path, depth)
	if n == nil {
		return
	}
	if d.positions[path] == nil {
		d.positions[path] = position(n)
	}
	if _, isNull := n.(*ast.NullNode); isNull {
		// `processors:` with nothing behind it is what is left when a person deletes the items: the same as no key.
		if f.required {
			d.add(position(n), path, "has no value (want %s)", f.wants())
		}
		d.defaults(v, path, f)
		return
	}
	switch {
	case v.Type() == componentType:
		d.component(n, v, path, f, depth)
	case v.Type() == secretType:
		d.scalar(n, v, path, f)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.node(n, v.Elem(), path, f, depth+1)
	case v.Kind() == reflect.Struct:
		d.object(n, v, path, nil, depth)
	case v.Kind() == reflect.Map:
		d.table(n, v, path, f, depth)
	case v.Kind() == reflect.Slice:
		d.list(n, v, path, f, depth)
	default:
		d.scalar(n, v, path, f)
	}
}

func (d *decoder) resolve(n ast.Node, path string, depth int) ast.Node {
	for depth < maxDepth {
		switch x := n.(type) {
		case *ast.AnchorNode:
			d.anchors[x.Name.String()] = x.Value
			n = x.Value
		case *ast.AliasNode:
			target, ok := d.anchors[x.Value.String()]
			if !ok {
				d.add(position(n), path, "there is no anchor &%s before this place", x.Value.String())
				return nil
			}
			n = target
		case *ast.TagNode:
			d.add(position(n), path, "YAML tags such as %s are not used here", x.Start.Value)
			return nil
		default:
			return n
		}
		depth++
	}
	d.add(position(n), path, "nested too deeply (want at most %d levels)", maxDepth)
	return nil
}

// pairs returns the keys and values of a mapping.
func (d *decoder) pairs(n ast.Node, path string, want string) ([]*ast.MappingValueNode, bool) {
	switch x := n.(type) {
	case *ast.MappingNode:
		return x.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{x}, true
	default:
		d.add(position(n), path, "want %s, got %s", want, describe(n))
		return nil, false
	}
}

// object decodes a mapping into a struct. skip names keys that somebody else has dealt with.
func (d *decoder) object(n ast.Node, v reflect.Value, path string, skip []string, depth int) {
	fields := fieldsOf(v.Type())
	pairs, ok := d.pairs(n, path, "the keys "+strings.Join(keysOf(fields), ", "))
	if !ok {
		return
	}
	given := map[string]bool{}
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		at := join(path, key)
		pos := pair.Key.GetToken().Position
		d.positions[at] = pos
		if pair.Key.IsMergeKey() {
			d.add(pos, path, "merge keys (<<) are not supported; repeat the keys, or use an alias for a whole value")
			continue
		}
		if slices.Contains(skip, key) {
			continue
		}
		f, ok := fields[key]
		if base, isFile := strings.CutSuffix(key, "_file"); !ok && isFile && fields[base].isSecret() {
			f = fields[base]
			if given[f.key] {
				d.add(pos, at, "%s is given twice: as %s and as %s", base, base, key)
				continue
			}
			given[f.key] = true
			d.secretFile(pair.Value, v.Field(f.index), at, depth)
			continue
		}
		if !ok {
			d.add(pos, at, "unknown key %q: %s", key, known(key, keysOf(fields)))
			continue
		}
		if given[f.key] {
			d.add(pos, at, "%s is given twice", key)
			continue
		}
		given[f.key] = true
		d.node(pair.Value, v.Field(f.index), at, f, depth+1)
	}
	for _, key := range keysOf(fields) {
		if f := fields[key]; !given[key] {
			if f.required {
				d.add(d.at(path), join(path, key), "is missing (want %s)", f.wants())
			}
			d.defaults(v.Field(f.index), join(path, key), f)
		}
	}
}

// table decodes a mapping with free keys into a Go map.
func (d *decoder) table(n ast.Node, v reflect.Value, path string, f field, depth int) {
	pairs, ok := d.pairs(n, path, "names with a section for each")
	if !ok {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		at := join(path, key)
		pos := pair.Key.GetToken().Position
		d.positions[at] = pos
		if f.keys == "name" && !namePattern.MatchString(key) {
			d.add(pos, at, "%q is not a name (want letters, digits, - and _, at most 63, beginning with a letter or digit)", key)
			continue
		}
		item := reflect.New(v.Type().Elem()).Elem()
		d.node(pair.Value, item, at, f.item(), depth+1)
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), item)
	}
	d.count(n, len(pairs), path, f)
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// IsName reports whether s may name a gateway, a device, a stream, a lane or an uplink. Names stand in record ids, NATS
// subjects, Kafka topics and Redis keys, so they hold nothing that means something there.
func IsName(s string) bool { return namePattern.MatchString(s) }

func (d *decoder) list(n ast.Node, v reflect.Value, path string, f field, depth int) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.add(position(n), path, "want a list ([a, b], or lines that begin with \"-\"), got %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		at := path + "[" + strconv.Itoa(i) + "]"
		d.positions[at] = position(item)
		d.node(item, v.Index(i), at, f.item(), depth+1)
	}
	d.count(n, len(seq.Values), path, f)
}

func (d *decoder) count(n ast.Node, count int, path string, f field) {
	if f.min != "" && strconv.Itoa(count) != f.min && count < atoi(f.min) {
		d.add(position(n), path, "has %d entries (want at least %s)", count, f.min)
	}
	if f.max != "" && count > atoi(f.max) {
		d.add(position(n), path, "has %d entries (want at most %s)", count, f.max)
	}
}

func (d *decoder) component(n ast.Node, v reflect.Value, path string, f field, depth int) {
	table := d.drivers[f.drivers]
	names := sortedKeys(table)
	pairs, ok := d.pairs(n, path, "a section with a driver key")
	if !ok {
		return
	}
	var driver ast.Node
	for _, pair := range pairs {
		if pair.Key.GetToken().Value == "driver" {
			driver = pair.Value
		}
	}
	if driver == nil {
		d.add(d.at(path), join(path, "driver"), "is missing (want one of %s)", strings.Join(names, ", "))
		return
	}
	name := driver.GetToken().Value
	create, ok := table[name]
	if !ok {
		d.add(driver.GetToken().Position, join(path, "driver"), "there is no %s driver %q in this build: %s", f.drivers, name, known(name, names))
		return
	}
	settings := create()
	v.Set(reflect.ValueOf(Component{Driver: name, Settings: settings}))
	d.object(n, reflect.ValueOf(settings).Elem(), path, []string{"driver"}, depth+1)
}

// check runs Check on v and everything in it, and turns each Problem into an error at its place.
func (d *decoder) check(v reflect.Value, path string) {
	if !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil() {
		return
	}
	if c, ok := checkerOf(v); ok {
		for _, p := range c.Check() {
			at := join(path, p.Path)
			d.add(d.at(at), at, "%s", p.Text)
		}
	}
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch {
	case v.Type() == componentType:
		d.check(reflect.ValueOf(v.Interface().(Component).Settings), path)
	case v.Kind() == reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			d.check(v.Field(f.index), join(path, f.key))
		}
	case v.Kind() == reflect.Map:
		for _, key := range v.MapKeys() {
			d.check(v.MapIndex(key), join(path, key.String()))
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			d.check(v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	}
}

// checkerOf finds Check on v or on its address. A pointer and what it points to are one thing and are checked once.
func checkerOf(v reflect.Value) (pipeline.Checker, bool) {
	if v.Kind() != reflect.Pointer && v.CanAddr() {
		v = v.Addr()
	}
	if !v.CanInterface() {
		return nil, false
	}
	return reflect.TypeAssert[pipeline.Checker](v)
}

// at finds the place of a path, or of the nearest section around it.
func (d *decoder) at(path string) *token.Position {
	for {
		if pos := d.positions[path]; pos != nil || path == "" {
			return pos
		}
		path = path[:max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['), 0)]
	}
}

func join(path, key string) string {
	switch {
	case path == "" || key == "":
		return path + key
	case key[0] == '[':
		return path + key
	default:
		return path + "." + key
	}
}

// position is where a reader would look for n. A mapping's own token is its first colon; its place is its first key.
func position(n ast.Node) *token.Position {
	switch x := n.(type) {
	case *ast.MappingNode:
		if len(x.Values) > 0 {
			return position(x.Values[0])
		}
	case *ast.MappingValueNode:
		return x.Key.GetToken().Position
	}
	return n.GetToken().Position
}

func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.NullNode:
		return "nothing"
	default:
		return "something else"
	}
}
