package slowlog

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

var start = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)

// TestSampler: of each cause a second has a few, and the next one that is written says how many were
// left out.
func TestSampler(t *testing.T) {
	s := &sampler{}
	written := map[lateness.Cause]int{}
	for range 1000 {
		for _, c := range []lateness.Cause{lateness.Lane, lateness.CPU} {
			if _, chosen := s.choose(c, start); chosen {
				written[c]++
			}
		}
	}
	if written[lateness.Lane] != maxLinesPerSecond || written[lateness.CPU] != maxLinesPerSecond {
		t.Errorf("written %v, want %d of each", written, maxLinesPerSecond)
	}
	for i, want := range []uint64{1000 - maxLinesPerSecond, 0} {
		leftOut, chosen := s.choose(lateness.Lane, start.Add(time.Second))
		if !chosen || leftOut != want {
			t.Errorf("query %d of the next second: chosen %v, %d left out, want %d", i, chosen, leftOut,
				want)
		}
	}
}

// TestLine: a line has what was known of a query, and nothing of what was not.
func TestLine(t *testing.T) {
	r := &lateness.Record{Target: 50 * time.Millisecond}
	r.Parts[lateness.AwaitedLane] = 40 * time.Millisecond
	r.Parts[lateness.RanAsProfiled] = 20500 * time.Microsecond
	for _, c := range []struct {
		q       Query
		leftOut uint64
		want    string
	}{
		{Query{
			Model: "ncf", Version: "2", Cause: lateness.CPU, Agent: "vm-2-1a2b3c4d", Client: "shop",
			After: 60500 * time.Microsecond, Target: r.Target, Spent: r, ID: "q1",
			TraceID: "4bf92f", RequestID: strings.Repeat("x", 300),
		}, 3, `{"time":"2026-03-04T05:06:07.089Z","model":"ncf","version":"2","cause":"cpu",` +
			`"agent":"vm-2-1a2b3c4d","client":"shop","took_ms":60.5,"target_ms":50,` +
			`"spent_ms":{"as_profiled":20.5,"lane":40},"id":"q1","trace_id":"4bf92f",` +
			`"request_id":"` + strings.Repeat("x", maxID) + `","left_out":3}`},
		{Query{Cause: lateness.Limit, Reason: "limit"}, 0, `{"time":"2026-03-04T05:06:07.089Z",` +
			`"model":"","cause":"limit","reason":"limit","took_ms":0}`},
	} {
		got, err := format(&c.q, start, c.leftOut)
		if err != nil || string(got) != c.want+"\n" {
			t.Errorf("got %s, %v\nwant %s", got, err, c.want)
		}
	}
}

// TestComponentNames: each component has a name of its own.
func TestComponentNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range lateness.Component(lateness.Components) {
		if c.String() == "" || seen[c.String()] {
			t.Errorf("component %d is called %q, want another name", c, c)
		}
		seen[c.String()] = true
	}
}

// TestLog: what is noted is in the file when Close has returned, after what was there; a file that
// is full is kept once, and a log that cannot be written says so once and goes on.
func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slow.json")
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var warnings bytes.Buffer
	l, err := Open(path, slog.New(slog.NewTextHandler(&warnings, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * maxLinesPerSecond {
		l.Note(&Query{Model: "ncf", Cause: lateness.Way}, start)
	}
	l.Close()
	l.Note(&Query{}, start) // after Close it writes nothing
	l.Close()
	lines := readLines(t, path)
	if len(lines) != 1+maxLinesPerSecond || lines[1].Model != "ncf" || lines[1].Cause != "way" {
		t.Errorf("%d lines, %+v; want the one that was there and %d", len(lines), lines,
			maxLinesPerSecond)
	}
	if warnings.Len() > 0 {
		t.Errorf("warned of %s", &warnings)
	}
	if _, err := Open(t.TempDir(), slog.Default()); err == nil {
		t.Error("a folder was opened as a log")
	}
	var none *Log
	none.Note(&Query{}, start)
	none.Close()
}

// TestBound: the log never takes more than two files of its bound.
func TestBound(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "slow.json")
	l := &Log{path: path, maxFile: 1000}
	file, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(strings.Repeat("x", 99) + "\n")
	for range 55 {
		if file, err = l.append(file, text); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{"slow.json": 500, "slow.json.1": 1000} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v, want %d bytes", name, info, err, want)
		}
	}
	file.Close()
	// A file that cannot be opened loses its line; the next is written where it can be.
	l.path = filepath.Join(dir, "gone", "slow.json")
	if file, err = l.append(nil, text); err == nil || file != nil {
		t.Errorf("appended to a folder that is not there: %v, %v", file, err)
	}
	if err := os.Mkdir(filepath.Dir(l.path), 0o700); err != nil {
		t.Fatal(err)
	}
	if file, err = l.append(file, text); err != nil {
		t.Errorf("after the folder is there: %v", err)
	}
	file.Close()
}

func readLines(t *testing.T, path string) (lines []line) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for each := range bytes.Lines(text) {
		var l line
		if err := json.Unmarshal(each, &l); err != nil {
			t.Fatalf("%s: %v", each, err)
		}
		lines = append(lines, l)
	}
	return lines
}
