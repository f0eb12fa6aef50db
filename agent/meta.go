package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/control"
)

// A meta is what an agent says of itself in gossip: enough to reach it and to
// know whether to ask it for more.
//
// It travels as the protocol's version and then the fields, strings behind their length. An
// agent of another version is told by the first number alone.
type meta struct {
	protocol uint64
	address  string // of gRPC, host:port
	typ      string // instance type
	role     string
	draining bool
	revision uint64 // of what Describe says
}

// largestMetaString bounds each string of a meta, in bytes, so that all fit.
const largestMetaString = 128

var errMeta = errors.New("not the meta of an agent")

func (m meta) encode() []byte {
	b := binary.AppendUvarint(nil, m.protocol)
	for _, s := range []string{m.address, m.typ, m.role} {
		s = strings.ToValidUTF8(s[:min(len(s), largestMetaString)], "")
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	flags := uint64(0)
	if m.draining {
		flags = 1
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, flags), m.revision)
}

// decodeMeta reads a meta. Of another version only the version is read; later
// fields of this one are passed over.
func decodeMeta(b []byte) (m meta, err error) {
	r := reader{b: b}
	if m.protocol = r.uvarint(); m.protocol != control.Protocol || r.failed {
		if r.failed {
			return meta{}, errMeta
		}
		return m, nil
	}
	m.address, m.typ, m.role = r.string(largestMetaString), r.string(largestMetaString), r.string(largestMetaString)
	m.draining = r.uvarint()&1 != 0
	m.revision = r.uvarint()
	if r.failed {
		return meta{}, errMeta
	}
	if err := validateAddress(m.address); err != nil {
		return meta{}, fmt.Errorf("%w: %w", errMeta, err)
	}
	return m, nil
}

// acceptable says why an agent of this meta can be no member, nil if it can.
func acceptable(b []byte) error {
	m, err := decodeMeta(b)
	switch {
	case err != nil:
		return err
	case m.protocol != control.Protocol:
		return fmt.Errorf("it speaks version %d of the agents' protocol, this agent version %d: agents of one fleet must speak the same", m.protocol, control.Protocol)
	}
	return nil
}

// A load is how busy an agent is, as it travels in gossip.
type load struct {
	revision  uint64 // of what Describe says, in case its meta got lost
	waiting   uint64
	remaining []time.Duration // by lane, in microseconds on the way
}

// largestLanes bounds the lanes of an agent that are told apart in gossip.
const largestLanes = 64

func (l load) encode() []byte {
	remaining := l.remaining[:min(len(l.remaining), largestLanes)]
	b := binary.AppendUvarint(binary.AppendUvarint(nil, l.revision), l.waiting)
	b = binary.AppendUvarint(b, uint64(len(remaining)))
	for _, d := range remaining {
		b = binary.AppendUvarint(b, uint64(min(max(d, 0), time.Hour)/time.Microsecond))
	}
	return b
}

func decodeLoad(b []byte) (l load, err error) {
	r := reader{b: b}
	l.revision, l.waiting = r.uvarint(), r.uvarint()
	n := r.uvarint()
	if r.failed || n > largestLanes || l.waiting > 1<<31 {
		return load{}, errMeta
	}
	for range n {
		us := r.uvarint()
		l.remaining = append(l.remaining, time.Duration(min(us, uint64(time.Hour/time.Microsecond)))*time.Microsecond)
	}
	if r.failed {
		return load{}, errMeta
	}
	return l, nil
}

// A reader takes values from the front of bytes, and remembers if they ended.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.failed, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) string(longest uint64) string {
	n := r.uvarint()
	if n > longest || n > uint64(len(r.b)) {
		r.failed, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	if !utf8.ValidString(s) { // no message could carry it
		r.failed, r.b = true, nil
		return ""
	}
	r.b = r.b[n:]
	return s
}
