package client

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/oip"
)

// The kinds of a Client's errors, for errors.Is. An error of none of these kinds is a failure of
// the server.
var (
	// ErrInvalid: the query is invalid; sending it again will not help.
	ErrInvalid = errors.New("invalid request")
	// ErrTooLarge: the query is larger than the server accepts.
	ErrTooLarge = errors.New("request too large")
	// ErrNotFound: there is no such model, version or method.
	ErrNotFound = errors.New("not found")
	// ErrOverloaded: the server has more queries than it can serve in time; see [Error.RetryAfter].
	// errors.Is reports it of ErrLimit, too.
	ErrOverloaded = errors.New("server overloaded")
	// ErrLimit: this client has exceeded the limits that the server sets it; see
	// [Error.RetryAfter].
	ErrLimit = errors.New("limit exceeded")
	// ErrDeadline: the answer did not come in time. errors.Is also reports
	// context.DeadlineExceeded.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrUnavailable: no server could be reached, or the last server tried broke the connection or
	// takes no queries.
	ErrUnavailable = errors.New("server unavailable")
	// ErrDenied: the server does not know the client, refuses its certificate, or does not permit
	// it the call; see [WithDialOptions].
	ErrDenied = errors.New("not allowed")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("client closed")
)

// An Error is the error of a failed call. errors.Is reports its kind, and context.Canceled if the
// caller cancelled the call.
type Error struct {
	// Address is the address of the server that answered, or of the last one tried. It is empty if
	// the query was not sent, or was sent through a fleet's gateway.
	Address string
	// RetryAfter is how long after this answer an overloaded server expects to take queries again;
	// 0 if it did not say.
	RetryAfter time.Duration

	kind   error // one of the kinds above, or nil
	status *status.Status
}

// Message is the server's message.
func (e *Error) Message() string { return e.status.Message() }

// GRPCStatus is the status of the server's answer, for status.FromError.
func (e *Error) GRPCStatus() *status.Status { return e.status }

func (e *Error) Error() string {
	var b strings.Builder
	if e.Address != "" {
		b.WriteString(e.Address)
		b.WriteString(": ")
	}
	kind := e.status.Code().String()
	if e.kind != nil {
		kind = e.kind.Error()
	}
	message := Reason(e.status.Err())
	if !strings.Contains(message, kind) { // do not say the kind twice
		b.WriteString(kind)
		b.WriteString(": ")
	}
	b.WriteString(message)
	return b.String()
}

// unreached matches the text in which gRPC wraps the reason why a server cannot be reached.
var unreached = regexp.MustCompile(
	`connection error: desc = "(?:transport: )?(?:Error while dialing: )?(.*)"`)

// refused matches the alerts with which a server refuses the certificate of a client.
var refused = regexp.MustCompile(`remote error: (tls: (certificate required|bad certificate|` +
	`(?:unknown|expired|revoked|unsupported) certificate(?: authority)?|access denied))`)

// Reason returns the message of an error of a call, for people to read, without the text that gRPC
// puts around it.
func Reason(err error) string {
	message := unreached.ReplaceAllString(status.Convert(err).Message(), "$1")
	alert := refused.FindStringSubmatch(message)
	switch {
	case alert != nil && alert[2] == "certificate required":
		return "the server wants a client's certificate (" + alert[1] +
			"): give one with --tls-cert and --tls-key"
	case alert != nil:
		return "the server refuses the client's certificate (" + alert[1] +
			"): give another with --tls-cert and --tls-key"
	case strings.HasPrefix(message, "error reading server preface") &&
		(strings.HasSuffix(message, "EOF") ||
			strings.HasSuffix(message, "connection reset by peer")):
		return "the connection is closed at once, as by a server that wants TLS"
	case strings.HasPrefix(message, "error reading server preface") &&
		strings.Contains(message, "HTTP/1.1"):
		return "the answer is HTTP/1.1, want gRPC: is it the port of REST?"
	}
	return message
}

// Is implements errors.Is for the kinds of errors.
func (e *Error) Is(target error) bool {
	switch target {
	case nil:
		return false
	case e.kind:
		return true
	case context.DeadlineExceeded:
		return e.kind == ErrDeadline
	case ErrOverloaded: // what callers looked for before there was ErrLimit
		return e.kind == ErrLimit
	}
	return false
}

// newError makes an Error of a gRPC error.
func (c *Client) newError(address string, err error) *Error {
	e := &Error{Address: address, status: status.Convert(err)}
	switch e.status.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		e.kind = ErrInvalid
	case codes.NotFound, codes.Unimplemented:
		e.kind = ErrNotFound
	case codes.DeadlineExceeded:
		e.kind = ErrDeadline
	case codes.Canceled:
		e.kind = context.Canceled
		if c.closed.Load() {
			e.kind = ErrClosed
		}
	case codes.Unauthenticated, codes.PermissionDenied:
		e.kind = ErrDenied
	case codes.Unavailable:
		if e.kind = ErrUnavailable; refused.MatchString(e.status.Message()) {
			e.kind = ErrDenied
		}
	case codes.ResourceExhausted:
		e.kind = ErrOverloaded
		if oip.Reason(e.status) == "limit" {
			e.kind = ErrLimit
		}
		// gRPC gives a message over the server's size limit the same code as an overloaded server.
		if strings.Contains(e.status.Message(), "larger than max") {
			e.kind = ErrTooLarge
		}
	}
	e.RetryAfter = oip.RetryAfter(e.status)
	return e
}
