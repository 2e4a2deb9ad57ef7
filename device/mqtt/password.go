package mqtt

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// Cost of the hashes HashPassword makes (OWASP's first choice for argon2id), and the most a config may ask for: a hash
// that takes a second or 128 MiB on every sign-in would let a few clients stop the gateway.
const (
	argonMemory    = 19 * 1024 // KiB
	argonTime      = 2
	argonThreads   = 1
	argonKey       = 32
	maxArgonMemory = 128 * 1024
	maxArgonTime   = 16
	maxBcryptCost  = 14
)

var errHash = errors.New("not a password hash (want bcrypt, $2b$…, or argon2id, $argon2id$v=19$m=…,t=…,p=…$SALT$HASH)")

// HashPassword returns the argon2id hash of plain for `password_hash` in the config.
func HashPassword(plain string) (string, error) {
	if plain == "" {
		return "", errors.New("the password is empty")
	}
	salt := make([]byte, 16)
	if _, err := rand.Read(salt); err != nil {
		return "", fmt.Errorf("make a salt: %w", err)
	}
	key := argon2.IDKey([]byte(plain), salt, argonTime, argonMemory, argonThreads, argonKey)
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonThreads,
		b64.EncodeToString(salt), b64.EncodeToString(key)), nil
}

// passwordHash is a parsed hash: bcrypt where bcrypt is set, else argon2id.
type passwordHash struct {
	bcrypt       []byte
	memory, time uint32
	threads      uint8
	salt, key    []byte
}

func parseHash(s string) (passwordHash, error) {
	switch {
	case strings.HasPrefix(s, "$2a$"), strings.HasPrefix(s, "$2b$"), strings.HasPrefix(s, "$2y$"):
		cost, err := bcrypt.Cost([]byte(s))
		if err != nil {
			return passwordHash{}, errHash
		}
		if cost > maxBcryptCost {
			return passwordHash{}, fmt.Errorf("bcrypt cost %d takes too long at each sign-in (want at most %d)", cost, maxBcryptCost)
		}
		return passwordHash{bcrypt: []byte(s)}, nil
	case strings.HasPrefix(s, "$argon2id$"):
		return parseArgon(s)
	}
	return passwordHash{}, errHash
}

func parseArgon(s string) (passwordHash, error) {
	parts := strings.Split(s, "$") // "", argon2id, v=19, m=…,t=…,p=…, salt, hash
	if len(parts) != 6 || parts[2] != "v=19" {
		return passwordHash{}, errHash
	}
	var h passwordHash
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &h.memory, &h.time, &h.threads); err != nil {
		return passwordHash{}, errHash
	}
	var err error
	if h.salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil || len(h.salt) < 8 {
		return passwordHash{}, errHash
	}
	if h.key, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(h.key) < 16 || len(h.key) > 64 {
		return passwordHash{}, errHash
	}
	if h.time < 1 || h.threads < 1 || h.memory < 8*uint32(h.threads) {
		return passwordHash{}, errHash
	}
	if h.memory > maxArgonMemory || h.time > maxArgonTime {
		return passwordHash{}, fmt.Errorf("argon2id with m=%d, t=%d takes too much at each sign-in (want m at most %d, t at most %d)",
			h.memory, h.time, maxArgonMemory, maxArgonTime)
	}
	return h, nil
}

// matches compares in a time that does not depend on where the difference lies.
func (h passwordHash) matches(plain []byte) bool {
	if h.bcrypt != nil {
		return bcrypt.CompareHashAndPassword(h.bcrypt, plain) == nil
	}
	key := argon2.IDKey(plain, h.salt, h.time, h.memory, h.threads, uint32(len(h.key)))
	return subtle.ConstantTimeCompare(key, h.key) == 1
}
