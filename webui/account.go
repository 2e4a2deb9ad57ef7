package webui

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"
)

const (
	minPassword = 12 // characters
	maxPassword = 72 // bytes; bcrypt takes no more
)

// codeLetters are 32, so that a random byte maps onto them evenly. I, O, 0 and 1 are missing because they are misread.
const codeLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// account is the one administrator. Until a password is set there is a code instead, which only who reads the
// machine's log or console knows; so the first to arrive on the network cannot take the gateway.
type account struct {
	file string

	mu   sync.Mutex // guards the fields below
	hash []byte     // nil until set up
	code string     // "" once set up
}

// storedAccount is page.json.
type storedAccount struct {
	Version  int       `json:"version"`
	Password string    `json:"password"` // bcrypt
	Set      time.Time `json:"set"`
}

// openAccount never takes a damaged file for a missing one: that would hand the gateway to the next who comes.
func openAccount(dir string) (*account, error) {
	a := &account{file: filepath.Join(dir, "page.json")}
	data, err := os.ReadFile(a.file)
	if errors.Is(err, fs.ErrNotExist) {
		a.code = newCode()
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("page: read account: %w", err)
	}
	stored, err := decodeAccount(data)
	if err != nil {
		return nil, fmt.Errorf("page: %s is damaged (restore it, or remove it to set the page up again with a new code): %w", a.file, err)
	}
	a.hash = []byte(stored.Password)
	return a, nil
}

func decodeAccount(data []byte) (storedAccount, error) {
	var stored storedAccount
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&stored); err != nil {
		return stored, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return stored, errors.New("there is more after the account")
	}
	if stored.Version != 1 {
		return stored, fmt.Errorf("version is %d (want 1)", stored.Version)
	}
	_, err := bcrypt.Cost([]byte(stored.Password))
	return stored, err
}

// newCode returns 40 random bits as "ABCD-EFGH".
func newCode() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails: it ends the process instead
	for i := range b {
		b[i] = codeLetters[b[i]%32]
	}
	return string(b[:4]) + "-" + string(b[4:])
}

func (a *account) setupCode() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.code
}

// isSetUp tells whether there is a password.
func (a *account) isSetUp() bool { return a.setupCode() == "" }

// errWrong is the outcome of a try that is the user's fault, not the machine's.
var errWrong = errors.New("wrong")

// checkPassword says in plain words what is wrong with a new password, or "".
func checkPassword(password, again string) string {
	switch {
	case utf8.RuneCountInString(password) < minPassword:
		return fmt.Sprintf("The password needs at least %d characters. A few words in a row are easy to remember.", minPassword)
	case len(password) > maxPassword:
		return fmt.Sprintf("The password is too long: at most %d bytes fit.", maxPassword)
	case password != again:
		return "The two passwords differ."
	default:
		return ""
	}
}

// setUp stores the password if code is the right one. The code then works no more.
func (a *account) setUp(code, password string) error {
	if !a.rightCode(code) { // before the hash, which is made to be slow
		return errWrong
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return fmt.Errorf("hash password: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.code == "" { // somebody else was faster
		return errWrong
	}
	data, err := json.MarshalIndent(storedAccount{1, string(hash), time.Now().UTC().Truncate(time.Second)}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode account: %w", err)
	}
	if err := writeFile(a.file, append(data, '\n')); err != nil {
		return fmt.Errorf("store account: %w", err)
	}
	a.hash, a.code = hash, ""
	return nil
}

// rightCode tells whether code opens the set-up.
func (a *account) rightCode(code string) bool {
	want := a.setupCode()
	return want != "" && equal(plainCode(code), plainCode(want))
}

// verify returns nil for the right password.
func (a *account) verify(password string) error {
	a.mu.Lock()
	hash := a.hash
	a.mu.Unlock()
	if hash == nil || len(password) > maxPassword || bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil {
		return errWrong
	}
	return nil
}

// plainCode drops what people add or change when they type a code.
func plainCode(s string) string {
	return strings.ToUpper(strings.NewReplacer("-", "", " ", "", "\t", "").Replace(strings.TrimSpace(s)))
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// writeFile replaces the file so that after a power cut it is the old one or the new one.
func writeFile(name string, data []byte) (err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".page-*.json") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
