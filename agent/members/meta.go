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

// A Meta is the short description of an agent that gossip carries: enough to dial the agent, and to
// know whether its full description has changed.
//
// Its encoding is the oldest protocol version that the agent speaks, then the fields, each string
// preceded by its length, then the newest version. If the agent's oldest version is beyond the
// newest one of the agent that decodes, the decoder reads nothing after it.
type Meta struct {
	Versions control.Versions
	Address  string // of the gRPC server, host:port
	Type     string // instance type
	Role     string
	Draining bool
	Revision uint64 // of the description that Describe returns
}

// LargestString bounds each string of a [Meta], in bytes, so that a Meta fits into gossip's limit.
const LargestString = 128

var errMeta = errors.New("not the meta of an agent")

// MetaOf returns the Meta of the agent that m describes.
func MetaOf(m *control.Member) Meta {
	return Meta{
		Versions: m.Versions(), Address: m.Address, Type: m.InstanceType,
		Role: m.Role, Draining: m.Draining, Revision: m.Revision,
	}
}

// Encode returns the encoding of m for gossip. It cuts strings to LargestString bytes.
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

// DecodeMeta decodes a Meta. If the sender's oldest protocol version is beyond spoken, only
// Versions is set. It ignores bytes after the last known field, which later versions may add.
func DecodeMeta(b []byte, spoken control.Versions) (m Meta, err error) {
	r := reader{b: b}
	m.Versions = control.VersionsOf(r.readVersion(), 0)
	if r.failed {
		return Meta{}, errMeta
	}
	if m.Versions.Oldest > spoken.Newest {
		return m, nil
	}
	m.Address, m.Type, m.Role = r.string(LargestString), r.string(LargestString), r.string(
		LargestString)
	m.Draining = r.readUvarint()&1 != 0
	m.Revision = r.readUvarint()
	if len(r.b) > 0 { // otherwise an older agent, which sends one version only
		m.Versions = control.VersionsOf(m.Versions.Oldest, r.readVersion())
	}
	if r.failed {
		return Meta{}, errMeta
	}
	if err := CheckAddress(m.Address); err != nil {
		return Meta{}, fmt.Errorf("%w: %w", errMeta, err)
	}
	return m, nil
}

// Acceptable returns why an agent with the encoded meta b cannot be in a fleet with an agent that
// speaks spoken; nil if it can.
func Acceptable(b []byte, spoken control.Versions) error {
	m, err := DecodeMeta(b, spoken)
	if err != nil {
		return err
	}
	return spoken.Understands(m.Versions)
}

// CheckAddress returns why an address is not of the form host:port with a port in [0, 65535]; nil
// if it is. It does not resolve the host.
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

// A gossipedLoad is an agent's load as gossip carries it.
type gossipedLoad struct {
	revision uint64 // of the agent's description, in case the newest Meta was lost
	waiting  uint64
	// the remaining time of each lane; encoded in microseconds, at most an hour
	remaining []time.Duration
}

// largestLanes is how many lanes of an agent have their remaining time in gossip. Chosen: so many
// fit into gossip's limit.
const largestLanes = 64

func (l gossipedLoad) encode() []byte {
	remaining := l.remaining[:min(len(l.remaining), largestLanes)]
	b := binary.AppendUvarint(binary.AppendUvarint(nil, l.revision), l.waiting)
	b = binary.AppendUvarint(b, uint64(len(remaining)))
	for _, d := range remaining {
		b = binary.AppendUvarint(b, uint64(min(max(d, 0), time.Hour)/time.Microsecond))
	}
	return b
}

func decodeLoad(b []byte) (l gossipedLoad, err error) {
	r := reader{b: b}
	l.revision, l.waiting = r.readUvarint(), r.readUvarint()
	n := r.readUvarint()
	if r.failed || n > largestLanes || l.waiting > 1<<31 {
		return gossipedLoad{}, errMeta
	}
	for range n {
		us := r.readUvarint()
		l.remaining = append(l.remaining,
			time.Duration(min(us, uint64(time.Hour/time.Microsecond)))*time.Microsecond)
	}
	if r.failed {
		return gossipedLoad{}, errMeta
	}
	return l, nil
}

// A reader decodes values from the front of b. failed is set once a value was malformed or b was
// too short; later values are then zero.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) readUvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.failed, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// readVersion decodes a protocol version.
func (r *reader) readVersion() uint32 {
	v := r.readUvarint()
	if v > math.MaxUint32 {
		r.failed = true
	}
	return uint32(v)
}

func (r *reader) string(longest uint64) string {
	n := r.readUvarint()
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
