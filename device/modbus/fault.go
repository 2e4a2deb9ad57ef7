package modbus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/simonvetter/modbus"
)

// exception is what the library returns for an exception reply, with what it means for the person who set the device up.
type exception struct {
	err  error
	text string
}

var exceptions = []exception{
	{modbus.ErrIllegalFunction, "device cannot read this table (exception 1, illegal function)"},
	{modbus.ErrIllegalDataAddress, "device has no such address (exception 2, illegal data address)"},
	{modbus.ErrIllegalDataValue, "device refuses this range (exception 3, illegal data value)"},
	{modbus.ErrServerDeviceFailure, "device reports a failure of its own (exception 4)"},
	{modbus.ErrAcknowledge, "device needs more time (exception 5, acknowledge)"},
	{modbus.ErrServerDeviceBusy, "device is busy (exception 6)"},
	{modbus.ErrMemoryParityError, "device reports a memory error (exception 8)"},
	{modbus.ErrGWPathUnavailable, "server has no path to the unit (exception 10); is the unit number right?"},
	{modbus.ErrGWTargetFailedToRespond, "server gets no answer from the unit (exception 11); is it switched on?"},
}

// exceptionText returns the meaning of an exception reply, "" for every other error.
func exceptionText(err error) string {
	for _, e := range exceptions {
		if errors.Is(err, e.err) {
			return e.text
		}
	}
	if err != nil && strings.HasPrefix(err.Error(), "unknown exception code") { // the library has no type for it
		return "device answers with an " + err.Error()
	}
	return ""
}

// isRefusal reports whether the unit refused the range that was asked for, in which case a part of it may still be read.
func isRefusal(err error) bool {
	return errors.Is(err, modbus.ErrIllegalDataAddress) || errors.Is(err, modbus.ErrIllegalDataValue)
}

// isAbsence reports whether a server says of a unit behind it that it does not answer.
func isAbsence(err error) bool {
	return errors.Is(err, modbus.ErrGWPathUnavailable) || errors.Is(err, modbus.ErrGWTargetFailedToRespond)
}

// isHangUp reports whether the connection broke under the request, rather than the answer being late or garbled.
func isHangUp(err error) bool {
	_, ours := errors.AsType[modbus.Error](err)
	return !ours
}

// plain says in plain words why a dial or a request failed. note is what the library has logged meanwhile.
func plain(err error, timeout time.Duration, note string) string {
	switch {
	case errors.Is(err, modbus.ErrRequestTimedOut) && note != "":
		return fmt.Sprintf("no valid answer within %s: %s", timeout, note)
	case errors.Is(err, modbus.ErrRequestTimedOut), os.IsTimeout(err), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", timeout)
	case errors.Is(err, modbus.ErrBadUnitId):
		return "answer comes from another unit than was asked"
	case errors.Is(err, modbus.ErrProtocolError):
		return "answer is garbled; is this a Modbus TCP server?"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		return "server closed the connection"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "cannot look up " + dns.Name + ": " + dns.Err
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	return err.Error()
}

// libraryNotes keeps the library's last warning for the reason of a failed read. The library logs a line for each
// foreign frame, 100,000 a second in a flood, so nothing of it goes to the log.
type libraryNotes struct {
	mu   sync.Mutex // guards last
	last string
}

// take returns the last warning and forgets it.
func (n *libraryNotes) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	last := n.last
	n.last = ""
	return last
}

// Enabled implements slog.Handler.
func (*libraryNotes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler. A message reads "tcp-transport(HOST:PORT) [warn]: TEXT".
func (n *libraryNotes) Handle(_ context.Context, r slog.Record) error {
	_, text, found := strings.Cut(r.Message, "]: ")
	if !found {
		text = r.Message
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = strings.TrimSpace(text)
	return nil
}

// WithAttrs implements slog.Handler.
func (n *libraryNotes) WithAttrs([]slog.Attr) slog.Handler { return n }

// WithGroup implements slog.Handler.
func (n *libraryNotes) WithGroup(string) slog.Handler { return n }
