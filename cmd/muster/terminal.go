package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Names of agents, models and clients, and the words of servers, are what others chose. A terminal
// obeys some characters and draws others in an order of their own, so whatever comes from others
// passes plain, or one of the functions below, on its way to one.

// plain is s with what cannot be printed as Go writes it in a string: ESC is \x1b, and a line's end \n.
func plain(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if unprintable(r) {
			quoted := strconv.QuoteToASCII(s[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

// unprintable are control characters, marks of direction and other characters without a form, and
// what is not UTF-8.
func unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

// plainLines is plain for text of several lines.
func plainLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = plain(line)
	}
	return strings.Join(lines, "\n")
}

// plainMessage makes all texts in m plain, but for bytes and the keys of maps.
func plainMessage(m proto.Message) { plainFields(m.ProtoReflect()) }

func plainFields(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		made := func(v protoreflect.Value) protoreflect.Value {
			switch x := v.Interface().(type) {
			case string:
				return protoreflect.ValueOfString(plain(x))
			case protoreflect.Message:
				plainFields(x)
			}
			return v
		}
		switch {
		case field.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				v.Map().Set(key, made(value))
				return true
			})
		case field.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, made(v.List().Get(i)))
			}
		default:
			m.Set(field, made(v))
		}
		return true
	})
}

// A plainJSON writes JSON whose texts are plain and mean the same: encoders escape the control
// characters of ASCII, this the others.
type plainJSON struct{ w io.Writer }

// Write implements [io.Writer]; p ends with a whole character.
func (j plainJSON) Write(p []byte) (int, error) {
	escaped := p
	if bytes.ContainsFunc(p, func(r rune) bool { return r >= unicode.MaxASCII && unprintable(r) }) {
		escaped = nil
		for _, r := range string(p) {
			switch {
			case r < unicode.MaxASCII || !unprintable(r):
				escaped = utf8.AppendRune(escaped, r)
			case r > 0xffff: // as a pair of surrogates
				r -= 0x10000
				escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			default:
				escaped = fmt.Appendf(escaped, `\u%04x`, r)
			}
		}
	}
	if _, err := j.w.Write(escaped); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printError tells why the command failed.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "muster: %s\n", plainLines(err.Error()))
}
