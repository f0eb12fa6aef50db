// Package fuzzing cuts the bytes of a fuzz target into what several agents say, for tests of the
// agent and of its rooms.
package fuzzing

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"
)

// A Record is a part of what fuzzing gives: who, 0 to 3, says or does what, 0 to 15, and the
// message.
type Record struct {
	Kind, Who byte
	Data      []byte
}

// Records are those of b: each a byte for kind and who, a length, and as many bytes.
func Records(b []byte) (all []Record) {
	for len(b) > 0 {
		first := b[0]
		length, n := binary.Uvarint(b[1:])
		if n <= 0 {
			break
		}
		b = b[1+n:]
		length = min(length, uint64(len(b)))
		all = append(all, Record{first & 15, first >> 4 & 3, b[:length]})
		b = b[length:]
	}
	return all
}

// Script is the inverse of Records, for seeds: parts are, in turns, the byte for kind and who, an
// int, and a message, or an int for as many zero bytes.
func Script(parts ...any) (b []byte) {
	for i := 0; i < len(parts); i += 2 {
		var data []byte
		switch part := parts[i+1].(type) {
		case proto.Message:
			data, _ = proto.Marshal(part) // made here, and right
		case int:
			data = make([]byte, part)
		}
		b = append(b, byte(parts[i].(int)))
		b = append(binary.AppendUvarint(b, uint64(len(data))), data...)
	}
	return b
}
