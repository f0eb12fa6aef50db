package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"golang.org/x/time/rate"
)

// Bounds on what an agent holds in memory while it reads streams and packets. memberlist has bounds
// of its own, but they let a stream of a few bytes without a key take 120 MB, and a packet 40 MB.
const (
	// maxStreams bounds the open streams of strangers, and separately those of vouched members;
	// maxHostStreams bounds those of one address, at which a whole fleet may run. Further streams
	// are closed.
	maxStreams, maxHostStreams = 64, 48
	// maxStreamBytes bounds the bytes read from all open streams of strangers, and separately of
	// members. A stream that exceeds it is closed.
	maxStreamBytes = 8 << 20
	// maxPacket is the largest packet that is read, in bytes; agents send less, even encrypted.
	maxPacket = 2048
	// maxStateNodes and maxStateBytes bound the members, and the bytes of loads, that an
	// unencrypted state may announce.
	maxStateNodes = 4096
	maxStateBytes = 512 << 10
)

// Bounds on the work that senders can cause. In a fleet of any size, a member receives some thirty
// packets a second from all others together, and opens a stream every ten seconds.
const (
	// packetRate and packetBurst bound the packets a second of each vouched member, and of all
	// other senders together, who may be anybody. Chosen: some three times what a fleet of any size
	// sends.
	packetRate, packetBurst = 100, 200
	// streamRate and streamBurst bound the streams a second that strangers open. Chosen: a fleet of
	// a thousand agents that starts within half a minute stays below, and each stream may carry a
	// whole state.
	streamRate, streamBurst = 50, 100
	// readRate and acceptRate bound the packets and streams a second that are read from the system
	// at all, even if only to be dropped. Beyond that, packets are lost and streams wait, those of
	// members too. The bursts allow for a short excess.
	readRate, acceptRate   = 20000, 2000
	readBurst, acceptBurst = readRate / 20, acceptRate / 20
	// readPause is how long the reader pauses when a rate is exceeded.
	readPause = 10 * time.Millisecond
)

// An intakeLimits decides which packets are read. Vouched members have limits of their own, so that
// strangers cannot use those up. Its methods may be called concurrently.
type intakeLimits struct {
	strangers struct{ packets, streams *rate.Limiter }

	mu      sync.Mutex
	members map[netip.AddrPort]*known
	hosts   map[netip.Addr]int // how many vouched members are at each host
}

// known is the address of a vouched member. Two members share it only while one replaces the other.
type known struct {
	members int
	packets *rate.Limiter
}

func newIntakeLimits() *intakeLimits {
	i := &intakeLimits{members: map[netip.AddrPort]*known{}, hosts: map[netip.Addr]int{}}
	i.strangers.packets = rate.NewLimiter(packetRate, packetBurst)
	i.strangers.streams = rate.NewLimiter(streamRate, streamBurst)
	return i
}

// raiseLimits gives the vouched member at addr limits of its own, until forget.
func (i *intakeLimits) raiseLimits(addr netip.AddrPort) {
	i.mu.Lock()
	defer i.mu.Unlock()
	k := i.members[addr]
	if k == nil {
		k = &known{packets: rate.NewLimiter(packetRate, packetBurst)}
		i.members[addr] = k
	}
	k.members++
	i.hosts[addr.Addr()]++
}

// restoreLimits ends the limits that know gave.
func (i *intakeLimits) restoreLimits(addr netip.AddrPort) {
	i.mu.Lock()
	defer i.mu.Unlock()
	k := i.members[addr]
	if k.members--; k.members == 0 {
		delete(i.members, addr)
	}
	if i.hosts[addr.Addr()]--; i.hosts[addr.Addr()] == 0 {
		delete(i.hosts, addr.Addr())
	}
}

// countPacket counts a packet of a sender, and reports whether it is within the sender's limit.
func (i *intakeLimits) countPacket(from netip.AddrPort) bool {
	i.mu.Lock()
	limit := i.strangers.packets
	if k := i.members[from]; k != nil {
		limit = k.packets
	}
	i.mu.Unlock()
	return limit.Allow()
}

// isMember reports whether a vouched member is at the host.
func (i *intakeLimits) isMember(host netip.Addr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hosts[host] > 0
}

// Kinds of memberlist's messages: the first byte of each.
const (
	pushPullMessage = 6
	compoundMessage = 7
	userMessage     = 8
	compressMessage = 9
	crcMessage      = 12
)

var (
	errIntake   = errors.New("gossip: streams of others take too many bytes")
	errUnsaid   = errors.New("gossip: agents do not send such a message in a stream")
	errTooLarge = fmt.Errorf("gossip: state of more than %d members or %d bytes of loads",
		maxStateNodes, maxStateBytes)
)

// checkStream returns why the first bytes of an unencrypted stream cannot come from an agent; nil
// if they can. b holds the whole header of the message, because agents send it at once.
func checkStream(b []byte) error {
	switch b[0] {
	case userMessage, compressMessage:
		return errUnsaid
	case pushPullMessage:
		var header struct{ Nodes, UserStateLen int }
		if err := codec.NewDecoderBytes(b[1:], &codec.MsgpackHandle{}).Decode(&header); err != nil {
			return fmt.Errorf("gossip: header of a state: %w", err)
		}
		if header.Nodes < 0 || header.Nodes > maxStateNodes || header.UserStateLen < 0 ||
			header.UserStateLen > maxStateBytes {
			return errTooLarge
		}
	}
	return nil
}

// isForeign reports whether an unencrypted packet cannot come from an agent: it is compressed, or
// contains empty or nested messages. memberlist itself detects packets that are cut short.
func isForeign(b []byte) bool {
	if len(b) >= 5 && b[0] == crcMessage {
		b = b[5:]
	}
	if len(b) < 2 || b[0] != compoundMessage {
		return isContainer(b)
	}
	lengths, rest := b[2:], b[min(len(b), 2+2*int(b[1])):]
	for range b[1] {
		if len(lengths) < 2 {
			return false
		}
		part := rest[:min(len(rest), int(binary.BigEndian.Uint16(lengths)))]
		if binary.BigEndian.Uint16(lengths) == 0 || isContainer(part) ||
			len(part) > 0 && part[0] == compoundMessage {
			return true
		}
		lengths, rest = lengths[2:], rest[len(part):]
	}
	return false
}

// isContainer reports whether a message is of a kind that contains other messages and that agents
// do not send.
func isContainer(b []byte) bool {
	return len(b) > 0 && (b[0] == compressMessage || b[0] == crcMessage)
}
