// Package control is the protocol between agents, and between agents and SDKs. It is generated from
// control.proto. Written by hand are the protocol's versions, names and headers, and the
// computation of a view's changes, for SDKs that watch the fleet ([Changes], [Watched]).
package control

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Names of gRPC metadata: of ModelInfer between a gateway and a worker, and of the control calls
// between agents.
const (
	// AttemptHeader marks a query as a gateway's attempt, which the worker must run itself. Its
	// value is "gateway/sequence/attempt/lane/waited/reservation", the gateway in hexadecimal and
	// waited in nanoseconds. It is one header, because each header with a new value costs both ends
	// an entry of HPACK's tables.
	AttemptHeader = "muster-attempt"
	// PartHeader comes with AttemptHeader if the attempt is of a part of a query. Its value is the
	// part's number, from 1 on.
	PartHeader = "muster-part"
	// RemainingTrailer comes with a worker's answer and holds the worker's remaining time in
	// nanoseconds.
	RemainingTrailer = "muster-remaining-ns"
	// LocalHeader marks a call that the agent must answer for itself alone, without passing it on.
	LocalHeader = "muster-local"
)

// Numbering is the distance between the numbers of a gateway's queries; the numbers between are those
// of parts.
const Numbering = 4

// An Attempt is the content of AttemptHeader: one try of a gateway to have a query run.
type Attempt struct {
	Gateway  uint64
	Sequence uint64 // the query's number at its gateway
	Attempt  uint32 // counts from 1
	Lane     uint32 // the worker's lane that a leader chose
	// Waited is the time since the query arrived at its gateway, >= 0.
	Waited time.Duration
	// Reservation is the id of the gateway's probe that reserved a lane for the query; 0: a leader
	// chose the lane.
	Reservation uint64
	// Part is the value of PartHeader: the number of the part of which this is an attempt; 0: it is
	// of a whole query.
	Part uint32
}

// String returns a in the form of AttemptHeader.
func (a Attempt) String() string {
	b := strconv.AppendUint(make([]byte, 0, 64), a.Gateway, 16)
	b = strconv.AppendUint(append(b, '/'), a.Sequence, 10)
	b = strconv.AppendUint(append(b, '/'), uint64(a.Attempt), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(a.Lane), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(max(0, a.Waited)), 10)
	b = strconv.AppendUint(append(b, '/'), a.Reservation, 10)
	return string(b)
}

// ParseAttempt parses the values of an AttemptHeader and of the PartHeader with it, "" if there is
// none.
func ParseAttempt(s, part string) (a Attempt, err error) {
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
	if part != "" {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil || n == 0 {
			return Attempt{}, fmt.Errorf("%s is %q, expected a number above 0", PartHeader, part)
		}
		a.Part = uint32(n)
	}
	return a, nil
}
