// Package control is the protocol between agents, and between agents and SDKs. It is generated from
// control.proto. Written by hand are the protocol's versions, names and headers, and the
// computation of a view's changes, for SDKs that watch the fleet ([Changes], [ViewBuilder]).
package control

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/lateness"
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
	// part's number, from 1 on; or "shadow" if the attempt is no client's query: it was made to
	// compare the answer, and is refused unless a lane is idle.
	PartHeader = "muster-part"
	// MergeHeader comes with AttemptHeader if the leader wants the lane to run the query together
	// with others. Its value is Assign's "merge/merged".
	MergeHeader = "muster-merge"
	// JSONHeader comes with AttemptHeader if the client gets the answer as JSON. The worker then
	// fails a query whose answer JSON cannot hold, where workers of before count it as answered.
	// Its value is always "1".
	JSONHeader = "muster-json"
	// remainingTrailer comes with a worker's answer: see [RemainingTrailer].
	remainingTrailer = "muster-remaining-ns"
	// spentTrailer comes with a worker's answer: see [SpentTrailer].
	spentTrailer = "muster-spent-bin"
	// lanesTrailer comes with spentTrailer: see [SpentTrailer]. Agents of before do not send it.
	lanesTrailer = "muster-lanes-bin"
	// LocalHeader marks a call that the agent must answer for itself alone, without passing it on.
	LocalHeader = "muster-local"
)

// RemainingTrailer returns the trailer with which a worker says when a lane of its will be free:
// its remaining time, >= 0, in nanoseconds.
func RemainingTrailer(d time.Duration) metadata.MD {
	return metadata.Pairs(remainingTrailer, strconv.FormatInt(int64(d), 10))
}

// RemainingOf returns the remaining time that a trailer says; ok is false if it says none.
func RemainingOf(trailer metadata.MD) (d time.Duration, ok bool) {
	said := trailer.Get(remainingTrailer)
	if len(said) != 1 {
		return 0, false
	}
	ns, err := strconv.ParseInt(said[0], 10, 64)
	return time.Duration(ns), err == nil && ns >= 0
}

// SpentTrailer returns the trailer with which a worker says where an attempt's time went, from when
// its headers arrived, and where the time of the last runs on its lanes went: for what kept these,
// queries have waited at the leader.
func SpentTrailer(parts, lanes *[lateness.Components]time.Duration) metadata.MD {
	return metadata.Pairs(spentTrailer, string(lateness.AppendParts(nil, parts)),
		lanesTrailer, string(lateness.AppendParts(nil, lanes)))
}

// SpentOf returns what a trailer says where an attempt's time went; ok is false if it says nothing.
func SpentOf(trailer metadata.MD) (parts [lateness.Components]time.Duration, ok bool) {
	return partsOf(trailer, spentTrailer)
}

// LanesOf returns what a trailer says of where the time of the lanes' last runs went; ok is false if
// it says nothing.
func LanesOf(trailer metadata.MD) (parts [lateness.Components]time.Duration, ok bool) {
	return partsOf(trailer, lanesTrailer)
}

func partsOf(trailer metadata.MD, name string) (parts [lateness.Components]time.Duration, ok bool) {
	said := trailer[name]
	if len(said) != 1 {
		return parts, false
	}
	return lateness.ReadParts([]byte(said[0]))
}

// SpentBytes returns what SpentTrailer has made in a trailer, for a StreamedAnswer's Spent and Lanes;
// nil: nothing.
func SpentBytes(trailer metadata.MD) (spent, lanes []byte) {
	bytesOf := func(name string) []byte {
		if said := trailer[name]; len(said) == 1 {
			return []byte(said[0])
		}
		return nil
	}
	return bytesOf(spentTrailer), bytesOf(lanesTrailer)
}

// StreamedTrailer returns the trailer that an answer on a stream stands for; nil for none.
func StreamedTrailer(remaining time.Duration, hasRemaining bool,
	spent, lanes []byte) (md metadata.MD) {
	if hasRemaining {
		md = RemainingTrailer(remaining)
	}
	if len(spent) > 0 {
		md = metadata.Join(md, metadata.MD{spentTrailer: {string(spent)}})
	}
	if len(lanes) > 0 {
		md = metadata.Join(md, metadata.MD{lanesTrailer: {string(lanes)}})
	}
	return md
}

// Numbering is the distance between the numbers of a gateway's queries; the numbers between are
// those of parts.
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
	// Merge and Merged are the value of MergeHeader, as in Assign; 0: the query runs alone.
	Merge  uint64
	Merged uint32
	Shadow bool // by PartHeader, too
}

// shadow is the value of the PartHeader of shadows.
const shadow = "shadow"

// PartString returns a in the form of PartHeader; "" if it has none.
func (a Attempt) PartString() string {
	switch {
	case a.Shadow:
		return shadow
	case a.Part != 0:
		return strconv.FormatUint(uint64(a.Part), 10)
	}
	return ""
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

// MergeString returns a in the form of MergeHeader.
func (a Attempt) MergeString() string {
	b := strconv.AppendUint(make([]byte, 0, 32), a.Merge, 10)
	return string(strconv.AppendUint(append(b, '/'), uint64(a.Merged), 10))
}

// ParseAttempt parses the values of an AttemptHeader and of the PartHeader and MergeHeader with it,
// "" where there is none.
func ParseAttempt(s, part, merge string) (a Attempt, err error) {
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
	if a.Shadow = part == shadow; part != "" && !a.Shadow {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil || n == 0 {
			return Attempt{}, fmt.Errorf("%s is %q, expected a number above 0", PartHeader, part)
		}
		a.Part = uint32(n)
	}
	if merge != "" {
		rest = merge
		a.Merge, a.Merged = number(10, 64), uint32(number(10, 32))
		if err != nil || rest != "" || a.Merge == 0 || a.Merged < 2 {
			return Attempt{}, fmt.Errorf("%s is %q, expected a number above 0, / and one above 1",
				MergeHeader, merge)
		}
	}
	return a, nil
}
