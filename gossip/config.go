package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/hashicorp/memberlist"
)

const (
	// DefaultPort is where agents gossip, over UDP and TCP.
	DefaultPort = 7946
	// KeySize is the length of a key in bytes: AES-256.
	KeySize = 32
	// MaxMeta is the most bytes that a member can say about itself.
	MaxMeta = memberlist.MetaMaxSize
	// MaxLoad is the most bytes of a load. Every agent's load reaches every
	// other each second, so a hundred bytes are already many.
	MaxLoad = 512
	// maxName bounds names, which are part of most messages.
	maxName = 128
)

// A Config says who an agent is and how it reaches others. Name is required;
// zero means what each field says.
type Config struct {
	// Name is the agent's, unique in the cluster and for each of its runs; see
	// [NewName]. 1 to 128 bytes.
	Name string

	// Bind is where to listen, over UDP and TCP: ip:port, localhost:port or
	// :port (all addresses). Port 0 lets the system choose. Empty means
	// 127.0.0.1:7946.
	Bind string
	// Advertise is where others reach this agent: host or host:port. Empty means
	// where it listens; if that is all addresses, the one from which this machine
	// reaches others.
	Advertise string
	// Seeds are some agents to join by, in any order: host or host:port, where a
	// host is an IP address or a DNS name with one or more of them. The port is
	// 7946 if none is given. Seeds may be down, unknown, or this agent itself.
	Seeds []string

	// Keys encrypt gossip: 32 bytes each. The first encrypts what is sent, all
	// decrypt what is received. None means no encryption.
	Keys [][]byte
	// Insecure allows listening on other than loopback addresses without a key.
	Insecure bool

	// Meta is what this agent says about itself at first; see [Gossip.SetMeta].
	// At most 512 bytes.
	Meta []byte
	// Accept says whether to have m as a member, with the reason if not; nil
	// accepts all. It is asked whenever word of m arrives, so also after changes
	// of its meta, by memberlist with locks held: it must not block, and not call
	// into Gossip. Its answer should depend on m alone and be mutual.
	Accept func(m Member) error

	// MaxStrangers bounds the members that nobody has vouched for ([Gossip.Vouch]), so that whoever
	// can send packets cannot make any number. One that has gone keeps its place for a minute. A
	// quarter is kept for hosts that have a stream open to this agent. While there are strangers,
	// this agent exchanges its state with members that are none every 15 s, so that who was refused
	// is heard of again, as a Refused event says. 0: no bound.
	MaxStrangers int

	// Logger is told of faults, each once or seldom. Nil means slog's default.
	Logger *slog.Logger
	// Transport replaces UDP and TCP, for tests. Bind is not used then, and no
	// key is asked for.
	Transport memberlist.Transport
	// Resolve finds the addresses of a host. Nil means the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Validate reports all faults of c at once, each with the value found.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if n := len(c.Name); n < 1 || n > maxName {
		fault("gossip name %q has %d bytes, want 1 to %d", c.Name, n, maxName)
	}
	if bind, err := parseBind(c.Bind); err != nil {
		faults = append(faults, err)
	} else if !bind.Addr().IsLoopback() && len(c.Keys) == 0 && !c.Insecure && c.Transport == nil {
		fault(
			"gossip would listen on %v, which is not a loopback address, without a key: set a "+
				"key, or allow it as insecure", bind)
	}
	if c.Advertise != "" {
		if _, _, err := splitHostPort(c.Advertise, 0); err != nil {
			fault("advertised gossip address: %w", err)
		}
	}
	for _, seed := range c.Seeds {
		if _, _, err := splitHostPort(seed, DefaultPort); err != nil {
			fault("seed: %w", err)
		}
	}
	for i, key := range c.Keys {
		if len(key) != KeySize {
			fault("gossip key %d has %d bytes, want %d", i+1, len(key), KeySize)
		}
	}
	if n := len(c.Meta); n > MaxMeta {
		fault("gossip meta has %d bytes, want at most %d", n, MaxMeta)
	}
	return errors.Join(faults...)
}

// parseBind is the address that bind means.
func parseBind(bind string) (netip.AddrPort, error) {
	if bind == "" {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), DefaultPort), nil
	}
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf(
			"gossip address %q: want ip:port, localhost:port or :port", bind)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf(
			"gossip address %q: port %q is not a number in [0, 65535]", bind, port)
	}
	addr := netip.IPv4Unspecified()
	switch host {
	case "":
	case "localhost":
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	default:
		if addr, err = netip.ParseAddr(host); err != nil {
			return netip.AddrPort{}, fmt.Errorf(
				"gossip address %q: %q is not an IP address of this machine", bind, host)
		}
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}

// splitHostPort splits host or host:port, where an IPv6 address without a port
// may stand without brackets.
func splitHostPort(address string, defaultPort uint16) (host string, port uint16, err error) {
	if addr, err := netip.ParseAddr(address); err == nil {
		return addr.String(), defaultPort, nil
	}
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		if host, portText, err = net.SplitHostPort(address + ":" +
			strconv.Itoa(int(defaultPort))); err != nil {
			return "", 0, fmt.Errorf("%q: want host or host:port", address)
		}
	}
	number, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || (number == 0 && defaultPort != 0) {
		return "", 0, fmt.Errorf("%q: port %q is not a number in [1, 65535]", address, portText)
	}
	if host == "" {
		return "", 0, fmt.Errorf("%q: the host is missing", address)
	}
	return host, uint16(number), nil
}
