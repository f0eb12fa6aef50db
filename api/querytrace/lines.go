package querytrace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/api/oip"
)

// readLines reads JSON lines. Empty lines are skipped.
func readLines(name string, r io.Reader, each func(TracedQuery) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLineBytes)
	p := lineParser{texts: map[string]string{}}
	line := 0
	for lines.Scan() {
		line++
		text := bytes.TrimSpace(lines.Bytes())
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if len(text) == 0 {
			continue
		}
		q, err := p.parse(text)
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", name, line, err)
		}
		if err := each(q); err != nil {
			return err
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s: line %d: more than %d bytes", name, line+1, maxLineBytes)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// A lineParser parses the lines of one file.
type lineParser struct {
	arrivals order
	texts    map[string]string // see intern
}

func (p *lineParser) parse(text []byte) (q TracedQuery, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return q, fmt.Errorf("found %.40q, want an object such as %s", text, example)
	}
	var seen []string
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			return q, fmt.Errorf("no JSON: %w", atEnd(err))
		}
		if slices.Contains(seen, key) {
			return q, fmt.Errorf("%s is there twice", key)
		}
		seen = append(seen, key)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return q, fmt.Errorf("%.80q: no JSON: %w", key, atEnd(err))
		}
		if err := p.set(&q, key, value); err != nil {
			return q, err
		}
	}
	if _, err := d.Token(); err != nil {
		return q, fmt.Errorf("no JSON: %w", atEnd(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return q, errors.New("more after the object, want one on each line")
	}
	for _, f := range fields {
		if f.required && !slices.Contains(seen, f.key) {
			return q, fmt.Errorf("%s is missing", f.key)
		}
	}
	if err := p.arrivals.check(q.At); err != nil {
		return q, fmt.Errorf("%s: %w", atKey, err)
	}
	return q, nil
}

const example = `{"at_ms": 12.5, "model": "ncf", "rows": 100}`

// atEnd is err, or that of a text that ends too early.
func atEnd(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// set sets what value says of key.
func (p *lineParser) set(q *TracedQuery, key string, value json.RawMessage) (err error) {
	if key == inputsKey || key == outputsKey {
		tensors, err := oip.DecodeInputs(value)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if key == inputsKey {
			q.Inputs = tensors
		} else {
			q.Outputs = tensors
		}
		return nil
	}
	f := fieldOf(key)
	if f == nil {
		return fmt.Errorf("unknown key %.80q, want one of %s", key,
			strings.Join(append(names(), inputsKey, outputsKey), ", "))
	}
	if f.text != nil {
		var text *string
		if json.Unmarshal(value, &text) == nil && text != nil {
			err = f.setText(q, intern(p.texts, []byte(*text)))
		} else {
			err = f.found(value)
		}
	} else if f.time != nil {
		ms, failed := strconv.ParseFloat(string(value), 64)
		if err = f.setMs(q, ms); failed != nil {
			err = f.found(value)
		}
	} else {
		n, failed := strconv.ParseInt(string(value), 10, 64)
		if err = f.setCount(q, n); failed != nil {
			err = f.found(value)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// found is the error for a value of another type.
func (f *field) found(value []byte) error {
	return fmt.Errorf("found %.40s, want %s", value, f.want())
}

// A Writer writes JSON lines. It is not safe for concurrent use.
type Writer struct {
	w    io.Writer
	line []byte
}

// NewWriter returns a Writer to w, to which it makes one call for each query.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes a query.
func (w *Writer) Write(q TracedQuery) (err error) {
	b := append(w.line[:0], '{')
	for i := range fields {
		f := &fields[i]
		if !f.isTold(&q) {
			continue
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, f.key), ':')
		switch {
		case f.time != nil:
			b = strconv.AppendFloat(b, toMs(*f.time(&q)), 'f', -1, 64)
		case f.count != nil:
			b = strconv.AppendInt(b, int64(*f.count(&q)), 10)
		default:
			text, err := json.Marshal(*f.text(&q))
			if err != nil {
				return err
			}
			b = append(b, text...)
		}
	}
	if q.Inputs != nil {
		b = append(b, `,"inputs":`...)
		if b, err = oip.AppendInputs(b, q.Inputs); err != nil {
			return err
		}
	}
	if q.Outputs != nil {
		b = append(b, `,"outputs":`...)
		if b, err = oip.AppendInputs(b, q.Outputs); err != nil {
			return fmt.Errorf("outputs: %w", err)
		}
	}
	w.line = append(b, '}', '\n')
	_, err = w.w.Write(w.line)
	return err
}
