package agent

import "github.com/muster-serve/muster/agent/outcome"

// The names by which the rest of this package knows what outcome has.
var (
	errInvalid = outcome.ErrInvalid
	errLoad    = outcome.ErrLoad
	errRefused = outcome.ErrRefused
	errSlow    = outcome.ErrSlow
	errPanic   = outcome.ErrPanic
	invalid    = outcome.Invalid
	classify   = outcome.Of
	grpcError  = outcome.GRPC
)
