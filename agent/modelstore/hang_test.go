package modelstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/models/store"
)

// hanging is a bucket that does not answer for keys that contain a text, but waits for ctx to end.
type hanging struct {
	store.Bucket
	mu   sync.Mutex
	text string // "": it answers
}

func (h *hanging) hang(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = text
}

func (h *hanging) wait(ctx context.Context, key string) error {
	h.mu.Lock()
	hangs := h.text != "" && strings.Contains(key, h.text)
	h.mu.Unlock()
	if !hangs {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (h *hanging) List(ctx context.Context, prefix string, each func(string, int64) error) error {
	if err := h.wait(ctx, prefix); err != nil {
		return err
	}
	return h.Bucket.List(ctx, prefix, each)
}

func (h *hanging) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	if err := h.wait(ctx, key); err != nil {
		return nil, 0, err
	}
	return h.Bucket.Open(ctx, key, offset, length)
}

// TestHang: a model for which the store hangs keeps no other waiting, neither those that come by
// themselves nor those that are asked for; and a store that hangs altogether, or is dead, does not
// keep a model waiting that is not from it. Time is virtual.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		h := &hanging{Bucket: bucket{store.Directory(t.TempDir()), b}}
		b.store = store.New(h, "store")
		for i := range 5 {
			b.push(fmt.Sprintf("a%d", i), 1, 10)
		}
		b.push("ncf", 1, 10)
		own := filepath.Join(b.dir, "own", "1")
		if err := os.MkdirAll(own, 0o755); err != nil {
			t.Fatal(err)
		}
		h.hang("models/a")
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { b.FollowStore(ctx) })
		defer running.Wait()
		defer stop()
		asked, cancel := context.WithTimeout(ctx, 2*long)
		defer cancel()
		if err := b.Refresh(asked, "ncf"); err != nil {
			t.Errorf("asked for, while others hang: %v", err)
		}
		b.holds("asked for", "ncf/1", "own/1")
		b.push("wnd", 1, 10)
		time.Sleep(b.config.Poll + 4*long)
		synctest.Wait()
		b.holds("by itself", "ncf/1", "own/1", "wnd/1")
		if n := testutil.ToFloat64(b.config.Metrics.faults); n < 1 {
			t.Errorf("models that hang: %v faults, want 1 or more", n)
		}

		h.hang("models/") // all of it
		start := time.Now()
		if err := b.Refresh(ctx, "own"); err != nil || time.Since(start) > 0 {
			t.Errorf("a model that is not from the store: %v, after %v", err, time.Since(start))
		}
		if err := b.Refresh(ctx, "ncf"); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(start) > 3*listTime {
			t.Errorf("a model that is: %v, after %v", err, time.Since(start))
		}
		h.hang("models/a")
		b.mu.Lock()
		b.away = errors.New("connection refused")
		b.mu.Unlock()
		if err := b.Refresh(ctx, "own"); err != nil {
			t.Errorf("a model that is not from the store: %v", err)
		}
		if err := b.Refresh(ctx, "ncf"); err == nil {
			t.Error("a model of a dead store: no error")
		}
		if err := b.Refresh(ctx, "../own"); err == nil {
			t.Error("a name that leaves the directory: no error")
		}
		b.holds("at the end", "ncf/1", "own/1", "wnd/1")
	})
}

// closing is a bucket that notes that it was closed.
type closing struct {
	store.Bucket
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return c.Bucket.Close()
}

// TestOpenedLate: a store that has opened when its Follower stops already is closed, too.
func TestOpenedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		late := &closing{Bucket: store.Directory(t.TempDir())}
		b := newBench(t, func(c *Config) {
			c.Open = func(context.Context) (*store.Store, error) {
				stop()
				synctest.Wait() // Run does no more than wait for this
				return store.New(late, "store"), nil
			}
		})
		b.FollowStore(ctx)
		if !late.closed {
			t.Error("the store is open")
		}
	})
}

// TestPacer: while there are queries, all transfers together get a sixteenth of the rate, and their
// work a 64th of the time; else the rate. Time is virtual.
func TestPacer(t *testing.T) {
	const rate = 16 << 20
	synctest.Test(t, func(t *testing.T) {
		queries := true
		p := newTransferPacer(&Config{
			BytesPerSecond: rate,
			Pause: func(_ context.Context, d time.Duration) error {
				if queries {
					time.Sleep(d)
				}
				return nil
			},
		})
		transfer := func(bytes int, took time.Duration) time.Duration {
			begin := time.Now()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for n := 0; n < bytes/4; n += 64 << 10 {
						if err := p.wait(t.Context(), 64<<10, took); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			return time.Since(begin)
		}
		if got := transfer(rate, 0); got < 15*time.Second || got > 17*time.Second {
			t.Errorf("a second's bytes beside queries took %v, want 16 s", got)
		}
		took := 10 * time.Millisecond // on a busy machine; 256 pieces
		if got, want := transfer(rate, took), 256*rest*took; got < want || got > want+time.Second {
			t.Errorf("pieces that take %v each took %v, want %v", took, got, want)
		}
		queries = false
		if got := transfer(4*rate, took); got > 5*time.Second {
			t.Errorf("four seconds' bytes without queries took %v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if p.wait(ctx, 1, 0) == nil {
			t.Error("after the end of the context: no error")
		}
	})
}

// TestHear: an agent that asks because it fetches a file is known to those who fetch it too, at
// once, and forgotten when it leaves the fleet. Time is virtual.
func TestHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := map[names.AgentName]*Server{}
		var all []*Peers
		for _, name := range []names.AgentName{"a", "b"} {
			peers := &Peers{Fleet: agents{servers: servers, self: name}}
			b := newBench(t, func(c *Config) { c.Peers = peers })
			servers[name], all = NewServer(b.Follower), append(all, peers)
		}
		f := store.File{Path: "1/x", Size: 1, SHA256: strings.Repeat("0a", 32)}
		if !all[0].Ask(t.Context(), f) {
			t.Error("not all have answered")
		}
		if known := all[0].Known(f); len(known) != 0 {
			t.Errorf("before b fetches it: %v", known)
		}
		all[1].Ask(t.Context(), f)
		if known := all[0].Known(f); len(known) != 1 || known["b"].All {
			t.Errorf("b fetches it: got %v", known)
		}
		servers["a"].DescribeFile(&control.FileRequest{Sha256: strings.Repeat("0b", 32),
			Agent: "b"})
		if len(all[0].files) != 1 {
			t.Error("a remembers who fetches a file that it does not fetch itself")
		}
		delete(servers, "b")
		all[0].Ask(t.Context(), f)
		if known := all[0].Known(f); len(known) != 0 {
			t.Errorf("after b has left: %v", known)
		}
	})
}

// stuck is a bucket whose calls do not end, not even with their context, while it hangs: as those
// of a file system whose server is away.
type stuck struct {
	store.Bucket
	in string // the part of keys for which it hangs
	// on is closed when it answers.
	on chan struct{}
}

func (s *stuck) List(ctx context.Context, prefix string, each func(string, int64) error) error {
	if strings.Contains("list "+prefix, s.in) {
		<-s.on
	}
	return s.Bucket.List(ctx, prefix, each)
}

func (s *stuck) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	if strings.Contains(key, s.in) {
		<-s.on
	}
	return s.Bucket.Open(ctx, key, offset, length)
}

// TestStuck: what never ends, not even when it is told to, is a fault, and keeps the agent from
// ending for a few seconds. Time is virtual.
func TestStuck(t *testing.T) {
	for _, in := range []string{"list models/", "blobs/"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, nil)
			s := &stuck{bucket{store.Directory(t.TempDir()), b}, "nothing", make(chan struct{})}
			b.store = store.New(s, "stuck")
			b.push("ncf", 1, 10)
			s.in = in
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				b.FollowStore(ctx)
				close(ended)
			}()
			time.Sleep(stalled + overdue)
			synctest.Wait()
			if n := testutil.ToFloat64(b.config.Metrics.faults); n != 1 {
				t.Errorf("%s: %v faults, want 1", in, n)
			}
			if !b.says("file system") {
				t.Errorf("%s: nothing is logged", in)
			}
			begin := time.Now()
			stop()
			<-ended
			if took := time.Since(begin); took > endTime {
				t.Errorf("%s: it ended after %v", in, took)
			}
			close(s.on)
			synctest.Wait()
		})
	}
}
