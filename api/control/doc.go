// Package control is the protocol between agents, and between agents and SDKs that know it. It is
// generated from control.proto. Written by hand are the versions of the protocol, and the changes
// of a view: what of it an SDK that watches is sent.
package control

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Names of gRPC metadata on ModelInfer between a gateway and a worker, and on
// the protocol's control calls between agents.
const (
	// AttemptHeader marks a query as an attempt that the worker runs itself:
	// "gateway/sequence/attempt/lane/waited/reservation", the gateway in hexadecimal, what it has
	// waited in nanoseconds. It is one header, for each whose value is new costs both ends an
	// entry of HPACK's tables.
	AttemptHeader = "muster-attempt"
	// RemainingTrailer is the worker's remaining time with its answer, in
	// nanoseconds.
	RemainingTrailer = "muster-remaining-ns"
	// LocalHeader keeps a call from being passed on: the agent answers for
	// itself alone.
	LocalHeader = "muster-local"
)

// An Attempt is what AttemptHeader says: one try of a gateway to have a query
// run.
type Attempt struct {
	Gateway  uint64
	Sequence uint64 // of the query, at its gateway
	Attempt  uint32 // 1 is the first
	Lane     uint32 // of the worker, where a leader chose it
	// Waited is how long the query has since it arrived at its gateway, at least 0.
	Waited time.Duration
	// Reservation is the id of the probe, of the same gateway, whose place the query takes; 0: a
	// leader chose the lane.
	Reservation uint64
}

// String is a as it travels.
func (a Attempt) String() string {
	b := strconv.AppendUint(make([]byte, 0, 64), a.Gateway, 16)
	b = strconv.AppendUint(append(b, '/'), a.Sequence, 10)
	b = strconv.AppendUint(append(b, '/'), uint64(a.Attempt), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(a.Lane), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(max(0, a.Waited)), 10)
	b = strconv.AppendUint(append(b, '/'), a.Reservation, 10)
	return string(b)
}

// ParseAttempt reads what String wrote.
func ParseAttempt(s string) (a Attempt, err error) {
	rest, field := s, ""
	number := func(base, bits int) uint64 {
		field, rest, _ = strings.Cut(rest, "/")
		n, e := strconv.ParseUint(field, base, bits)
		err = errors.Join(err, e)
		return n
	}
	a = Attempt{
		Gateway: number(16, 64), Sequence: number(10, 64), Attempt: uint32(number(10, 32)),
		Lane:   uint32(number(10, 32)),
		Waited: time.Duration(number(10, 63)), Reservation: number(10, 64),
	}
	if err != nil || rest != "" || a.Attempt == 0 {
		return Attempt{}, fmt.Errorf(
			"%s is %q, expected gateway/sequence/attempt/lane/waited/reservation", AttemptHeader, s)
	}
	return a, nil
}
