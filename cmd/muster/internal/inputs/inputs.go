package inputs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tensor/npz"
	"github.com/muster-serve/muster/client/bench"
)

// MaxBytes is the most bytes of a file, and of an npz file when it is decompressed.
const MaxBytes = 2 << 30

// Read reads the file at path, or stdin if path is "-". A file whose name ends in .npz has rows;
// any other is JSON, and has queries. Errors name the file.
func Read(path string, stdin io.Reader) (*bench.Given, error) {
	if path == "-" {
		return readJSONQueries("standard input", stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	defer f.Close()
	if filepath.Ext(path) != ".npz" {
		return readJSONQueries(path, f)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	rows, err := readRows(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("input %s: %w", path, err)
	}
	return &bench.Given{Rows: rows}, nil
}

// readRows reads all arrays of an npz file.
func readRows(r io.ReaderAt, size int64) (rows []tensor.Tensor, err error) {
	file, err := npz.NewReader(r, size, MaxBytes)
	if err != nil {
		return nil, err
	}
	for _, name := range file.Names() {
		array, err := file.Read(name)
		if err != nil {
			return nil, err
		}
		rows = append(rows, array)
	}
	if len(rows) == 0 {
		return nil, errors.New("no arrays, expected one for each input of the model")
	}
	return rows, nil
}

// ReadOne reads a single query. The rows of an npz file are one query.
func ReadOne(path string, stdin io.Reader) (*oip.Request, error) {
	given, err := Read(path, stdin)
	switch {
	case err != nil:
		return nil, err
	case given.Rows != nil:
		return &oip.Request{Inputs: given.Rows}, nil
	case len(given.Queries) > 1:
		return nil, fmt.Errorf("input %s: %d queries, want one", path, len(given.Queries))
	}
	return given.Queries[0], nil
}

// readJSONQueries reads bodies of the REST API, one after the other. A line of its own for each is
// usual but not needed.
func readJSONQueries(name string, r io.Reader) (*bench.Given, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("input %s: %w", name, err)
	}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("input %s: more than %d bytes", name, MaxBytes)
	}
	given := &bench.Given{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var body json.RawMessage
		err := decoder.Decode(&body)
		if errors.Is(err, io.EOF) {
			break
		}
		at := decoder.InputOffset()
		at += int64(len(text[at:]) - len(bytes.TrimLeft(text[at:], " \t\r\n")))
		if err == nil {
			at = decoder.InputOffset() - int64(len(body))
			var query *oip.Request
			query, err = oip.DecodeRequest(&http.Request{
				Body: io.NopCloser(bytes.NewReader(body)), Header: http.Header{}, ContentLength: -1,
			}, MaxBytes, nil)
			given.Queries = append(given.Queries, query)
		}
		if err != nil {
			line := 1 + bytes.Count(text[:at], []byte("\n"))
			return nil, fmt.Errorf("input %s: line %d: %w", name, line, err)
		}
	}
	if len(given.Queries) == 0 {
		return nil, fmt.Errorf(`input %s: no queries, want {"inputs": [...]} on each line`, name)
	}
	return given, nil
}
