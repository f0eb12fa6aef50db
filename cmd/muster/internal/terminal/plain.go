// Package terminal writes to a user's terminal: text from other machines without characters that
// control the terminal (Plain and its kin), and the progress of long work (NewProgress,
// StatusLine).
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

// Others choose the names of agents, models and clients and the texts of servers. Some characters
// control a terminal, and others change the order in which it draws text. So text from others must
// pass through Plain, or a function below, before it is printed.

// Plain returns s with unprintable characters written as in a Go string: ESC as \x1b, a
// line feed as \n.
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

// Unprintable reports whether r is a control character, a mark of text direction, another character
// without a glyph, or stands for bytes that are not UTF-8.
func Unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

// PlainLines applies Plain to each line of s and keeps the line feeds.
func PlainLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Plain(line)
	}
	return strings.Join(lines, "\n")
}

// SanitizeFields applies Plain to all strings in m, in place, except keys of maps. Fields of bytes
// are left as they are.
func SanitizeFields(m proto.Message) { plainFields(m.ProtoReflect()) }

func plainFields(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		// made returns v, or a plain copy if it is a string; a message it changes in place.
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

// A PlainJSON writes JSON to W without unprintable characters and without changing its meaning.
// Encoders escape the control characters of ASCII; PlainJSON escapes the others.
type PlainJSON struct{ W io.Writer }

// Write implements [io.Writer]. p must not end within a character.
func (j PlainJSON) Write(p []byte) (int, error) {
	escaped := p
	if bytes.ContainsFunc(p, func(r rune) bool { return r >= unicode.MaxASCII && Unprintable(r) }) {
		escaped = nil
		for _, r := range string(p) {
			switch {
			case r < unicode.MaxASCII || !Unprintable(r):
				escaped = utf8.AppendRune(escaped, r)
			case r > 0xffff: // JSON escapes it as a pair of surrogates
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

// IsTerminal reports whether stream, a reader or a writer, is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the number of columns of w, or fallback if w is no terminal.
func Width(w io.Writer, fallback int) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return fallback
}

// OrDash returns s, or "-" if s is empty: the cell of a table without a value.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
