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
	// DefaultPort is the port of gossip, over UDP and TCP.
	DefaultPort = 7946
	// KeySize is the length of a key in bytes: AES-256.
	KeySize = 32
	// MaxMeta is the largest meta of a member, in bytes.
	MaxMeta = memberlist.MetaMaxSize
	// MaxLoad is the largest load, in bytes. Every agent's load reaches every other agent each
	// second, so a hundred bytes are already many. Chosen: 64 lanes with their remaining times take
	// below 400, and a packet holds several such loads.
	MaxLoad = 512
	// maxName is the longest name of a member, in bytes: most messages contain names.
	maxName = 128
)

// A Config says how an agent takes part in gossip. Name is required; each other field says what its
// zero value means.
type Config struct {
	// Name is the agent's name, of 1 to 128 bytes. It must be unique in the fleet, and a new one
	// for each process; see [NewName].
	Name string

	// Bind is the address to listen on, over UDP and TCP: ip:port, localhost:port or :port (all
	// addresses). Port 0 lets the system choose. Empty means 127.0.0.1:7946.
	Bind string
	// Advertise is the address that other agents use to reach this one, as host or host:port. Empty
	// means the address on which it listens; if it listens on all addresses, the one from which
	// this machine reaches others.
	Advertise string
	// Seeds are addresses of some agents of the fleet to join, in any order: host or host:port,
	// where a host is an IP address or a DNS name with one or more of them. The port is 7946 if
	// none is given. A seed may be down, not resolvable, or this agent itself.
	Seeds []string

	// Keys encrypt gossip: 32 bytes each. The first encrypts what this agent sends; all decrypt
	// what it receives. Empty means no encryption.
	Keys [][]byte
	// Insecure allows this agent to listen without a key on addresses that are not loopback.
	Insecure bool

	// Meta describes this agent to the others, at most 512 bytes in the caller's own encoding; see
	// [Gossip.SetMeta] for changes.
	Meta []byte
	// Accept returns why m must not become a member, or nil if it may; a nil function accepts all.
	// It is called whenever a message about m arrives, so also after changes of its meta.
	// memberlist calls it with locks held: it must not block, and must not call methods of Gossip.
	// Its answer should depend on m alone, and two agents should agree about each other.
	Accept func(m Member) error

	// MaxStrangers bounds the strangers: members for which Vouch has not been called. Without a
	// bound, anybody who can send packets could make this agent list any number of members. A
	// stranger that has gone keeps its place for a minute. A quarter of the places is reserved for
	// hosts that have a stream open to this agent. While there are strangers, this agent also
	// exchanges its state with a few other members every 15 s, so that it hears again of members
	// that it refused; it reports those as Refused events. 0: no bound.
	MaxStrangers int

	// Logger gets the log lines; a repeated fault is logged seldom. Nil means slog.Default().
	Logger *slog.Logger
	// Transport replaces UDP and TCP, for tests. Bind is then ignored, and no key is required.
	Transport memberlist.Transport
	// Resolve returns the addresses of a host, and may block until ctx ends. Nil means the system's
	// resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Validate returns all faults of c joined in one error, each with the value found, or nil.
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
		if err := CheckAdvertised(c.Advertise); err != nil {
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

// parseBind parses Config.Bind, and fills in its default.
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

// CheckAdvertised returns an error if address, host or host:port, is none at which other agents can
// reach one. It looks up no name.
func CheckAdvertised(address string) error {
	host, _, err := splitHostPort(address, 0)
	if err != nil {
		return err
	}
	_, notHost := netip.ParseAddr(address) // an IPv6 address may end in ":0"
	if _, port, err := net.SplitHostPort(address); notHost != nil && err == nil && port == "0" {
		return fmt.Errorf("%q: port 0, want the port at which others reach this agent, or none for "+
			"the one it listens on", address)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return checkReachable(addr.Unmap())
	}
	return nil
}

// checkReachable returns an error if addr is none of a machine that others can reach.
func checkReachable(addr netip.Addr) error {
	kind := ""
	switch {
	case addr.IsUnspecified():
		kind = "stands for all addresses of a machine, so others would ask themselves"
	case addr.IsMulticast():
		kind = "is a multicast address"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		kind = "is the broadcast address"
	case addr.Is6() && addr.IsLinkLocalUnicast():
		kind = "is a link-local address, whose interface only this machine can name"
	default:
		return nil
	}
	return fmt.Errorf("%v %s; want an address of this machine that other agents can reach", addr,
		kind)
}

// splitHostPort splits host or host:port, and returns defaultPort if there is no port. An IPv6
// address without a port needs no brackets.
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
