package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"edgegateway/pipeline"
)

var (
	componentType = reflect.TypeFor[Component]()
	durationType  = reflect.TypeFor[time.Duration]()
	sizeType      = reflect.TypeFor[pipeline.Size]()
	secretType    = reflect.TypeFor[pipeline.Secret]()
)

// field is what the tags of a struct field say.
type field struct {
	index      int
	key        string
	typ        reflect.Type
	doc, def   string
	hasDefault bool
	required   bool
	enum       []string
	min, max   string
	drivers    string // kind of driver table, for a Component or a map of them
	keys       string // "name": the keys of a map are names (IsName)
}

// fieldsOf returns the fields of a struct by key. A wrong tag is our own bug.
func fieldsOf(t reflect.Type) map[string]field {
	fields := make(map[string]field, t.NumField())
	for i := range t.NumField() {
		sf := t.Field(i)
		key := sf.Tag.Get("yaml")
		if key == "" || key == "-" || !sf.IsExported() {
			continue
		}
		f := field{
			index: i, key: key, typ: sf.Type, doc: sf.Tag.Get("doc"), required: sf.Tag.Get("required") == "true",
			min: sf.Tag.Get("min"), max: sf.Tag.Get("max"), drivers: sf.Tag.Get("drivers"), keys: sf.Tag.Get("keys"),
		}
		f.def, f.hasDefault = sf.Tag.Lookup("default")
		if enum := sf.Tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, "|")
		}
		fields[key] = f
	}
	return fields
}

func keysOf(fields map[string]field) []string { return sortedKeys(fields) }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (f field) isSecret() bool { return f.typ == secretType }

// item is the field as it counts for the items of a list or a map: ranges belong to the list itself.
func (f field) item() field {
	return field{key: f.key, doc: f.doc, drivers: f.drivers, enum: f.enum}
}

// wants says in a few words what the key takes.
func (f field) wants() string {
	switch {
	case len(f.enum) > 0:
		return "one of " + strings.Join(f.enum, ", ")
	case f.isSecret():
		return f.key + "_file: PATH, or " + f.key + ": ${NAME} from the environment"
	case f.doc != "":
		return strings.ToLower(f.doc[:1]) + strings.TrimSuffix(f.doc[1:], ".")
	default:
		return kindName(f.typ)
	}
}

func kindName(t reflect.Type) string {
	switch t {
	case durationType:
		return "a duration such as 500ms, 2s or 1h"
	case sizeType:
		return "a size such as 512KiB, 64MiB or 2GiB"
	case secretType:
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "a section"
	default:
		return "a whole number"
	}
}

// defaults fills a field that the file does not mention, and what is inside it.
func (d *decoder) defaults(v reflect.Value, path string, f field) {
	switch {
	case f.hasDefault:
		if err := setText(v, f.def); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", path, err))
		}
	case v.Kind() == reflect.Struct && v.Type() != componentType:
		for _, inner := range fieldsOf(v.Type()) {
			if inner.required && !f.required {
				d.add(d.at(path), join(path, inner.key), "is missing (want %s)", inner.wants())
			}
			d.defaults(v.Field(inner.index), join(path, inner.key), inner)
		}
	}
}

// setText sets v from text as it stands in the file. Errors say what would be right.
func setText(v reflect.Value, s string) error {
	switch {
	case v.Kind() == reflect.Slice:
		for item := range strings.SplitSeq(s, ",") {
			e := reflect.New(v.Type().Elem()).Elem()
			if err := setText(e, strings.TrimSpace(item)); err != nil {
				return err
			}
			v.Set(reflect.Append(v, e))
		}
		return nil
	case v.Type() == durationType:
		n, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is not a duration (want a number with a unit, such as 500ms, 2s or 1h)", s)
		}
		v.SetInt(int64(n))
		return nil
	case v.Type() == sizeType:
		n, err := pipeline.ParseSize(s)
		if err != nil {
			return err
		}
		v.SetInt(int64(n))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("want true or false, got %q", s)
		}
		v.SetBool(b)
	case reflect.Float32, reflect.Float64:
		n, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a number, got %q", s)
		}
		v.SetFloat(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(s, 0, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a whole number of %d bits, got %q", v.Type().Bits(), s)
		}
		v.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(s, 0, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a whole number from 0 to %d, got %q", uint64(1)<<(v.Type().Bits()-1)*2-1, s)
		}
		v.SetUint(n)
	default:
		return fmt.Errorf("cannot set a %s from text", v.Type())
	}
	return nil
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic("config: min or max of a list is no number: " + s)
	}
	return n
}
