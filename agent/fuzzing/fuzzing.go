// Package fuzzing turns the bytes of a fuzz target into a list of messages from several agents, for
// the fuzz tests of package agent and its subpackages.
package fuzzing

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"
)

// A Record is one step of a fuzz test: sender Who, in [0, 3], sends or does something of kind Kind,
// in [0, 15]; Data is the encoded message. Data is a part of the slice that Records was given.
type Record struct {
	Kind, Who byte
	Data      []byte
}

// Records decodes b. Each record is one byte for kind (low four bits) and sender (the next two), a
// length as a varint, and that many bytes of data; the last record may be cut short.
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

// Script is the inverse of Records, for seed inputs. parts alternate between an int, the byte for
// kind and sender, and the record's data: a proto.Message, or an int for that many zero bytes.
func Script(parts ...any) (b []byte) {
	for i := 0; i < len(parts); i += 2 {
		var data []byte
		switch part := parts[i+1].(type) {
		case proto.Message:
			data, _ = proto.Marshal(part) // messages that a test makes can be encoded
		case int:
			data = make([]byte, part)
		}
		b = append(b, byte(parts[i].(int)))
		b = append(binary.AppendUvarint(b, uint64(len(data))), data...)
	}
	return b
}
