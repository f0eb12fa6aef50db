package models

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// poll is how often the repositories of these tests look at their folder.
const poll = time.Second

// A fake is what the tests' loader makes of a version.
type fake struct {
	version *Version
	closed  atomic.Bool
}

func (f *fake) Close() error {
	if f.closed.Swap(true) {
		return errors.New("closed twice")
	}
	return nil
}

// A lockedLog is written by the repository's goroutines and read by the test's. Its lock tells the
// race detector in which order, which the timers of a bubble do not.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was written since the last call.
func (l *lockedLog) take() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := bytes.Clone(l.b.Bytes())
	l.b.Reset()
	return text
}

// A bench is a repository in a synctest bubble, with its folder.
type bench struct {
	t   testing.TB
	dir string
	*Repository[*fake]
	// load is asked before a version loads; see onLoad.
	load atomic.Pointer[func(ctx context.Context, v *Version) error]
	// loads lists the versions loaded, "ncf/1".
	loads []string
	// events lists what OnEvent was told, "ncf/1 READY".
	events []string
	// log is where the repository logs to, if it is to.
	log *lockedLog
	// explicit is Options.Explicit.
	explicit bool
	// placed is Options.Placed.
	placed bool
	// before is called before each call of the file system by a scan, but for the first one.
	before func(path string)
	// admit is Options.Admit.
	admit func(ctx context.Context, v *Version) error
}

func newBench(t testing.TB) *bench { return &bench{t: t, dir: t.TempDir()} }

// start opens the repository, runs it until the test ends, and waits until it has settled.
func (b *bench) start() {
	b.t.Helper()
	var err error
	b.Repository, err = Open(b.dir, func(ctx context.Context, v *Version) (*fake, error) {
		b.loads = append(b.loads, fmt.Sprintf("%s/%d", v.Model, v.Number))
		if load := b.load.Load(); load != nil {
			if err := (*load)(ctx, v); err != nil {
				return nil, err
			}
		}
		return &fake{version: v}, nil
	}, Options{PollInterval: poll, Explicit: b.explicit, Placed: b.placed, Logger: b.logger(),
		Admit: b.admit,
		OnEvent: func(e VersionEvent) {
			gone := ""
			if e.Gone {
				gone = " gone"
			}
			b.events = append(b.events,
				fmt.Sprintf("%s/%d %s%s", e.Model, e.Version, e.State, gone))
		}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.scanner.before = b.before
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
}

func (b *bench) logger() *slog.Logger {
	if b.log == nil {
		return nil
	}
	return slog.New(slog.NewJSONHandler(b.log, nil))
}

// logged returns the events that were logged since the last call, in lines of kind, model and why.
func (b *bench) logged() (events string) {
	for line := range bytes.Lines(b.log.take()) {
		var e struct {
			Event, Model, Why string
			Version           int64
		}
		if err := json.Unmarshal(line, &e); err != nil {
			b.t.Fatal(err)
		}
		if e.Event != "" {
			events += fmt.Sprintf("%s %s/%d %s\n", e.Event, e.Model, e.Version, e.Why)
		}
	}
	return events
}

// onLoad has f decide whether a version loads. Without it all do.
func (b *bench) onLoad(f func(ctx context.Context, v *Version) error) { b.load.Store(&f) }

// polls lets the repository look at its folder n times. Index takes the repository's lock: so the
// race detector knows that what the test has read and reset was before what the repository does
// next, which the timers of a bubble do not tell it.
func (b *bench) polls(n int) {
	b.Index()
	time.Sleep(time.Duration(n) * poll)
	synctest.Wait()
}

// write writes a file of the folder in one step.
func (b *bench) write(path, content string) {
	b.t.Helper()
	path = filepath.Join(b.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.t.Fatal(err)
	}
}

// add writes versions, "ncf/1".
func (b *bench) add(versions ...string) {
	b.t.Helper()
	for _, v := range versions {
		b.write(v+"/model.onnx", identity())
	}
}

func (b *bench) remove(path string) {
	b.t.Helper()
	if err := os.RemoveAll(filepath.Join(b.dir, path)); err != nil {
		b.t.Fatal(err)
	}
}

// identity is a model that returns its ids.
func identity() string {
	m := onnx.Model{
		Name: "identity",
		Inputs: []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64,
			Shape: []int64{Dynamic, 2}}},
		Outputs: []onnx.ValueDescription{{Name: "same", DataType: tensor.Int64,
			Shape: []int64{Dynamic, 2}}},
		Nodes: []onnx.Node{
			{Op: "Identity", Name: "node", Inputs: []string{"ids"}, Outputs: []string{"same"}},
		},
	}
	return string(m.Marshal())
}

// serves checks which version answers queries for a model that name none; 0
// means none.
func (b *bench) serves(model string, want int64) {
	b.t.Helper()
	l, err := b.Acquire(model, 0)
	got := int64(0)
	if err == nil {
		got = l.Version.Number
		if l.Model.closed.Load() {
			b.t.Errorf("%s serves version %d, which is closed", model, got)
		}
		l.Release()
	}
	if got != want {
		b.t.Errorf("%s serves version %d (error %v), want %d; index %v", model, got, err, want,
			b.Index())
	}
}

// hold acquires a version and expects it.
func (b *bench) hold(model string, version int64) *LoadedVersion[*fake] {
	b.t.Helper()
	l, err := b.Acquire(model, version)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// status checks a line of the index, of which reason is a part.
func (b *bench) status(model string, version int64, state VersionState, reason string) {
	b.t.Helper()
	for _, s := range b.Index() {
		if s.Model == model && s.Version == version {
			if s.State != state || !strings.Contains(s.Reason, reason) ||
				(reason == "" && s.Reason != "") {
				b.t.Errorf("%s/%d is %s (%s), want %s (%s)", model, version, s.State, s.Reason,
					state, reason)
			}
			return
		}
	}
	b.t.Errorf("%s/%d is not in the index %v", model, version, b.Index())
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	if _, err := Open[*fake](missing, nil, Options{}); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), missing) {
		t.Errorf("missing: got error %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open[*fake](file, nil, Options{}); err == nil ||
		!strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("file: got error %v", err)
	}
}

func TestNoModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.start()
		<-b.Settled()
		if index := b.Index(); len(index) > 0 {
			t.Errorf("index %v, want none", index)
		}
		_, err := b.Acquire("ncf", 0)
		if !errors.Is(err, ErrNotFound) ||
			!strings.Contains(err.Error(), `model "ncf"; there are none`) {
			t.Errorf("got error %v", err)
		}
		b.add("ncf/1")
		b.polls(3)
		b.serves("ncf", 1)
	})
}

func TestVersionPolicies(t *testing.T) {
	for config, want := range map[string][]int64{
		"":                    {10},
		"versions: all":       {1, 2, 10},
		"versions: [1, 2, 7]": {1, 2},
		"versions: {latest: 2}": {2,
			10},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.add("ncf/1", "ncf/2", "ncf/10")
			b.write("ncf/model.yaml", config+"\n")
			b.start()
			var got []int64
			for _, s := range b.Index() {
				if s.State == Ready {
					got = append(got, s.Version)
				} else if s.Reason != "not chosen by the version policy" {
					t.Errorf("%+v", s)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q: versions %v are ready, want %v", config, got, want)
			}
			b.serves("ncf", want[len(want)-1])
			for _, v := range want {
				b.hold("ncf", v).Release()
			}
		})
	}
}

func TestAcquireErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "ncf/2", "wnd/1")
		b.start()
		for _, c := range []struct {
			model   string
			version int64
			is      error
			want    string
		}{
			{"dlrm", 0, ErrNotFound, `model "dlrm"; there are ncf, wnd`},
			{"../ncf", 0, ErrNotFound, `model "../ncf"`},
			{"ncf", 3, ErrNotFound, `version 3 of model "ncf"; there are [1 2]`},
			{"ncf", -1, ErrNotFound, "version -1"},
			{"ncf", 1, ErrNotReady,
				`version 1 of model "ncf" is UNAVAILABLE: not chosen by the version policy`},
		} {
			if _, err := b.Acquire(c.model, c.version); !errors.Is(err, c.is) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%s/%d: got error %v, want %q", c.model, c.version, err, c.want)
			}
		}
	})
}

// A new version takes over when it is loaded; the old one finishes its queries.
func TestNewVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		loading, loaded := make(chan struct{}), make(chan struct{})
		b.onLoad(func(ctx context.Context, v *Version) error {
			if v.Number == 2 {
				close(loading)
				<-loaded
			}
			return nil
		})
		b.start()
		query := b.hold("ncf", 0)

		b.add("ncf/2")
		<-loading
		b.serves("ncf", 1)
		b.status("ncf", 2, Loading, "being loaded")
		close(loaded)
		synctest.Wait()
		b.serves("ncf", 2)
		b.status("ncf", 1, Unloading, "waits for its queries")
		if query.Model.closed.Load() {
			t.Error("version 1 was closed under its query")
		}
		if _, err := b.Acquire("ncf", 1); !errors.Is(err, ErrNotReady) {
			t.Errorf("version 1 while unloading: got error %v", err)
		}
		query.Release()
		synctest.Wait()
		if !query.Model.closed.Load() {
			t.Error("version 1 was not closed after its query")
		}
		b.status("ncf", 1, Unavailable, "not chosen by the version policy")
		want := []string{
			"ncf/1 UNAVAILABLE", "ncf/1 LOADING", "ncf/1 READY",
			"ncf/2 UNAVAILABLE", "ncf/2 UNAVAILABLE", // found, and found again
			"ncf/2 LOADING", "ncf/2 READY", "ncf/1 UNLOADING", "ncf/1 UNAVAILABLE",
		}
		if !slices.Equal(b.events, want) {
			t.Errorf("events\n got %v\nwant %v", b.events, want)
		}
	})
}

// A model may be away for a moment, as when its folder is replaced.
func TestReplacedFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		first := b.hold("ncf", 1)
		first.Release()
		b.remove("ncf")
		b.polls(1)
		b.serves("ncf", 1)
		b.add("ncf/1")
		b.polls(3)
		b.status("ncf", 1, Ready, "")
		if second := b.hold("ncf", 1); second == first {
			t.Error("the new folder is not loaded")
		} else {
			second.Release()
		}
		for _, e := range b.events {
			if e == "ncf/1 UNLOADING" {
				t.Errorf("events %v, want the version to serve throughout", b.events)
			}
		}
	})
}

// Hidden files, such as an editor's, do not make a version another.
func TestHiddenFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		b.write("ncf/1/.swap", "x")
		b.write("ncf/1/.cache/file", "x")
		b.polls(3)
		if want := []string{"ncf/1"}; !slices.Equal(b.loads, want) {
			t.Errorf("loads %v, want %v", b.loads, want)
		}
	})
}

// What is being copied is not loaded before two looks have seen the same.
func TestHalfCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.start()
		b.add("ncf/1")
		for i := range 5 {
			b.polls(1)
			b.status("ncf", 1, Unavailable, "its files are changing")
			b.write("ncf/1/model.onnx.data", strings.Repeat("x", i))
		}
		b.polls(3)
		b.status("ncf", 1, Ready, "")
		if want := []string{"ncf/1"}; !slices.Equal(b.loads, want) {
			t.Errorf("loads %v, want %v", b.loads, want)
		}
	})
}

// A version whose files change is loaded again, and serves as it was if that
// fails.
func TestChangedVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		first := b.hold("ncf", 0)
		first.Release()

		b.write("ncf/1/model.onnx", "garbage")
		b.polls(3)
		b.serves("ncf", 1)
		b.status("ncf", 1, Ready,
			"what was loaded before serves: read model "+filepath.Join(b.dir, "ncf/1/model.onnx"))
		if first.Model.closed.Load() {
			t.Error("what was loaded before is closed")
		}
		b.polls(5) // it is not tried again and again
		if want := []string{"ncf/1"}; !slices.Equal(b.loads, want) {
			t.Errorf("loads %v, want %v", b.loads, want)
		}

		b.add("ncf/1")
		b.polls(3)
		b.status("ncf", 1, Ready, "")
		second := b.hold("ncf", 0)
		second.Release()
		if first == second || !first.Model.closed.Load() {
			t.Error("the repaired version does not serve")
		}
	})
}

// TestChangedFormat: a version whose model.yaml changes to one for a later program serves as it
// was, by the version policy of before; where nothing was before, it does not serve.
func TestChangedFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "ncf/2")
		b.write("ncf/model.yaml", "requires: 1\nversions: [1]\nqos_target_ms: 7\n")
		b.start()
		b.serves("ncf", 1)

		later := fmt.Sprintf("versions: of a later form\nlater: 1\nrequires: %d\n",
			document.Format+1)
		b.write("ncf/model.yaml", later)
		b.add("wnd/1")
		b.write("wnd/model.yaml", later)
		b.polls(5)
		b.serves("ncf", 1)
		held := b.hold("ncf", 0)
		if got := held.Version.Config.QoSTarget; got != 7*time.Millisecond {
			t.Errorf("the QoS target is %v, want that of before", got)
		}
		held.Release()
		why := fmt.Sprintf("model.yaml:3: requires format %d, but this version of Muster knows formats "+
			"up to %d", document.Format+1, document.Format)
		b.status("ncf", 1, Ready, "what was loaded before serves: "+
			filepath.Join(b.dir, "ncf", why))
		b.status("wnd", 1, Unavailable, filepath.Join(b.dir, "wnd", why))

		b.write("ncf/model.yaml", "versions: [2]\n")
		b.polls(3)
		b.serves("ncf", 2)
	})
}

func TestBrokenModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("good/1", "warm/1")
		b.write("corrupt/1/model.onnx", "garbage")
		b.write("empty/1/readme.txt", "nothing")
		b.write("named/1/mlp.onnx", identity())
		b.write("flat/model.onnx", identity())
		b.add("config/1")
		b.write("config/model.yaml", "late: never\nqos: 5\n")
		b.onLoad(func(ctx context.Context, v *Version) error {
			if v.Model == "warm" {
				return errors.New("out of memory")
			}
			return nil
		})
		b.start()
		<-b.Settled()
		path := func(p string) string { return filepath.Join(b.dir, p) }
		b.status("good", 1, Ready, "")
		b.status("warm", 1, Unavailable, "load "+path("warm/1/model.onnx")+": out of memory")
		b.status("corrupt", 1, Unavailable, path("corrupt/1/model.onnx")+": not a valid ONNX model")
		b.status("empty", 1, Unavailable, path("empty/1/model.onnx")+": no such file")
		b.status("named", 1, Unavailable, path("named/1/model.onnx")+
			": no such file or directory; found mlp.onnx, expected model.onnx")
		b.status("flat", 0, Unavailable,
			"expected a folder with the version's number as its name, such as "+
				path("flat/1/model.onnx")+"; found model.onnx")
		b.status("config", 1, Unavailable, path("config/model.yaml")+`:1: late: got "never"`)
		b.status("config", 1, Unavailable, path("config/model.yaml")+`:2: unknown key "qos"`)
		if _, err := b.Acquire("flat", 0); !errors.Is(err, ErrNotReady) ||
			!strings.Contains(err.Error(), "holds no version") {
			t.Errorf("flat: got error %v", err)
		}
		if _, err := b.Acquire("warm", 0); !errors.Is(err, ErrNotReady) ||
			!strings.Contains(err.Error(), "out of memory") {
			t.Errorf("warm: got error %v", err)
		}
	})
}

// Where the newest version cannot be loaded, the one before serves.
func TestNewestBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "ncf/2")
		b.write("ncf/3/model.onnx", "garbage")
		b.start()
		b.serves("ncf", 2)
		b.status("ncf", 3, Unavailable, "not a valid ONNX model")
		b.add("ncf/3")
		b.polls(3)
		b.serves("ncf", 3)
		b.status("ncf", 2, Unavailable, "not chosen by the version policy")
	})
}

// Removing the newest version goes back to the one before without a gap.
func TestRemovedVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "ncf/2")
		b.start()
		newest := b.hold("ncf", 0)
		newest.Release()
		loading, loaded := make(chan struct{}), make(chan struct{})
		b.onLoad(func(ctx context.Context, v *Version) error {
			close(loading)
			<-loaded
			return nil
		})
		b.remove("ncf/2")
		<-loading
		b.serves("ncf", 2)
		close(loaded)
		b.polls(1) // until it is sure that version 2 is gone
		b.serves("ncf", 1)
		if !newest.Model.closed.Load() {
			t.Error("version 2 is not closed")
		}

		b.remove("ncf")
		b.polls(1)
		b.serves("ncf", 1) // it may be about to be replaced
		b.polls(2)
		if index := b.Index(); len(index) > 0 {
			t.Errorf("index %v, want none", index)
		}
		if _, err := b.Acquire("ncf", 0); !errors.Is(err, ErrNotFound) {
			t.Errorf("got error %v", err)
		}
		var gone []string
		for _, e := range b.events {
			if strings.HasSuffix(e, " gone") {
				gone = append(gone, e)
			}
		}
		if fmt.Sprint(gone) != "[ncf/2 UNAVAILABLE gone ncf/1 UNAVAILABLE gone]" ||
			b.events[len(b.events)-1] != gone[1] {
			t.Errorf("told that %q are gone, and last %q", gone, b.events[len(b.events)-1])
		}
	})
}

// TestEventsLogged: what becomes of models is in the log, once each, as an event.
func TestEventsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.log = &lockedLog{}
		b.add("ncf/1", "wnd/1")
		b.start()
		want := func(what, events string) {
			t.Helper()
			b.polls(3)
			if got := b.logged(); got != events {
				t.Errorf("%s: logged events\n%swant\n%s", what, got, events)
			}
		}
		want("start", "loaded ncf/1 \nloaded wnd/1 \n")
		want("nothing", "")
		if err := b.Unload(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		want("unload", "unloaded ncf/1 unloaded by call\n")
		if err := b.Load(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		want("return by call", "loaded ncf/1 \n")
		b.add("ncf/2")
		want("newer version", "loaded ncf/2 \nunloaded ncf/1 not chosen by the version policy\n")
		b.remove("ncf/2")
		want("removal", "loaded ncf/1 \nunloaded ncf/2 its files are gone\n")
		b.remove("wnd")
		want("removal of a model", "unloaded wnd/1 its files are gone\n")
		b.write("wnd/model.onnx", identity())
		want("no version", "broken wnd/0 \n")
		b.add("wnd/1")
		want("return of files", "returned wnd/0 \nloaded wnd/1 \n")
		away := b.dir + ".away"
		if err := os.Rename(b.dir, away); err != nil {
			t.Fatal(err)
		}
		want("directory away", "broken /0 \n")
		if err := os.Rename(away, b.dir); err != nil {
			t.Fatal(err)
		}
		want("directory back", "returned /0 \n")
	})
}

func TestLoadAndUnload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "wnd/1")
		b.start()
		ctx := t.Context()

		query := b.hold("ncf", 0)
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := b.Unload(short, "ncf"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("unload under a query: got error %v", err)
		}
		b.serves("ncf", 0)
		b.serves("wnd", 1)
		b.status("ncf", 1, Unloading, "waits for its queries")
		query.Release()
		if err := b.Unload(ctx, "ncf"); err != nil {
			t.Errorf("unload again: %v", err)
		}
		b.polls(5)
		b.status("ncf", 1, Unavailable, "unloaded by call")
		if !query.Model.closed.Load() {
			t.Error("the unloaded version is not closed")
		}

		if err := b.Load(ctx, "ncf"); err != nil {
			t.Error(err)
		}
		b.serves("ncf", 1)
		before := len(b.loads)
		if err := b.Load(ctx, "ncf"); err != nil || len(b.loads) > before {
			t.Errorf("load what is loaded: error %v, %d loads", err, len(b.loads)-before)
		}

		if err := b.Unload(ctx, "ncf"); err != nil {
			t.Error(err)
		}
		b.add("ncf/1")
		b.polls(3)
		b.serves("ncf", 1) // its files changed

		// A new model need not be waited for.
		b.add("dien/1")
		if err := b.Load(ctx, "dien"); err != nil {
			t.Error(err)
		}
		b.serves("dien", 1)

		for _, name := range []string{
			"", ".", "..", "../ncf", "/ncf", "ncf/1", ".hidden", "a\x00b", `a\b`,
		} {
			if err := b.Load(ctx, name); !errors.Is(err, ErrName) {
				t.Errorf("load %q: got error %v", name, err)
			}
			if err := b.Unload(ctx, name); !errors.Is(err, ErrName) {
				t.Errorf("unload %q: got error %v", name, err)
			}
		}
		if err := b.Load(ctx, "dlrm"); !errors.Is(err, ErrNotFound) {
			t.Errorf("load of what is not there: got error %v", err)
		}
		if err := b.Unload(ctx, "dlrm"); !errors.Is(err, ErrNotFound) {
			t.Errorf("unload of what is not there: got error %v", err)
		}
	})
}

// A load by call tries again what failed, and says why it fails.
func TestLoadOfBrokenModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		memory := errors.New("out of memory")
		b.onLoad(func(context.Context, *Version) error { return memory })
		b.start()
		if err := b.Load(t.Context(), "ncf"); !errors.Is(err, memory) {
			t.Errorf("got error %v", err)
		}
		b.load.Store(nil)
		if err := b.Load(t.Context(), "ncf"); err != nil {
			t.Error(err)
		}
		b.serves("ncf", 1)
		b.write("flat/model.onnx", identity())
		if err := b.Load(t.Context(), "flat"); !errors.Is(err, ErrNotReady) ||
			!strings.Contains(err.Error(), "holds no version") {
			t.Errorf("flat: got error %v", err)
		}
	})
}

func TestUnloadWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "wnd/1")
		b.onLoad(func(ctx context.Context, v *Version) error {
			if v.Model == "ncf" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		b.start()
		b.status("ncf", 1, Loading, "being loaded")
		if err := b.Unload(t.Context(), "ncf"); err != nil {
			t.Error(err)
		}
		<-b.Settled()
		b.status("ncf", 1, Unavailable, "unloaded by call")
		b.serves("wnd", 1)
	})
}

// TestLoadOfChangingFiles: a call of Load that waits for the load of another model goes on waiting
// when its own model's files change meanwhile.
func TestLoadOfChangingFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.placed = true
		b.add("ncf/1", "wnd/1")
		b.start()
		b.onLoad(func(context.Context, *Version) error {
			time.Sleep(5 * poll)
			return nil
		})
		loaded := make(chan error, 2)
		for _, model := range []string{"wnd", "ncf"} {
			go func() { loaded <- b.Load(t.Context(), model) }()
			synctest.Wait()
		}
		b.add("ncf/1") // the file changes
		for range 2 {
			if err := <-loaded; err != nil {
				t.Error(err)
			}
		}
		b.serves("ncf", 1)
	})
}

func TestConfigChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		target := func() time.Duration {
			l := b.hold("ncf", 0)
			defer l.Release()
			return l.Version.Config.QoSTarget
		}
		if got := target(); got != 100*time.Millisecond {
			t.Errorf("QoS target %v, want the default of 100ms", got)
		}
		b.write("ncf/model.yaml", "qos_target_ms: 7.5\n")
		b.polls(3)
		if got := target(); got != 7500*time.Microsecond {
			t.Errorf("QoS target %v, want 7.5ms", got)
		}
		b.write("ncf/model.yaml", "qos_target_ms: soon\n")
		b.polls(3)
		if got := target(); got != 7500*time.Microsecond {
			t.Errorf("QoS target %v, want 7.5ms still", got)
		}
		b.status("ncf", 1, Ready, `model.yaml:1: qos_target_ms: got "soon"`)
		b.remove("ncf/model.yaml")
		b.polls(3)
		if got := target(); got != 100*time.Millisecond {
			t.Errorf("QoS target %v, want the default of 100ms", got)
		}
		b.status("ncf", 1, Ready, "")
	})
}

// Links may lead about the model directory and out of it, but not those of models that came from a
// store.
func TestLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		outside := &bench{t: t, dir: t.TempDir()}
		outside.add("secret/1")
		outside.write("model.yaml", "qos_target_ms: 1\n")
		b.add("real/1", "config/1")
		link := func(target, name string) {
			t.Helper()
			name = filepath.Join(b.dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, name); err != nil {
				t.Fatal(err)
			}
		}
		link(filepath.Join(b.dir, "real"), "alias")
		link(filepath.Join(outside.dir, "secret"), "model")
		link(filepath.Join(outside.dir, "secret/1"), "version/1")
		link(filepath.Join(outside.dir, "secret/1/model.onnx"), "file/1/model.onnx")
		link(filepath.Join(outside.dir, "model.yaml"), "config/model.yaml")
		outside.add("2026-11-01/1")
		link(outside.dir, "releases")
		link("../releases/2026-11-01/1", "current/1")
		const fetched = ".store/models/ID/"
		b.add(fetched + "2")
		link(filepath.Join(outside.dir, "secret/1/model.onnx"), fetched+"1/model.onnx")
		link(".store/models/ID", "fetched")
		link("../.store/models/ID/1", "fetched-version/1")
		b.write(".store/models/SETTINGS/1/model.onnx", "")
		link(filepath.Join(outside.dir, "model.yaml"), ".store/models/SETTINGS/model.yaml")
		link(".store/models/SETTINGS", "fetched-settings")
		b.start()
		for _, name := range []string{
			"real", "alias", "model", "version", "file", "config", "current",
		} {
			b.serves(name, 1)
		}
		v, err := ReadVersion(b.dir, "file", 1)
		want := "file/1/model.onnx leads to " + filepath.Join(outside.dir, "secret/1/model.onnx") +
			", outside of the model directory"
		if err != nil || len(v.Config.Notes) != 1 || !strings.Contains(v.Config.Notes[0], want) {
			t.Errorf("got %v and the notes %q, want %q", err, v.Config.Notes, want)
		}
		for _, name := range []string{"fetched", "fetched-version", "fetched-settings"} {
			if _, err := ReadVersion(b.dir, name, 1); err == nil ||
				!strings.Contains(err.Error(),
					"outside of the model directory, and comes from a store") {
				t.Errorf("%s: got %v", name, err)
			}
		}
		b.serves("fetched", 2)
	})
}

// TestLinkedVersion: what a version's folder holds is followed if the folder is a link, as a tool
// makes it that puts a new release beside the old one. So is its size.
func TestLinkedVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add(".release/1")
		if err := os.Mkdir(filepath.Join(b.dir, "ncf"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../.release/1", filepath.Join(b.dir, "ncf/1")); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.serves("ncf", 1)
		before := b.hold("ncf", 0)
		before.Release()
		info, err := os.Stat(filepath.Join(b.dir, "ncf/1/model.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		if all := b.OnDisk(); len(all) != 1 || all[0].Bytes != info.Size() {
			t.Errorf("on disk are %+v, want ncf of %d bytes", all, info.Size())
		}
		b.add(".release/1") // the file changes
		b.polls(3)
		after := b.hold("ncf", 0)
		defer after.Release()
		if after == before {
			t.Error("the version was not loaded anew when its file changed")
		}
	})
}

// Hidden folders and files beside the models are none.
func TestIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add(".ncf-123/1", "ncf/1", "ncf/01", "ncf/latest", "ncf/.2", "ncf/0", "ncf/-1")
		b.write("README.md", "models")
		b.start()
		want := []Status{{Model: "ncf", Version: 1, State: Ready}}
		if got := b.Index(); !slices.Equal(got, want) {
			t.Errorf("index %v, want %v", got, want)
		}
	})
}

// The end of Run waits for queries, and closes everything.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "wnd/1")
		r, err := Open(
			b.dir, func(_ context.Context, v *Version) (*fake, error) {
				return &fake{version: v}, nil
			}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-r.Settled()
		query, err := r.Acquire("ncf", 0)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if _, err := r.Acquire("wnd", 0); !errors.Is(err, ErrNotReady) {
			t.Errorf("acquire at the end: got error %v", err)
		}
		if err := r.Load(t.Context(), "ncf"); !errors.Is(err, ErrClosed) {
			t.Errorf("load at the end: got error %v", err)
		}
		if err := r.Unload(t.Context(), "ncf"); !errors.Is(err, ErrClosed) {
			t.Errorf("unload at the end: got error %v", err)
		}
		select {
		case <-ended:
			t.Error("Run ended under a query")
		default:
		}
		query.Release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !query.Model.closed.Load() {
			t.Error("the model is not closed")
		}
	})
}

// Queries go on while versions come and go, and never see a closed one.
func TestQueriesDuringChanges(t *testing.T) {
	b := newBench(t)
	b.add("ncf/1")
	r, err := Open(
		b.dir, func(_ context.Context, v *Version) (*fake, error) { return &fake{version: v}, nil },
		Options{PollInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	<-r.Settled()
	done := make(chan struct{})
	var queries atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				l, err := r.Acquire("ncf", 0)
				if err != nil {
					t.Error(err)
					return
				}
				if l.Model.closed.Load() {
					t.Error("acquired a closed model")
				}
				queries.Add(1)
				l.Release()
			}
		})
	}
	for i := range 30 {
		b.add(fmt.Sprintf("ncf/%d", i/2+1)) // a new version, and the same again
		if err := r.Load(ctx, "ncf"); err != nil {
			t.Error(err)
		}
	}
	close(done)
	clients.Wait()
	cancel()
	wait.Wait()
	if queries.Load() == 0 {
		t.Error("no queries ran")
	}
}

func TestAcquireAllocates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		if n := testing.AllocsPerRun(100, func() { b.hold("ncf", 0).Release() }); n > 0 {
			t.Errorf("Acquire and Release allocate %v times, want none", n)
		}
	})
}

func BenchmarkAcquire(b *testing.B) {
	w := newBench(b)
	w.add("ncf/1")
	r, err := Open(
		w.dir, func(_ context.Context, v *Version) (*fake, error) { return &fake{version: v}, nil },
		Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	<-r.Settled()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			l, err := r.Acquire("ncf", 0)
			if err != nil {
				b.Error(err)
				return
			}
			l.Release()
		}
	})
	cancel()
	<-ended
}

// A load that does not end, whatever its context says, holds up nobody: neither other models, nor
// calls, nor the end. It fails when its time is up.
func TestEndlessLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("endless/1", "ncf/1")
		release := make(chan struct{})
		t.Cleanup(func() { close(release) }) // after Run has ended
		b.onLoad(func(_ context.Context, v *Version) error {
			if v.Model == "endless" {
				<-release
			}
			return nil
		})
		b.start()
		b.status("endless", 1, Loading, "being loaded")
		time.Sleep(patience)
		synctest.Wait()
		b.serves("ncf", 1)
		select {
		case <-b.Settled():
		default:
			t.Error("not settled: one load holds up the agent")
		}
		b.add("new/1")
		if err := b.Load(t.Context(), "new"); err != nil {
			t.Error(err)
		}
		b.serves("new", 1)
		waits := make(chan error, 1)
		go func() { waits <- b.Load(t.Context(), "endless") }()
		time.Sleep(DefaultLoadTimeout)
		synctest.Wait()
		b.status("endless", 1, Unavailable, "load takes too long: more than 15m")
		if err := <-waits; !errors.Is(err, ErrSlow) {
			t.Errorf("the call that waited for it: got error %v", err)
		}

		// Other files are tried at once.
		b.onLoad(func(context.Context, *Version) error { return nil })
		b.add("endless/1")
		b.polls(3)
		b.serves("endless", 1)
	})
}

// A load ends early when its files are replaced, and what serves goes on serving meanwhile.
func TestReplacedWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		release := make(chan struct{})
		t.Cleanup(func() { close(release) })
		endless := true
		b.onLoad(func(context.Context, *Version) error {
			if endless {
				endless = false
				<-release
			}
			return nil
		})
		first := b.hold("ncf", 1)
		first.Release()
		b.add("ncf/1")
		b.polls(2)
		b.status("ncf", 1, Ready, "being loaded")
		b.add("ncf/1")
		b.polls(2)
		b.serves("ncf", 1)
		b.polls(3)
		b.status("ncf", 1, Ready, "")
		if now := b.hold("ncf", 1); now == first {
			t.Error("the files that replaced those of the endless load are not loaded")
		} else {
			now.Release()
		}
	})
}

// A load call while the model's folder or the whole directory is away changes nothing.
func TestLoadWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1")
		b.start()
		for i, path := range []string{
			b.dir, filepath.Join(b.dir, "ncf"), filepath.Join(b.dir, "ncf/1"),
		} {
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			err := b.Load(t.Context(), "ncf")
			if missing := i < 2; (err != nil) != missing ||
				err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%s is away: got error %v", path, err)
			}
			b.serves("ncf", 1)
			if err := os.Rename(path+".away", path); err != nil {
				t.Fatal(err)
			}
			b.polls(3)
			b.serves("ncf", 1)
		}
		for _, e := range b.events {
			if e == "ncf/1 UNLOADING" {
				t.Errorf("it was taken out of service: %v", b.events)
			}
		}
	})
}

// What is no regular file is refused, and never waited for.
func TestFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("config/1")
		for _, name := range []string{"config/model.yaml", "fifo/1/model.onnx"} {
			name = filepath.Join(b.dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(name, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		b.start()
		b.status("config", 1, Unavailable, "model.yaml: not a regular file")
		b.status("fifo", 1, Unavailable, "not a regular file")
	})
}

// TestExplicit: with explicit control, nothing but calls loads, changes or unloads a model.
func TestExplicit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.explicit = true
		b.add("ncf/1", "wnd/1")
		b.start()
		<-b.Settled()
		b.add("rm2/1")
		b.polls(3)
		for _, model := range []string{"ncf", "wnd", "rm2"} {
			b.status(model, 1, Unavailable, "not loaded by a call yet")
		}
		if err := b.Load(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		b.serves("ncf", 1)
		// changes of the files wait for a call
		b.write("ncf/model.yaml", "qos_target_ms: 7\n")
		b.add("ncf/2")
		b.polls(3)
		b.serves("ncf", 1)
		if !slices.Equal(b.loads, []string{"ncf/1"}) {
			t.Errorf("loaded %v, want ncf/1 alone", b.loads)
		}
		if err := b.Load(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		b.serves("ncf", 2)
		if err := b.Unload(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until it is closed
		b.status("ncf", 2, Unavailable, "unloaded by call")
		b.add("ncf/3")
		b.polls(3)
		b.status("ncf", 3, Unavailable, "unloaded by call")
		// a model whose files are gone serves until it is unloaded
		if err := b.Load(t.Context(), "wnd"); err != nil {
			t.Fatal(err)
		}
		b.remove("wnd")
		b.polls(3)
		b.serves("wnd", 1)
		if err := b.Unload(t.Context(), "wnd"); err != nil {
			t.Fatal(err)
		}
		b.polls(3)
		if _, err := b.Acquire("wnd", 0); !errors.Is(err, ErrNotFound) {
			t.Errorf("a model that is unloaded and gone: got %v, want not found", err)
		}
		// a load that fails is tried again by the next call
		b.onLoad(func(context.Context, *Version) error { return errors.New("no") })
		for range 2 {
			if err := b.Load(t.Context(), "rm2"); err == nil {
				t.Error("a load that fails succeeds")
			}
		}
		b.polls(3)
		if n := len(b.loads); n != 5 {
			t.Errorf("loaded %v, want five loads", b.loads)
		}
	})
}

// TestPlaced: with placed control only calls load a model, whose files are then followed; what is
// on disk is told, loaded or not.
func TestPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.placed = true
		load := func(context.Context, *Version) error { time.Sleep(time.Second); return nil }
		b.load.Store(&load)
		b.add("ncf/1", "wnd/1")
		b.start()
		<-b.Settled()
		b.polls(3)
		for _, model := range []string{"ncf", "wnd"} {
			b.status(model, 1, Unavailable, "not placed here")
		}
		if err := b.Load(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		b.add("ncf/2", "wnd/2")
		b.polls(3)
		time.Sleep(2 * time.Second)
		b.serves("ncf", 2)
		var found []string
		for _, d := range b.OnDisk() {
			found = append(found, d.Version.String())
			if d.Bytes <= 0 || (d.LoadTime > 0) != (d.Version.Model == "ncf") || d.Problem != nil {
				t.Errorf("got %+v", d)
			}
		}
		if want := []string{"ncf version 2", "wnd version 2"}; !slices.Equal(found, want) {
			t.Errorf("on disk %v, want %v", found, want)
		}
		if err := b.Unload(t.Context(), "ncf"); err != nil {
			t.Fatal(err)
		}
		b.status("ncf", 2, Unavailable, "not placed here")
	})
}

// TestExplicitEnsemble: a call that loads an ensemble loads its models too.
func TestExplicitEnsemble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.explicit = true
		b.dir = repositoryOf(t, abc())
		b.start()
		if err := b.Load(t.Context(), "e"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.serves("e", 1)
		b.serves("a", 2)
		b.serves("b", 1)
		if err := b.Unload(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		b.polls(3)
		b.serves("e", 1)
		b.status("a", 2, Unavailable, "unloaded by call")
	})
}

// TestAdmit: a version that is refused is not loaded, and tried again when it may be, not before;
// what serves goes on.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var mu sync.Mutex
		refused := errors.New("nobody has signed it")
		b.admit = func(_ context.Context, v *Version) error {
			mu.Lock()
			defer mu.Unlock()
			return refused
		}
		b.add("ncf/1")
		b.start()
		if _, err := b.Acquire("ncf", 0); err == nil || !strings.Contains(err.Error(),
			refused.Error()) {
			t.Errorf("refused: got %v", err)
		}
		if err := b.Load(t.Context(), "ncf"); !errors.Is(err, ErrRefused) {
			t.Errorf("asked for: got %v, want %v", err, ErrRefused)
		}
		time.Sleep(10 * poll)
		if len(b.loads) > 0 {
			t.Errorf("loaded %v", b.loads)
		}
		mu.Lock()
		refused = nil
		mu.Unlock()
		b.Readmit()
		synctest.Wait()
		b.serves("ncf", 1)
		mu.Lock()
		refused = errors.New("its key is trusted no more")
		mu.Unlock()
		b.Readmit()
		time.Sleep(10 * poll)
		b.serves("ncf", 1)
	})
}

// TestSameFiles: a model whose folder is a link, which comes to lead to another folder with the
// same files, is not loaded again; so a model store can add a version.
func TestSameFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(".a/1/model.onnx", identity())
		b.write(".a/model.yaml", "versions: all\n")
		if err := os.Symlink(".a", filepath.Join(b.dir, "ncf")); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.serves("ncf", 1)
		b.write(".b/2/model.onnx", identity())
		if err := os.Mkdir(filepath.Join(b.dir, ".b", "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"1/model.onnx", "model.yaml"} {
			if err := os.Link(filepath.Join(b.dir, ".a", name),
				filepath.Join(b.dir, ".b", name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(".b", filepath.Join(b.dir, ".new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(b.dir, ".new"), filepath.Join(b.dir, "ncf")); err != nil {
			t.Fatal(err)
		}
		b.polls(5)
		b.serves("ncf", 2)
		if !slices.Equal(b.loads, []string{"ncf/1", "ncf/2"}) {
			t.Errorf("loaded %v, want each version once", b.loads)
		}
	})
}

// TestNotUTF8: a folder whose name no message could carry is passed over, and does not keep the
// agent from describing itself.
func TestNotUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "n\xffcf/1")
		b.start()
		for _, s := range b.Index() {
			if s.Model != "ncf" {
				t.Errorf("the index has %q", s.Model)
			}
		}
		b.serves("ncf", 1)
	})
}
