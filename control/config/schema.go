package config

import (
	"encoding/json"
	"reflect"
	"strconv"
)

// object is a node of a JSON Schema; encoding/json sorts its members.
type object = map[string]any

// Schema returns the JSON Schema (draft 2020-12) of the file that Decode reads into a struct of v's type. It is made from the
// same tags, so an editor that checks against it agrees with `edge-gateway check` on everything but references.
func Schema(title string, drivers Drivers, v any) ([]byte, error) {
	s := structSchema(reflect.TypeOf(v), drivers)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	return json.MarshalIndent(s, "", "  ")
}

func structSchema(t reflect.Type, drivers Drivers) object {
	properties := object{}
	required := []string{}
	for key, f := range fieldsOf(t) {
		s := fieldSchema(f, drivers)
		properties[key] = s
		if f.isSecret() {
			properties[key+"_file"] = object{"type": "string", "description": "File that holds " + key + ", one line."}
			continue // required in one of two forms: left to `check`
		}
		if f.required {
			required = append(required, key)
		}
	}
	s := object{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = sorted(required)
	}
	return s
}

func sorted(keys []string) []string {
	set := make(map[string]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	return sortedKeys(set)
}

func fieldSchema(f field, drivers Drivers) object {
	s := typeSchema(f, f.typ, drivers)
	if f.doc != "" {
		s["description"] = f.doc
	}
	if f.hasDefault {
		s["default"] = defaultValue(f)
	}
	return s
}

func typeSchema(f field, t reflect.Type, drivers Drivers) object {
	switch t {
	case durationType:
		return object{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`}
	case sizeType:
		return object{"type": []string{"string", "integer"}, "pattern": `^[0-9]+ *(B|KiB|MiB|GiB|TiB)?$`, "minimum": 0}
	case secretType:
		return object{"type": "string", "pattern": `^\$\{[^${} ]+\}$`}
	case componentType:
		return componentSchema(drivers[f.drivers], drivers)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(f, t.Elem(), drivers)
	case reflect.Struct:
		return structSchema(t, drivers)
	case reflect.Map:
		s := object{"type": "object", "additionalProperties": typeSchema(f.item(), t.Elem(), drivers)}
		if f.keys == "name" {
			s["propertyNames"] = object{"pattern": namePattern.String()}
		}
		return s
	case reflect.Slice:
		return bounds(object{"type": "array", "items": typeSchema(f.item(), t.Elem(), drivers)}, f, "minItems", "maxItems")
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		s := object{"type": "string"}
		if len(f.enum) > 0 {
			s["enum"] = f.enum
		}
		return s
	case reflect.Float32, reflect.Float64:
		return bounds(object{"type": "number"}, f, "minimum", "maximum")
	default:
		return bounds(object{"type": "integer"}, f, "minimum", "maximum")
	}
}

func bounds(s object, f field, low, high string) object {
	if n, err := strconv.ParseFloat(f.min, 64); err == nil {
		s[low] = n
	}
	if n, err := strconv.ParseFloat(f.max, 64); err == nil {
		s[high] = n
	}
	return s
}

func componentSchema(table map[string]func() any, drivers Drivers) object {
	var choices []object
	for _, name := range sortedKeys(table) {
		s := structSchema(reflect.TypeOf(table[name]()).Elem(), drivers)
		s["properties"].(object)["driver"] = object{"const": name}
		required, _ := s["required"].([]string)
		s["required"] = append([]string{"driver"}, required...)
		choices = append(choices, s)
	}
	return object{"type": "object", "required": []string{"driver"}, "oneOf": choices}
}

// defaultValue is the default as it would stand in JSON.
func defaultValue(f field) any {
	v := reflect.New(f.typ).Elem()
	if err := setText(v, f.def); err != nil {
		panic("config: default of " + f.key + ": " + err.Error())
	}
	if f.typ == durationType || f.typ == sizeType {
		return f.def
	}
	return v.Interface()
}
