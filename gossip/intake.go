package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// What others may have an agent hold while it reads what they say. memberlist has bounds of its own,
// but by them one stream without a key may take 120 MB with a few bytes, and a packet 40 MB.
const (
	// maxStreams bounds the streams that others have opened; one more is closed.
	maxStreams = 32
	// maxStreamBytes bounds what has been read of all of them; who sends more is cut off.
	maxStreamBytes = 8 << 20
	// maxStateNodes and maxStateBytes bound what a state without encryption says that it has:
	// members, and bytes of loads.
	maxStateNodes = 4096
	maxStateBytes = 512 << 10
)

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
	errTooLarge = fmt.Errorf("gossip: state of more than %d members or %d bytes of loads", maxStateNodes, maxStateBytes)
)

// checkStream says why the beginning of a stream, not encrypted, is none of an agent's. It has all of
// the message's header, as agents send that at once.
func checkStream(b []byte) error {
	switch b[0] {
	case userMessage, compressMessage:
		return errUnsaid
	case pushPullMessage:
		var header struct{ Nodes, UserStateLen int }
		if err := codec.NewDecoderBytes(b[1:], &codec.MsgpackHandle{}).Decode(&header); err != nil {
			return fmt.Errorf("gossip: header of a state: %w", err)
		}
		if header.Nodes < 0 || header.Nodes > maxStateNodes || header.UserStateLen < 0 || header.UserStateLen > maxStateBytes {
			return errTooLarge
		}
	}
	return nil
}

// hasCompressed reports whether a packet that is not encrypted has a compressed message, as agents
// never send one.
func hasCompressed(b []byte) bool {
	for len(b) >= 5 && b[0] == crcMessage {
		b = b[5:]
	}
	if len(b) < 2 || b[0] != compoundMessage {
		return len(b) > 0 && b[0] == compressMessage
	}
	lengths, rest := b[2:], b[min(len(b), 2+2*int(b[1])):]
	for range b[1] {
		if len(lengths) < 2 {
			return false
		}
		part := rest[:min(len(rest), int(binary.BigEndian.Uint16(lengths)))]
		if hasCompressed(part) {
			return true
		}
		lengths, rest = lengths[2:], rest[len(part):]
	}
	return false
}
