package worker

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// generated returns a repository of small models.
func generated(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, model := range names {
		if _, err := zoo.Generate(t.Context(), dir, model,
			zoo.Options{Scale: zoo.Small}); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLayoutFits: the models of a fixed layout, and only they, must fit the memory; the error names
// them.
func TestLayoutFits(t *testing.T) {
	dir := generated(t, "ncf", "wnd", "din")
	layout, err := place.ParseLayout("ncf:2x1+wnd:1x1")
	if err != nil {
		t.Fatal(err)
	}
	repository, err := models.Open(dir, func(context.Context, *models.Version) (*LoadedModel,
		error) {
		return nil, nil
	}, models.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	bytes := int64(0)
	for _, d := range repository.OnDisk() {
		if d.Version.Model != "din" {
			bytes += d.Bytes
		}
	}
	if bytes == 0 {
		t.Fatal("the models take no memory")
	}
	w := &Worker{config: Config{Layout: layout, InMemory: true}, repository: repository}
	for _, enough := range []int64{0, bytes} { // 0: not known
		if err := w.checkMemory(enough); err != nil {
			t.Errorf("%d bytes: %v", enough, err)
		}
	}
	err = w.checkMemory(bytes - 1)
	if err == nil || !strings.Contains(err.Error(), "layout ncf:2x1+wnd:1x1 does not fit") ||
		!strings.Contains(err.Error(), "wnd ") || strings.Contains(err.Error(), "din ") {
		t.Errorf("a byte too few: %v", err)
	}
	w.config.InMemory = false
	if err := w.checkMemory(1); err != nil {
		t.Errorf("emulated, or mapped from files: %v", err)
	}
}

// A holding executor holds the load of wnd until end is closed.
type holding struct {
	runtime.Executor
	began, end chan struct{}
}

func (x *holding) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	if v.Model == "wnd" {
		close(x.began)
		<-x.end
	}
	return x.Executor.Load(ctx, v)
}

// A testFleet has no other agents, unless alone says so.
type testFleet struct {
	changed chan struct{} // of size 1, or nil
	alone   *bool         // nil: it is
}

func (f *testFleet) Own() *control.Member                { return &control.Member{} }
func (f *testFleet) Alone() bool                         { return f.alone == nil || *f.alone }
func (f *testFleet) ToldByLeader(*control.LeaderMessage) {}

func (f *testFleet) SelfChanged() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// A testHost is an r5n.large, and takes no notice of what models do.
type testHost struct{}

func (testHost) InstanceType() profiles.InstanceType { return "r5n.large" }
func (testHost) Draining() bool                      { return false }
func (testHost) Observe(models.VersionEvent)         {}

// TestLoadWhileLanesMove: a model that loads while lanes move serves on the lanes that follow, with
// sessions for them, whether they move before it has warmed up or after.
func TestLoadWhileLanesMove(t *testing.T) {
	dir := generated(t, "ncf", "wnd")
	layout, err := place.ParseLayout("ncf:2x1+wnd:1x1")
	if err != nil {
		t.Fatal(err)
	}
	emulated, err := Emulate("r5n.large", ShippedProfile)
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"while it loads", "when it has warmed up"} {
		t.Run(when, func(t *testing.T) {
			x := &holding{emulated, make(chan struct{}), make(chan struct{})}
			fleet := &testFleet{changed: make(chan struct{}, 1)}
			const moved = "ncf:1x1+wnd:2x1"
			var w *Worker
			move := func() {
				w.layouts.takeLanesOrder("leader", &control.LanesOrder{
					Epoch: 1, From: layout.String(), To: moved,
				})
				for w.layout.Load().String() != moved {
					<-fleet.changed
				}
			}
			if w, err = Open(Config{
				Executor: x, Leading: &members.LeadershipWatch{}, Lanes: 3, Cores: 3,
				Layout:   layout,
				ModelDir: dir, LoadTimeout: time.Minute, Placed: true, StateDir: t.TempDir(),
				Catalogue: profiles.DefaultCatalogue(), Library: profiles.ShippedLibrary(),
				Host: testHost{}, Fleet: fleet, Health: testHost{},
				Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
			}); err != nil {
				t.Fatal(err)
			}
			w.OnLoad(func(v *models.Version) {
				if v.Model == "wnd" && when != "while it loads" {
					move()
				}
			})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.Run(ctx) }()
			defer func() { stop(); <-ended }()
			if when == "while it loads" {
				<-x.began
				move()
			}
			close(x.end)
			<-w.repository.Settled()
			loaded, err := w.repository.Acquire("wnd", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer loaded.Release()
			runs, part := loaded.Model.runs, w.lanes.Of("wnd")
			if part.Size() != 2 || runs.On(part.Partition) == runs.Model {
				t.Errorf("the %d lanes have no sessions of wnd", part.Size())
			}
		})
	}
}
