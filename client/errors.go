package client

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What an error of a Client can be, for errors.Is. One that is none of these is
// the server's own failure.
var (
	// ErrInvalid: the query is wrong, and sending it again is of no use.
	ErrInvalid = errors.New("invalid request")
	// ErrTooLarge: the query is larger than the server takes.
	ErrTooLarge = errors.New("request too large")
	// ErrNotFound: there is no such model, version or method.
	ErrNotFound = errors.New("not found")
	// ErrOverloaded: the server has more queries than it can serve in time, or this
	// client has sent more than it may; see [Error.RetryAfter].
	ErrOverloaded = errors.New("server overloaded")
	// ErrDeadline: the answer did not come in time. It is a
	// context.DeadlineExceeded, too.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrUnavailable: no server could be reached, or the last one tried broke
	// off or does not take queries.
	ErrUnavailable = errors.New("server unavailable")
	// ErrDenied: the server does not know who asks, or does not let them; see
	// [WithDialOptions].
	ErrDenied = errors.New("not allowed")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("client closed")
)

// An Error is a call that failed. errors.Is tells its kind, and context.Canceled
// where the caller gave up.
type Error struct {
	// Address is the server that answered, or the last one tried; empty
	// where the query was not sent, or a fleet was to serve it.
	Address string
	// RetryAfter is when an overloaded server expects to take queries again;
	// 0 where it did not say.
	RetryAfter time.Duration

	kind   error // of those above, or nil
	status *status.Status
}

// Message is the server's own.
func (e *Error) Message() string { return e.status.Message() }

// GRPCStatus is the status that the server answered with, for status.FromError.
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
	if !strings.Contains(message, kind) { // or it would be said twice
		b.WriteString(kind)
		b.WriteString(": ")
	}
	b.WriteString(message)
	return b.String()
}

// unreached is what grpc wraps the reason in why a server cannot be reached.
var unreached = regexp.MustCompile(
	`connection error: desc = "(?:transport: )?(?:Error while dialing: )?(.*)"`)

// Reason is what an error of a call to a server says to people: its message,
// without grpc's wrapping.
func Reason(err error) string {
	message := unreached.ReplaceAllString(status.Convert(err).Message(), "$1")
	switch {
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

// Is makes errors.Is tell the kind of error.
func (e *Error) Is(target error) bool {
	switch target {
	case nil:
		return false
	case e.kind:
		return true
	case context.DeadlineExceeded:
		return e.kind == ErrDeadline
	}
	return false
}

// newError is what an error of grpc's means.
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
		e.kind = ErrUnavailable
	case codes.ResourceExhausted:
		e.kind = ErrOverloaded
		// grpc has the same code for a message over the server's limit.
		if strings.Contains(e.status.Message(), "larger than max") {
			e.kind = ErrTooLarge
		}
	}
	for _, d := range e.status.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			e.RetryAfter = retry.GetRetryDelay().AsDuration()
		}
	}
	return e
}
