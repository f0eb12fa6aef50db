// Package control is the generated code of the protocol that agents, and SDKs
// that know it, speak among each other; see control.proto.
package control

// Protocol is the version of the protocol. Agents of another version do not
// join: it is raised when old and new would misunderstand each other.
const Protocol = 1

// Names of gRPC metadata on ModelInfer between a gateway and a worker, and on
// the protocol's control calls between agents.
const (
	// AttemptHeader marks a query as an attempt that the worker runs itself:
	// "gateway/sequence/attempt/lane", the gateway in hexadecimal.
	AttemptHeader = "muster-attempt"
	// WaitedHeader is how long the query has waited since it arrived at its
	// gateway, in nanoseconds.
	WaitedHeader = "muster-waited-ns"
	// ReservationHeader is the id of the probe whose place the query takes, on
	// the same gateway.
	ReservationHeader = "muster-reservation"
	// RemainingTrailer is the worker's remaining time with its answer, in
	// nanoseconds.
	RemainingTrailer = "muster-remaining-ns"
	// LocalHeader keeps a call from being passed on: the agent answers for
	// itself alone.
	LocalHeader = "muster-local"
)
