package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/control"
)

// A Meta is what an agent says of itself in gossip: enough to reach it and to
// know whether to ask it for more.
//
// It travels as the oldest version of the protocol that the agent speaks, the fields, strings
// behind their length, and the newest version. Of an agent whose oldest version is beyond this
// one's newest nothing more is read.
type Meta struct {
	Versions control.Versions
	Address  string // of gRPC, host:port
	Type     string // instance type
	Role     string
	Draining bool
	Revision uint64 // of what Describe says
}

// LargestString bounds each string of a [Meta], in bytes, so that all fit.
const LargestString = 128

var errMeta = errors.New("not the meta of an agent")

// MetaOf is what gossip says of the agent that m describes.
func MetaOf(m *control.Member) Meta {
	return Meta{
		Versions: m.Versions(), Address: m.Address, Type: m.InstanceType,
		Role: m.Role, Draining: m.Draining, Revision: m.Revision,
	}
}

// Encode is the form in which it travels.
func (m Meta) Encode() []byte {
	b := binary.AppendUvarint(nil, uint64(m.Versions.Oldest))
	for _, s := range []string{m.Address, m.Type, m.Role} {
		s = strings.ToValidUTF8(s[:min(len(s), LargestString)], "")
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	flags := uint64(0)
	if m.Draining {
		flags = 1
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, flags), m.Revision)
	return binary.AppendUvarint(b, uint64(m.Versions.Newest))
}

// DecodeMeta reads a Meta, of an agent that spoken do not understand only the versions. Later
// fields are passed over.
func DecodeMeta(b []byte, spoken control.Versions) (m Meta, err error) {
	r := reader{b: b}
	m.Versions = control.VersionsOf(r.version(), 0)
	if r.failed {
		return Meta{}, errMeta
	}
	if m.Versions.Oldest > spoken.Newest {
		return m, nil
	}
	m.Address, m.Type, m.Role = r.string(LargestString), r.string(LargestString), r.string(
		LargestString)
	m.Draining = r.uvarint()&1 != 0
	m.Revision = r.uvarint()
	if len(r.b) > 0 { // else it knows of no range
		m.Versions = control.VersionsOf(m.Versions.Oldest, r.version())
	}
	if r.failed {
		return Meta{}, errMeta
	}
	if err := CheckAddress(m.Address); err != nil {
		return Meta{}, fmt.Errorf("%w: %w", errMeta, err)
	}
	return m, nil
}

// Acceptable says why an agent of this meta can be no member of one that speaks spoken, nil if it
// can.
func Acceptable(b []byte, spoken control.Versions) error {
	m, err := DecodeMeta(b, spoken)
	if err != nil {
		return err
	}
	return spoken.Understands(m.Versions)
}

// CheckAddress says what of an address, host:port, cannot be; nil if nothing.
func CheckAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q, want host:port", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("address %q: port %q, want 0 to 65535", address, port)
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
		l.remaining = append(l.remaining,
			time.Duration(min(us, uint64(time.Hour/time.Microsecond)))*time.Microsecond)
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

// version is a version of the protocol.
func (r *reader) version() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.failed = true
	}
	return uint32(v)
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
