package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Explain puts an error of dialling or talking to address into plain words. What only a person can mend is marked with
// Config. Errors it does not know keep their own words.
func Explain(address string, err error) error {
	if err == nil || IsConfig(err) {
		return err
	}
	if e := explainTLS(address, err); e != nil {
		return Config(e)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return plain(err, "the name %s is not known (is the address right, and does the gateway reach a name server?)", dns.Name)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return plain(err, "%s refuses the connection (is the broker running, and are address and port right?)", address)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return plain(err, "%s cannot be reached (is the network up?)", address)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return plain(err, "%s does not answer in time (is it up, and does a firewall let the gateway through?)", address)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return plain(err, "%s closed the connection", address)
	}
	return err
}

func explainTLS(address string, err error) error {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return plain(err, "%s does not speak TLS on this port (want its TLS port, or tls.enabled: false)", address)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return plain(err, "the certificate of %s is signed by an authority that is not trusted (want it in tls.ca_file)", address)
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return plain(err, "the certificate of %s is not for %q (want a name it bears in tls.server_name)", address, host.Host)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return plain(err, "the certificate of %s is not valid today (has it expired, or is the gateway's clock wrong?)", address)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // an alert of the other side, whose type is not exported
		return plain(err, "%s refuses the TLS handshake: %v (does it want a client certificate in tls.cert_file?)", address, op.Err)
	}
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return plain(err, "%s refuses the TLS handshake: %v (does it want a client certificate in tls.cert_file?)", address, alert)
	}
	return nil
}

func isTimeout(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// plainError says it in plain words and keeps what it stands for.
type plainError struct {
	text  string
	cause error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.cause }

func plain(cause error, format string, args ...any) error {
	return &plainError{fmt.Sprintf(format, args...), cause}
}
