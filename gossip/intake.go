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

// What others may have an agent hold while it reads what they say. memberlist has bounds of its
// own, but by them one stream without a key may take 120 MB with a few bytes, and a packet 40 MB.
const (
	// maxStreams bounds the streams that strangers have opened, and those of members, and
	// maxHostStreams those of one address, which may be that of a whole fleet; one more is closed.
	maxStreams, maxHostStreams = 64, 48
	// maxStreamBytes bounds what has been read of all of either; who sends more is cut off.
	maxStreamBytes = 8 << 20
	// maxPacket is more than agents send in one, encrypted.
	maxPacket = 2048
	// maxStateNodes and maxStateBytes bound what a state without encryption says that it has:
	// members, and bytes of loads.
	maxStateNodes = 4096
	maxStateBytes = 512 << 10
)

// What an agent does for those who send. However large the fleet, a member hears some thirty
// packets a second of all others together, and opens a stream in ten seconds.
const (
	// packetRate and packetBurst bound the packets a second of one member that was vouched for, and
	// those of all others together, who may be anybody.
	packetRate, packetBurst = 100, 200
	// streamRate and streamBurst bound the streams that strangers open in a second.
	streamRate, streamBurst = 50, 100
	// readRate and acceptRate bound what is looked at in a second, if only to be dropped; beyond,
	// packets are lost and streams wait, of members too. Some time is given for bursts.
	readRate, acceptRate   = 20000, 2000
	readBurst, acceptBurst = readRate / 20, acceptRate / 20
	// readPause is how long nothing is looked at that is beyond.
	readPause = 10 * time.Millisecond
)

// An intake says how much is read of whom: members that were vouched for have their own share, so
// that strangers cannot take it.
type intake struct {
	strangers struct{ packets, streams *rate.Limiter }

	mu      sync.Mutex
	members map[netip.AddrPort]*known
	hosts   map[netip.Addr]int // of members, how many each has
}

// known is an address of members, more than one only while one takes the place of another.
type known struct {
	members int
	packets *rate.Limiter
}

func newIntake() *intake {
	i := &intake{members: map[netip.AddrPort]*known{}, hosts: map[netip.Addr]int{}}
	i.strangers.packets = rate.NewLimiter(packetRate, packetBurst)
	i.strangers.streams = rate.NewLimiter(streamRate, streamBurst)
	return i
}

// know gives a member that was vouched for its share, until forget.
func (i *intake) know(addr netip.AddrPort) {
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

func (i *intake) forget(addr netip.AddrPort) {
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

// packet reports whether one more of that sender is to be read.
func (i *intake) packet(from netip.AddrPort) bool {
	i.mu.Lock()
	limit := i.strangers.packets
	if k := i.members[from]; k != nil {
		limit = k.packets
	}
	i.mu.Unlock()
	return limit.Allow()
}

// isMember reports whether a member that was vouched for is at the host.
func (i *intake) isMember(host netip.Addr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hosts[host] > 0
}

// Kinds of memberlist's messages, by their first byte.
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

// checkStream says why the beginning of a stream, not encrypted, is none of an agent's. It has all
// of the message's header, as agents send that at once.
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

// isForeign reports whether a packet that is not encrypted is none of an agent's: compressed, or
// with messages in it that have none, or others within. What is cut off memberlist finds.
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

// isContainer reports whether a message has others within, of which agents send none such.
func isContainer(b []byte) bool {
	return len(b) > 0 && (b[0] == compressMessage || b[0] == crcMessage)
}
