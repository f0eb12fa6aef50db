package store

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a bucket in whose files each read takes a while, and never ends for some.
type slow struct {
	Bucket
	takes time.Duration
	hangs bool
}

func (b slow) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	r, size, err := b.Bucket.Open(ctx, key, offset, length)
	if err != nil || !strings.HasPrefix(key, "blobs/") {
		return r, size, err
	}
	return struct {
		io.Reader
		io.Closer
	}{slowly{ctx, r, b}, r}, size, nil
}

type slowly struct {
	ctx context.Context
	io.Reader
	b slow
}

func (s slowly) Read(p []byte) (int, error) {
	if s.b.hangs {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	if err := sleep(s.ctx, s.b.takes); err != nil {
		return 0, err
	}
	return s.Reader.Read(p)
}

// TestSwarm: of agents that begin at different times, all want what one is taking from the store:
// that one copy is all that comes of it. If the store hangs for one agent, one other takes what
// that one was to take, not all. Time is virtual.
func TestSwarm(t *testing.T) {
	for _, tt := range []struct {
		name    string
		between time.Duration // that agents begin
		hangs   bool          // the store hangs for the agent that begins, and takes all parts
		most    float64       // copies
	}{
		{"at once", 0, false, 2}, // two may take a part in the same moment
		{"one after another", 700 * time.Millisecond, false, 1},
		{"one hangs", 0, true, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			whole, _ := pushed(t)
			m, _, err := whole.Manifest(context.Background(), "ncf", 1)
			if err != nil {
				t.Fatal(err)
			}
			all := &fleet{caches: map[string]*Cache{}}
			var fromStore atomic.Int64
			var fetchers []*Fetcher
			for i := range 20 {
				f, _ := fetcher(t, New(slow{whole.bucket, 3 * time.Second, tt.hangs && i == 0},
					"slow"))
				f.Peers = seat{all, fmt.Sprintf("agent-%d", i)}
				f.Received = func(source string, n int) {
					if source == "store" {
						fromStore.Add(int64(n))
					}
				}
				fetchers = append(fetchers, f)
			}
			synctest.Test(t, func(t *testing.T) {
				var group sync.WaitGroup
				for i, f := range fetchers {
					all.mu.Lock()
					all.caches[f.Peers.Self()] = f.Cache
					all.mu.Unlock()
					group.Go(func() {
						if err := f.ensure(t, 1); err != nil {
							t.Errorf("agent %d: %v", i, err)
						}
					})
					time.Sleep(tt.between)
					synctest.Wait()
				}
				group.Wait()
			})
			copies := float64(fromStore.Load()) / float64(m.Bytes())
			t.Logf("%.2f copies", copies)
			if copies < 1 || copies > tt.most {
				t.Errorf("%.2f copies from the store, want at most %v", copies, tt.most)
			}
		})
	}
}

// TestTogether: two models that have a file in common, fetched at the same time, fetch it once, and
// together they take no more than the cache may.
func TestTogether(t *testing.T) {
	s, _ := open(t)
	from := t.TempDir()
	var manifests []*Manifest
	for i, name := range []string{"ncf", "wnd", "din"} {
		p, err := s.Push(context.Background(), model(t, from, name, 1, uint64(i/2), 1_000_000), 1,
			PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, p.Manifest)
	}
	dir := t.TempDir()
	cache := openedFile(t, dir, 1_500_000)
	var received atomic.Int64
	f := &Fetcher{
		Cache: cache, Store: New(slow{s.bucket, time.Second, false}, "slow"),
		Received: func(_ string, n int) { received.Add(int64(n)) },
	}
	errs := make([]error, len(manifests))
	synctest.Test(t, func(t *testing.T) {
		var group sync.WaitGroup
		for i, m := range manifests {
			group.Go(func() {
				_, errs[i] = f.Ensure(t.Context(), m.Model, []*Manifest{m}, nil)
			})
			synctest.Wait() // the one before has begun
		}
		group.Wait()
	})
	if errs[0] != nil || errs[1] != nil {
		t.Errorf("two models with the same weights: %v, %v", errs[0], errs[1])
	}
	if errs[2] == nil || !strings.Contains(errs[2].Error(), "may take 1500000 bytes") {
		t.Errorf("one more than there is room for: got %v", errs[2])
	}
	if n := received.Load(); n > 1_001_000 {
		t.Errorf("received %d bytes, want the common weights of 1,000,000 once", n)
	}
	for name, want := range map[string]bool{"ncf": true, "wnd": true, "din": false} {
		_, err := os.Stat(filepath.Join(dir, name, "1", "weights"))
		if (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}
