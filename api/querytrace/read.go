package querytrace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-serve/muster/api/document"
)

// ReadFile calls each with the queries of the file at path, in their order, until one returns an
// error, which ReadFile then returns.
func ReadFile(path string, each func(TracedQuery) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read queries: %w", err)
	}
	defer f.Close()
	return Read(path, f, each)
}

// Read reads r as [ReadFile] reads a file. name is the file's name in errors.
func Read(name string, r io.Reader, each func(TracedQuery) error) error {
	b := bufio.NewReaderSize(r, 64<<10)
	start, err := b.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if bytes.HasPrefix(start, zstdMagic) {
		return readCompressed(name, b, each)
	}
	switch text := bytes.TrimLeft(bytes.TrimPrefix(start, []byte("\ufeff")), " \t\r\n"); {
	case bytes.HasPrefix(start, []byte("PK")):
		return readArrays(name, b, each)
	case bytes.HasPrefix(text, []byte("{")):
		return readLines(name, b, each)
	}
	return readCSV(name, b, each)
}

// zstdMagic begins a frame of Zstandard (RFC 8878).
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// maxWindowBytes bounds the memory for a window of Zstandard. Encoders use 8 MiB but for the options
// that trade memory for bytes.
const maxWindowBytes = 64 << 20

// readCompressed reads JSON lines or CSV that are compressed by Zstandard.
func readCompressed(name string, r io.Reader, each func(TracedQuery) error) error {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(maxWindowBytes))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer d.Close()
	b := bufio.NewReaderSize(d, 64<<10)
	start, err := b.Peek(512)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("%s: Zstandard: %w", name, err)
	case bytes.HasPrefix(start, zstdMagic) || bytes.HasPrefix(start, []byte("PK")):
		return fmt.Errorf("%s: compressed twice, want JSON lines or CSV in Zstandard", name)
	}
	return Read(name, b, each)
}

// readCSV reads the form of before.
func readCSV(name string, r io.Reader, each func(TracedQuery) error) error {
	const arrival, size = "arrival_ms", "batch_size"
	t, err := document.NewTable(name, r, []string{arrival, modelKey, size}, nil)
	if err != nil {
		return err
	}
	at, model := &fields[0], &fields[1]
	var arrivals order
	models := map[string]string{} // so that the rest of a name's line is not kept in memory
	any := false
	for t.Next() {
		any = true
		ms, err := t.Number(arrival)
		if err != nil {
			return err
		}
		var q TracedQuery
		if err := at.setMs(&q, ms); err != nil {
			return t.Errorf(arrival, "%v", err)
		}
		if err := arrivals.check(q.At); err != nil {
			return t.Errorf(arrival, "%v", err)
		}
		if err := model.setText(&q, intern(models, []byte(t.Text(modelKey)))); err != nil {
			return t.Errorf(modelKey, "%v", err)
		}
		if q.Rows, err = t.Integer(size, 1, MaxRows); err != nil {
			return err
		}
		if err := each(q); err != nil {
			return err
		}
	}
	if err := t.Err(); err != nil {
		return err
	}
	if !any {
		return fmt.Errorf("%s: no queries after the header", name)
	}
	return nil
}

// intern returns text as a string of which there is one in memory.
func intern(known map[string]string, text []byte) string {
	s, ok := known[string(text)]
	if !ok {
		s = string(text)
		known[s] = s
	}
	return s
}

// fieldOf returns the field with a key; nil if there is none.
func fieldOf(key string) *field {
	i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
	if i < 0 {
		return nil
	}
	return &fields[i]
}
