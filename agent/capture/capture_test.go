package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/store"
)

var start = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)

func ids(name string, values ...int64) tensor.Tensor {
	t := tensor.Tensor{Name: name, DataType: tensor.Int64, Shape: []int64{int64(len(values)), 1}}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(v))
	}
	return t
}

func texts(name string, values ...string) tensor.Tensor {
	t := tensor.Tensor{Name: name, DataType: tensor.Bytes, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		t.Data = append(binary.LittleEndian.AppendUint32(t.Data, uint32(len(v))), v...)
	}
	return t
}

func newRecorder(t *testing.T, sink Sink) *Recorder {
	t.Helper()
	r := New(Config{
		Sink: sink, Agent: "vm-1-abcd", Key: []byte("0123456789abcdef"),
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		SegmentBytes: 64 << 10, Flush: time.Hour, RetryWait: 10 * time.Millisecond, WriteTimeout: time.Second,
	})
	t.Cleanup(r.Close)
	return r
}

// query is one of n rows that arrives so long after start. Its memory is freed when freed is called.
func query(after time.Duration, n int, freed func()) *Query {
	values := make([]int64, n)
	for i := range values {
		values[i] = int64(i)
	}
	req := &oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids("item", values...)}}
	req.OnRelease(freed)
	return &Query{
		Rule: Rule{
			Capture: &control.Capture{Share: 1},
			Roles:   roles.OfShapes([]string{"item"}, [][]int64{{-1, 1}}),
		},
		Request: req, Outputs: []tensor.Tensor{ids("score", 7)}, Arrival: start.Add(after),
		Latency: time.Millisecond, Outcome: "ok", Client: "shop", Version: "3",
	}
}

func readAll(t *testing.T, dir string, since time.Time) (all []querytrace.TracedQuery) {
	t.Helper()
	err := Read(t.Context(), store.Directory(dir), since, func(q querytrace.TracedQuery) error {
		all = append(all, q)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestKeep: queries are read as they were kept, in order of arrival whatever the order of their
// answers, over several files, and the memory of each is freed.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	var freed atomic.Int64
	for _, after := range [][]time.Duration{{5 * time.Second, 0, 2 * time.Second}, {time.Second, 4 * time.Second}} {
		r := newRecorder(t, Folder(dir, 1<<20))
		for _, d := range after {
			r.Keep(query(d, 3, func() { freed.Add(1) }))
		}
		r.Close()
		r.Close()
		if got := testutil.ToFloat64(r.kept); got != float64(len(after)) {
			t.Errorf("counted %v, want %d", got, len(after))
		}
		r.Keep(query(0, 3, func() { freed.Add(1) })) // after Close it keeps nothing
	}
	all := readAll(t, dir, time.Unix(0, 0))
	var at []time.Duration
	for _, q := range all {
		at = append(at, q.At.Round(time.Microsecond)-start.Sub(epoch))
	}
	if want := []time.Duration{0, 1e9, 2e9, 4e9, 5e9}; !reflect.DeepEqual(at, want) {
		t.Errorf("arrivals %v, want %v", at, want)
	}
	if got := readAll(t, dir, start.Add(3*time.Second)); len(got) != 2 {
		t.Errorf("%d queries since, want 2", len(got))
	}
	want := querytrace.TracedQuery{
		At: all[0].At, Model: "ncf", Rows: 3, Outcome: "ok", Client: "shop", Version: "3",
		Latency: time.Millisecond, Inputs: []tensor.Tensor{ids("item", 0, 1, 2)},
		Outputs: []tensor.Tensor{ids("score", 7)},
	}
	if !reflect.DeepEqual(all[0], want) {
		t.Errorf("got %+v, want %+v", all[0], want)
	}
	if freed.Load() != 7 {
		t.Errorf("%d queries' memory was freed, want 7", freed.Load())
	}
	// What one agent may read of another's clients ends with the folder.
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if info, _ := d.Info(); err == nil && info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s has mode %v, want none for others", path, info.Mode())
		}
		return err
	})
	var none *Recorder
	if none.Chooses(&control.Capture{Share: 1}) {
		t.Error("a nil Recorder chooses a query")
	}
	none.Close()
}

// TestColumns: columns that are left out are gone, those that are hashed stay equal where they were
// equal, valid as ids, and of the same form; nothing of the query itself changes.
func TestColumns(t *testing.T) {
	q := query(0, 1, func() {})
	q.Request.Inputs = []tensor.Tensor{
		ids("item", 5, 6, 5, -1), texts("user", "ann", "bob", "ann"), ids("secret", 1),
		{Name: "small", DataType: tensor.Int8, Shape: []int64{2}, Data: []byte{1, 200}},
	}
	before := string(q.Request.Inputs[0].Data)
	q.Rule.Capture = &control.Capture{
		LeaveOut: []string{"secret", "score"}, Hash: []string{"item", "user", "client", "small"},
	}
	q.Rule.IDBounds = map[string][]int64{"item": {100}}
	got := q.toRecord([]byte("key"))
	if len(got.Inputs) != 3 || got.Outputs != nil || got.Client == "shop" || len(got.Client) != 16 {
		t.Fatalf("kept %+v", got)
	}
	item, user := got.Inputs[0], got.Inputs[1]
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(item.Data[8*i:])) }
	for i := range 4 {
		if at(i) < 0 || at(i) >= 100 {
			t.Errorf("id %d is %d, want 0 to 99", i, at(i))
		}
	}
	if at(0) != at(2) || at(0) == at(1) || string(q.Request.Inputs[0].Data) != before {
		t.Errorf("ids %d, %d, %d; want the first as the last, and the query as it was", at(0), at(1), at(2))
	}
	if len(user.Data) != 3*20 || !bytes.Equal(user.Data[:20], user.Data[40:]) ||
		bytes.Contains(user.Data, []byte("ann")) {
		t.Errorf("users %q", user.Data)
	}
	if small := got.Inputs[2].Data; len(small) != 2 || small[0] > 127 || small[1] > 127 {
		t.Errorf("8-bit numbers %v, want 2 from 0 to 127", small)
	}
	if other := q.toRecord([]byte("other")); bytes.Equal(other.Inputs[1].Data, user.Data) {
		t.Error("another key gives the same hashes")
	}
	if placeOf(&tensor.Tensor{Shape: []int64{2, 3, 2}}, 9) != 1 {
		t.Error("element [1][1][1] of [2, 3, 2] is not at place 1 of the second dimension")
	}
}

// TestFolderBound: a folder keeps the newest files, up to its bound, also those of agents before.
func TestFolderBound(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		f := Folder(dir, 1000) // as after a start
		for k := range 5 {
			name := FileName(start.Add(time.Duration(5*i+k)*time.Hour), "vm")
			if err := f.Write(t.Context(), name, bytes.Repeat([]byte{1}, 300)); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := listFiles(t.Context(), store.Directory(dir), epoch)
	if err != nil || len(found) != 3 || !found[0].first.Equal(start.Add(12*time.Hour)) {
		t.Errorf("there are %v, %v; want the newest three", found, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, prefix, "*", "*")); len(left) != 3 {
		t.Errorf("folders %v, want those of three hours", left)
	}
	if err := Folder(dir, 100).Write(t.Context(), "x", make([]byte, 101)); !errors.Is(err, ErrBudget) {
		t.Errorf("a file larger than the bound: %v", err)
	}
}

// A failing bucket refuses while down, and otherwise is a folder.
type failing struct {
	store.Bucket
	down  atomic.Bool
	tries atomic.Int64
}

func (f *failing) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	if f.tries.Add(1); f.down.Load() {
		return errors.New("503 Slow Down")
	}
	return f.Bucket.Create(ctx, key, size, r)
}

// TestStoreDown: while a store refuses, queries wait up to a bound and then are dropped, none of them
// waits for the store; when it is back, those that waited are in it.
func TestStoreDown(t *testing.T) {
	dir := t.TempDir()
	b := &failing{Bucket: store.Directory(dir)}
	b.down.Store(true)
	opened := 0
	open := func(context.Context) (store.Bucket, error) {
		if opened++; opened == 1 {
			return nil, errors.New("no such host")
		}
		return b, nil
	}
	r := newRecorder(t, Bucket(open, "s3://kept", 1<<30, time.Now))
	var sent, freed atomic.Int64
	full := func() bool { return testutil.ToFloat64(r.dropped.WithLabelValues("unwritable")) > 0 }
	for !full() || b.tries.Load() == 0 { // 64 kB of text are in the file that waits, and as many in memory
		if r.queued.Load() > maxQueuedBytes/2 || full() {
			time.Sleep(time.Millisecond) // so that the reason is the store alone
			continue
		}
		r.Keep(query(time.Duration(sent.Add(1)), 1_000, func() { freed.Add(1) }))
	}
	b.down.Store(false)
	r.Close()
	kept, dropped := testutil.ToFloat64(r.kept), 0.0
	for _, reason := range []DropReason{tooBusy, tooLarge, unwritable, overBudget, noRecord} {
		dropped += testutil.ToFloat64(r.dropped.WithLabelValues(string(reason)))
	}
	if n := len(readAll(t, dir, epoch)); float64(n) != kept || kept+dropped != float64(sent.Load()) || n == 0 {
		t.Errorf("of %d queries the store has %d, %v are counted as kept and %v as dropped", sent.Load(), n,
			kept, dropped)
	}
	if freed.Load() != sent.Load() {
		t.Errorf("the memory of %d of %d queries was freed", freed.Load(), sent.Load())
	}
}

// TestBudget: a bucket gets no more in a day than it may, and goes on the next day.
func TestBudget(t *testing.T) {
	now := start
	b := Bucket(func(context.Context) (store.Bucket, error) { return store.Directory(t.TempDir()), nil },
		"s3://kept", 1000, func() time.Time { return now })
	write := func(i int) error {
		return b.Write(t.Context(), FileName(start.Add(time.Duration(i)), "vm"), make([]byte, 600))
	}
	if err := write(1); err != nil {
		t.Fatal(err)
	}
	if err := write(2); !errors.Is(err, ErrBudget) {
		t.Errorf("more than a day's bytes: %v", err)
	}
	now = now.Add(24 * time.Hour)
	if err := write(3); err != nil {
		t.Errorf("the next day: %v", err)
	}
}

// TestBounds: a query that is too large, one that finds the queue full and one that the format
// cannot say are dropped and counted, each for its reason.
func TestBounds(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 1)
	r := newRecorder(t, blocking{release, entered})
	r.Keep(query(0, MaxQueryBytes/8+1, func() {}))
	broken := query(0, 1, func() {})
	broken.Request.Model = strings.Repeat("x", 10)
	broken.Outputs[0].Data = broken.Outputs[0].Data[:5]
	r.Keep(broken)
	for range 1 { // it fills the segment, whose write blocks
		r.Keep(query(0, 500_000, func() {}))
	}
	<-entered
	for range maxQueuedBytes/(8*500_000) + 2 {
		r.Keep(query(0, 500_000, func() {}))
	}
	close(release)
	r.Close()
	for reason, least := range map[DropReason]float64{tooLarge: 1, noRecord: 1, tooBusy: 1} {
		if got := testutil.ToFloat64(r.dropped.WithLabelValues(string(reason))); got < least {
			t.Errorf("%v were dropped as %s, want %v", got, reason, least)
		}
	}
}

// blocking is a sink that takes nothing until release is closed.
type blocking struct{ release, entered chan struct{} }

func (b blocking) Write(context.Context, string, []byte) error {
	select {
	case b.entered <- struct{}{}:
	default:
	}
	<-b.release
	return nil
}

func (blocking) String() string { return "blocking" }

// TestConcurrent is for the race detector: queries come while others are written and the end comes.
func TestConcurrent(t *testing.T) {
	r := newRecorder(t, Folder(t.TempDir(), 1<<20))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 50 {
				r.Keep(query(time.Duration(i*50+k), 2, func() {}))
			}
		})
	}
	r.Close()
	all.Wait()
}

// TestForeignFiles: what is no capture in a folder is passed over, and a broken file is an error with
// its name.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, prefix), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README", "x.jsonl.zst", "20260304T050607.000000000Z-a.json"} {
		if err := os.WriteFile(filepath.Join(dir, prefix, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := readAll(t, dir, epoch); len(got) != 0 {
		t.Errorf("read %v", got)
	}
	name := fmt.Sprint("20260304T050607.000000000Z-a", Suffix)
	if err := os.WriteFile(filepath.Join(dir, prefix, name), []byte{0x28, 0xb5, 0x2f, 0xfd, 1, 2}, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Read(t.Context(), store.Directory(dir), epoch, func(querytrace.TracedQuery) error { return nil })
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a broken file: %v", err)
	}
}
