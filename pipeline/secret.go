package pipeline

import (
	"log/slog"
	"strconv"
	"sync"
)

// Secret is a password or a token. In the config it comes from a file (`password_file: PATH`) or from the environment
// (`password: ${NAME}`), never in clear. It shows as "***" wherever it is printed, logged or marshalled. The zero value is
// none.
type Secret struct{ source *secretSource }

// secretSource is shared by the copies of a secret.
type secretSource struct {
	file string
	read func() (string, error) // nil for a secret that never changes

	mu   sync.Mutex // guards the fields below
	last string     // the last good value
	err  error      // of the last read
}

// NewSecret returns a secret that never changes. An empty one is none.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{&secretSource{last: value}}
}

// FileSecret returns a secret that read takes anew from a file each time it is revealed, so that a changed one needs no
// restart. It returns the error of the first read.
func FileSecret(file string, read func() (string, error)) (Secret, error) {
	value, err := read()
	if err != nil {
		return Secret{}, err
	}
	return Secret{&secretSource{file: file, read: read, last: value}}, nil
}

// IsSet reports whether there is a secret.
func (s Secret) IsSet() bool { return s.source != nil }

// File returns the path of the secret's file as the config has it, or "" where it comes from elsewhere.
func (s Secret) File() string {
	if s.source == nil {
		return ""
	}
	return s.source.file
}

// Reveal returns the secret itself, for the one call that signs in with it. It is read from its file now; where that cannot
// be done it is what it was the last time.
func (s Secret) Reveal() string {
	value, _ := s.Read()
	return value
}

// Read is Reveal and says what keeps the file from being read.
func (s Secret) Read() (string, error) {
	if s.source == nil {
		return "", nil
	}
	s.source.mu.Lock()
	defer s.source.mu.Unlock()
	if s.source.read != nil {
		var value string
		if value, s.source.err = s.source.read(); s.source.err == nil {
			s.source.last = value
		}
	}
	return s.source.last, s.source.err
}

// String returns "***", or "" where there is no secret.
func (s Secret) String() string {
	if !s.IsSet() {
		return ""
	}
	return "***"
}

// GoString implements fmt.GoStringer, so that %#v does not tell the secret either.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText implements encoding.TextMarshaler: the secret stays out of JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer: the secret stays out of the log.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
