// Package terminal writes to people: what others chose as it can be printed, and how
// far long work is.
package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Names of agents, models and clients, and the words of servers, are what others chose. A terminal
// obeys some characters and draws others in an order of their own, so whatever comes from others
// passes Plain, or one of the functions below, on its way to one.

// Plain is s with what cannot be printed as Go writes it in a string: ESC is \x1b, and
// a line's end \n.
func Plain(s string) string {
	if strings.IndexFunc(s, Unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if Unprintable(r) {
			quoted := strconv.QuoteToASCII(s[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

// Unprintable are control characters, marks of direction and other characters without a form, and
// what is not UTF-8.
func Unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

// PlainLines is Plain for text of several lines.
func PlainLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Plain(line)
	}
	return strings.Join(lines, "\n")
}

// PlainMessage makes all texts in m plain, but for bytes and the keys of maps.
func PlainMessage(m proto.Message) { plainFields(m.ProtoReflect()) }

func plainFields(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		made := func(v protoreflect.Value) protoreflect.Value {
			switch x := v.Interface().(type) {
			case string:
				return protoreflect.ValueOfString(Plain(x))
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

// A PlainJSON writes JSON whose texts are plain and mean the same: encoders escape the control
// characters of ASCII, this the others.
type PlainJSON struct{ W io.Writer }

// Write implements [io.Writer]; p ends with a whole character.
func (j PlainJSON) Write(p []byte) (int, error) {
	escaped := p
	if bytes.ContainsFunc(p, func(r rune) bool { return r >= unicode.MaxASCII && Unprintable(r) }) {
		escaped = nil
		for _, r := range string(p) {
			switch {
			case r < unicode.MaxASCII || !Unprintable(r):
				escaped = utf8.AppendRune(escaped, r)
			case r > 0xffff: // as a pair of surrogates
				r -= 0x10000
				escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			default:
				escaped = fmt.Appendf(escaped, `\u%04x`, r)
			}
		}
	}
	if _, err := j.W.Write(escaped); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Is reports whether stream, a reader or writer, is a terminal.
func Is(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is how many columns w has, or fallback where it is no terminal.
func Width(w io.Writer, fallback int) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return fallback
}

// OrDash is s, or - where a table has nothing.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
