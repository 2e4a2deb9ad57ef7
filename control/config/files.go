package config

import (
	"reflect"
	"strings"

	"edgegateway/pipeline"
)

// File is a file that a driver's section names: a password, a certificate, a key.
type File struct {
	Key  string // where it stands in the section: "tls.cert_file"
	Path string
	// Secret reads it where the driver gets what is in it and not its name.
	Secret pipeline.Secret
}

// Files returns the files that a driver's section names, in the order of its keys: those of its secrets, and every key that
// ends in _file.
func Files(settings any) []File {
	v := reflect.ValueOf(settings)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil
	}
	return filesIn(nil, v.Elem(), "")
}

func filesIn(list []File, v reflect.Value, path string) []File {
	fields := fieldsOf(v.Type())
	for _, key := range keysOf(fields) {
		f, at := fields[key], join(path, key)
		switch field := v.Field(f.index); {
		case f.isSecret():
			if secret := field.Interface().(pipeline.Secret); secret.File() != "" {
				list = append(list, File{Key: at + "_file", Path: secret.File(), Secret: secret})
			}
		case field.Kind() == reflect.String && strings.HasSuffix(key, "_file") && field.Len() > 0:
			list = append(list, File{Key: at, Path: field.String()})
		case field.Kind() == reflect.Struct && f.typ != componentType:
			list = filesIn(list, field, at)
		}
	}
	return list
}
