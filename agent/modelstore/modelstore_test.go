package modelstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store"
)

// bench is a Follower with an empty model directory and a store in a folder.
type bench struct {
	*Follower
	t        *testing.T
	store    *store.Store
	dir      string
	root     string // of the store
	released map[string][]int64

	mu       sync.Mutex
	statuses []models.Status
	away     error  // what the store fails with
	lacks    string // a key that it does not list
	log      strings.Builder
	follow   func(model string, number uint64) error // nil: follows any release
}

func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

// says reports whether the log has a text, and forgets it.
func (b *bench) says(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.log.Reset()
	return strings.Contains(b.log.String(), text)
}

type bucket struct {
	store.Bucket
	b *bench
}

func (k bucket) List(ctx context.Context, prefix string, each func(string, int64) error) error {
	k.b.mu.Lock()
	err, lacks := k.b.away, k.b.lacks
	k.b.mu.Unlock()
	if err != nil {
		return err
	}
	return k.Bucket.List(ctx, prefix, func(key string, size int64) error {
		if key == lacks {
			return nil
		}
		return each(key, size)
	})
}

func newBench(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), root: t.TempDir(), released: map[string][]int64{}}
	b.store = store.New(bucket{store.Directory(b.root), b}, "store")
	config := Config{
		Open: func(context.Context) (*store.Store, error) { return b.store, nil },
		Dir:  b.dir, Poll: time.Minute,
		Statuses: func() []models.Status {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.statuses)
		},
		Metrics: NewMetrics(prometheus.NewRegistry()),
		Log:     slog.New(slog.NewTextHandler(b, nil)),
	}
	if change != nil {
		change(&config)
	}
	var err error
	if b.Follower, err = New(config); err != nil {
		t.Fatal(err)
	}
	b.FollowReleases(b)
	t.Cleanup(func() { _ = b.cache.Close() }) // or Run has done it
	return b
}

// Released implements Releases.
func (b *bench) Released(model string) []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.released[model])
}

// Follow implements Releases.
func (b *bench) Follow(_ context.Context, _ *store.Store, model string, number uint64) error {
	if b.follow == nil {
		return nil
	}
	return b.follow(model, number)
}

// look looks at the store once, and returns when all is as it says or has failed.
func (b *bench) look() {
	b.t.Helper()
	b.lists++
	l := b.list(b.t.Context(), b.fetcher.Store, b.revoked, false)
	l.number = b.lists
	b.applyListing(l)
	var running sync.WaitGroup
	for {
		b.startVersions(b.t.Context(), &running)
		busy := false
		for _, m := range b.Follower.models {
			busy = busy || !m.begun.IsZero()
		}
		if !busy {
			return
		}
		b.endAttempt(<-b.brought)
	}
}

// push puts a version with a file of size bytes into the store.
func (b *bench) push(model string, version int64, size int) {
	b.t.Helper()
	folder := filepath.Join(b.t.TempDir(), model)
	dir := filepath.Join(folder, fmt.Sprint(version))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	data := []byte(strings.Repeat(fmt.Sprint(version), size))
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.store.Push(context.Background(), folder, version,
		store.PushOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// ready makes versions of ncf serve, and no others.
func (b *bench) ready(versions ...int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.statuses = nil
	for _, v := range versions {
		b.statuses = append(b.statuses, models.Status{
			Model: "ncf", Version: v, State: models.Ready,
		})
	}
}

// holds checks which folders the model directory has, as "ncf/1".
func (b *bench) holds(what string, want ...string) {
	b.t.Helper()
	found, err := filepath.Glob(filepath.Join(b.dir, "*", "*"))
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for _, path := range found {
		path, _ = filepath.Rel(b.dir, path)
		if path[0] != '.' && !strings.Contains(path, "/.") {
			got = append(got, path)
		}
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: the directory holds %v, want %v", what, got, want)
	}
}

// TestFollow: the newest version comes within a poll, or at once when told; an older one stays
// until the new one serves, and whatever the store does.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.push("ncf", 1, 10)
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { b.FollowStore(ctx) })
		defer running.Wait()
		defer stop()
		synctest.Wait()
		b.holds("at the start", "ncf/1")
		b.ready(1)
		b.push("ncf", 2, 10)
		time.Sleep(b.config.Poll - 2*time.Second)
		synctest.Wait()
		b.holds("before the poll", "ncf/1")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		b.holds("until 2 serves", "ncf/1", "ncf/2")
		b.ready(2)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.holds("after that", "ncf/2")

		b.push("ncf", 3, 10)
		if err := b.Refresh(ctx, "ncf"); err != nil {
			t.Error(err)
		}
		b.holds("told", "ncf/2", "ncf/3")
		b.ready(3)
		b.mu.Lock()
		b.released["ncf"] = []int64{2, 9}
		b.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.holds("2 is released", "ncf/2", "ncf/3")

		b.mu.Lock()
		b.away = fmt.Errorf("%w: 403", store.ErrDenied)
		b.mu.Unlock()
		if err := b.Refresh(ctx, "ncf"); !errors.Is(err, store.ErrDenied) {
			t.Errorf("no rights: got %v", err)
		}
		b.holds("no rights", "ncf/2", "ncf/3")
		if !b.says("event=broken") {
			t.Error("no event says that there are no rights")
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if b.says("event=broken") {
			t.Error("the same fault is said again")
		}
		b.mu.Lock()
		b.away = nil
		b.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !b.says("event=returned") {
			t.Error("no event says that the store is back")
		}
	})
}

// TestFollowGone: a released version serves on when the store has it no longer, with its settings,
// also after a start; one that is not released goes.
func TestFollowGone(t *testing.T) {
	b := newBench(t, nil)
	for version := range int64(4) {
		b.push("ncf", version+1, 10)
	}
	b.released["ncf"] = []int64{3, 2}
	b.look()
	b.ready(2, 3, 4)
	b.holds("with all of them", "ncf/2", "ncf/3", "ncf/4")
	b.lacks = "models/ncf/3.json"
	for range 2 {
		b.look()
		b.holds("without 3", "ncf/2", "ncf/3", "ncf/4")
		held := b.cache.Held()["ncf"]
		if len(held) != 3 || held[0].Version != 3 {
			t.Errorf("held %v, want 3 first", held)
		}
		if err := b.cache.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if b.Follower, err = New(b.config); err != nil {
			t.Fatal(err)
		}
		b.FollowReleases(b)
	}
	b.released["ncf"] = nil
	b.look()
	b.holds("nothing is released", "ncf/4")
}

// TestFollowForgets: however many versions a model has had, the manifests that are kept are those
// of the versions that are wanted.
func TestFollowForgets(t *testing.T) {
	b := newBench(t, nil)
	for version := range int64(5) {
		b.push("ncf", version+1, 10)
		b.look()
	}
	b.released["ncf"] = []int64{3}
	b.look()
	kept := slices.Sorted(maps.Keys(b.modelOf("ncf").manifests))
	if want := []int64{3, 5}; !slices.Equal(kept, want) {
		t.Errorf("kept the manifests of %v, want %v", kept, want)
	}
	b.holds("at the end", "ncf/3", "ncf/5")
}

// TestFollowReleases: the newest release is read before a model's files, once for each number.
// While it cannot be, the model's versions stay as they are, and other models come.
func TestFollowReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var read []string
		var fails error
		b := newBench(t, nil)
		b.follow = func(model string, number uint64) error {
			read = append(read, fmt.Sprintf("%s %d", model, number))
			return fails
		}
		b.push("ncf", 1, 10)
		b.push("wnd", 1, 10)
		release := func(number uint64) {
			t.Helper()
			if err := b.store.CreateRelease(t.Context(), "ncf", number, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		release(1)
		fails = errors.New("no release")
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { b.FollowStore(ctx) })
		defer running.Wait()
		defer stop()
		synctest.Wait()
		b.holds("its release cannot be read", "wnd/1")
		if !b.says("no release") {
			t.Error("no event says why ncf is not here")
		}
		release(2)
		fails = nil
		if err := b.Refresh(ctx, "ncf"); err != nil {
			t.Error(err)
		}
		b.holds("its release is read", "ncf/1", "wnd/1")
		if want := []string{"ncf 1", "ncf 2"}; !slices.Equal(read, want) {
			t.Errorf("read %q, want %q", read, want)
		}
	})
}

// TestFollowBound: what the cache cannot hold is named, and the old version stays; the other models
// come all the same. Models that are not listed leave.
func TestFollowBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.CacheBytes = 1000 })
		b.push("ncf", 1, 100)
		b.look()
		b.ready(1)
		b.push("ncf", 2, 2000)
		b.push("wnd", 1, 100)
		b.look()
		b.holds("too large", "ncf/1", "wnd/1")
		if why := b.last["ncf"]; why == nil ||
			!strings.Contains(why.Error(), "may take 1000 bytes") {
			t.Errorf("got %v", why)
		}
		b.config.Models = []string{"ncf", "din"}
		b.look()
		b.holds("only ncf", "ncf/1")
		if why := b.last["din"]; !errors.Is(why, store.ErrNotFound) {
			t.Errorf("a model that is not there: got %v", why)
		}
	})
}

// agents is a fleet in one process.
type agents struct {
	servers map[names.AgentName]*Server
	self    names.AgentName
}

func (a agents) Self() names.AgentName { return a.self }

func (a agents) View() *control.View {
	v := &control.View{}
	for name := range a.servers {
		v.Members = append(v.Members, &control.Member{Name: string(name)})
	}
	return v
}

func (a agents) Dial(name names.AgentName) (grpc.ClientConnInterface, error) {
	return conn{server: a.servers[name]}, nil
}

// conn is a connection to a Server.
type conn struct {
	grpc.ClientConnInterface
	server *Server
}

func (c conn) Invoke(_ context.Context, _ string, in, out any, _ ...grpc.CallOption) error {
	state := c.server.DescribeFile(in.(*control.FileRequest))
	to := out.(*control.FileState)
	to.Has, to.All, to.Parts = state.Has, state.All, state.Parts
	return nil
}

func (c conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (
	grpc.ClientStream, error) {
	return &stream{server: c.server, ctx: ctx}, nil
}

type stream struct {
	grpc.ClientStream
	grpc.ServerStreamingServer[control.FileBytes]
	server *Server
	ctx    context.Context
	sent   [][]byte
	err    error
}

func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) CloseSend() error             { return nil }

func (s *stream) SendMsg(m any) error {
	s.err = s.server.ReadFile(m.(*control.ReadFileRequest), s)
	return nil
}

func (s *stream) Send(m *control.FileBytes) error {
	s.sent = append(s.sent, slices.Clone(m.Data))
	return nil
}

func (s *stream) RecvMsg(m any) error {
	if len(s.sent) == 0 {
		if s.err != nil {
			return s.err
		}
		return io.EOF
	}
	m.(*control.FileBytes).Data = s.sent[0]
	s.sent = s.sent[1:]
	return nil
}

// TestPeers: an agent takes from another what it has, without the store.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newBench(t, nil)
		first.push("ncf", 1, 100_000)
		first.look()
		fleet := agents{servers: map[names.AgentName]*Server{
			"a": NewServer(first.Follower), "b": nil, "c": {},
		}, self: "b"}
		second := newBench(t, func(c *Config) { c.Peers = &Peers{Fleet: fleet} })
		second.store = first.store
		second.look()
		second.holds("from a", "ncf/1")
		registry := prometheus.NewRegistry()
		registry.MustRegister(second.config.Metrics.received)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range families[0].Metric {
			source, n := m.Label[0].GetValue(), m.Counter.GetValue()
			if want := map[string]float64{"peer": 100_000, "store": 0}[source]; n != want {
				t.Errorf("%v bytes from the %s, want %v", n, source, want)
			}
		}
		held, _ := filepath.Glob(filepath.Join(first.dir, ".store", "files", "*"))
		sum := filepath.Base(held[0])
		for what, req := range map[codes.Code]*control.ReadFileRequest{
			codes.InvalidArgument: {Sha256: sum, Length: largestRead + 1},
			codes.NotFound:        {Sha256: strings.Repeat("00", 32), Length: 1},
		} {
			err := fleet.servers["a"].ReadFile(req, &stream{ctx: t.Context()})
			if status.Code(err) != what {
				t.Errorf("%v: got %v, want %v", req, err, what)
			}
		}
		bad := &control.ReadFileRequest{Sha256: "../../../etc/passwd", Length: 1}
		if err := fleet.servers["a"].ReadFile(bad, &stream{ctx: t.Context()}); err == nil {
			t.Error("a name that leaves the cache: no error")
		}
		if s := fleet.servers["a"].DescribeFile(&control.FileRequest{Sha256: "../x"}); s.GetHas() {
			t.Error("a name that leaves the cache is there")
		}
	})
}
