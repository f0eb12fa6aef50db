//go:build linux && cgo

package profilecmd

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

// counted is a model that counts its runs.
type counted struct {
	brief
	runs *atomic.Int64
}

func (c counted) Run(ctx context.Context, in []tensor.Tensor) (*runtime.Result, error) {
	c.runs.Add(1)
	return c.brief.Run(ctx, in)
}

// twoOf returns two workers of a model, the second of which is off. They are on one processor, but
// say that they are on two.
func twoOf(t *testing.T, m runtime.Model, phases *atomic.Int64) []*pinnedWorker {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	s := &subject{model: m, batches: []int{1}, inputs: [][][]tensor.Tensor{{nil}}}
	cpu := top.CPUs[0].Number
	all, err := newWorkers(s, []int{cpu, cpu}, 1, func(worker, _, _ int) bool {
		if worker == 0 {
			phases.Add(1)
		}
		return worker == 0
	})
	if err != nil {
		t.Fatal(err)
	}
	all[0].cpu, all[1].cpu = 0, 1
	return all
}

// TestApartRunsAgain: what was measured while processors did not share the cache that they should
// does not count, but runs again when they do. Before, rm2 beside rm2 was 1.4 times as slow in one
// run of the command and as fast as alone in another, by where the hypervisor had the processors.
func TestApartRunsAgain(t *testing.T) {
	var runs, phases atomic.Int64
	all := twoOf(t, counted{runs: &runs}, &phases)
	const far, near = 2 * apart, apart / 2
	looks := []time.Duration{far, near, far, near, near} // before, before, after, before, after
	var before int64                                     // runs, of those that do not count
	w := &watch{
		caches: map[int]int{0: 0, 1: 0}, left: time.Hour,
		roundTrip: func(_ context.Context, _ *link, first bool, _ int64) time.Duration {
			if !first {
				return 0
			}
			found := looks[0]
			if looks = looks[1:]; len(looks) == 1 {
				before = runs.Load()
			}
			return found
		},
	}
	if err := measurePhases(context.Background(), all, 2, 1, 0, w); err != nil {
		t.Fatal(err)
	}
	if got := phases.Load(); len(looks) > 0 || got != 4 {
		t.Errorf("%d looks were left, and %d phases ran; want 0, and 2 twice", len(looks), got)
	}
	kept := int64(0)
	for _, phase := range all[0].rounds {
		kept += int64(len(phase[0][0]))
	}
	if before == 0 || kept != runs.Load()-before {
		t.Errorf("%d runs count of %d, want those after the first %d", kept, runs.Load(), before)
	}
	if w.steps != 1 || w.apart != 0 || w.waited < 2*nap {
		t.Errorf("%d of %d steps were apart after %v, want 0 of 1 after two naps", w.apart, w.steps,
			w.waited)
	}
}

// TestApartForever: processors that never share the cache are measured all the same, and it is
// said.
func TestApartForever(t *testing.T) {
	var runs, phases atomic.Int64
	all := twoOf(t, counted{runs: &runs}, &phases)
	w := &watch{
		caches: map[int]int{0: 0, 1: 0}, left: 1,
		roundTrip: func(context.Context, *link, bool, int64) time.Duration { return apart },
	}
	if err := measurePhases(context.Background(), all, 1, 3, 0, w); err != nil {
		t.Fatal(err)
	}
	if w.steps != 3 || w.apart != 3 || w.waited < nap {
		t.Errorf("%d of %d steps were apart after %v, want 3 of 3 after a nap", w.apart, w.steps,
			w.waited)
	}
	for round, batches := range all[0].rounds[0] {
		if len(batches[0]) == 0 {
			t.Errorf("round %d has no run", round)
		}
	}
}

// TestLinks: of the processors of a cache the first is compared with all others, and processors of
// other caches are not.
func TestLinks(t *testing.T) {
	w := &watch{caches: map[int]int{0: 0, 1: 0, 2: 0, 8: 8, 9: 8}}
	var all []*pinnedWorker
	for _, cpu := range []int{0, 8, 1, 9, 0, 2, 77} { // 0 is there twice, 77 is none of the machine
		all = append(all, &pinnedWorker{cpu: cpu})
	}
	var got [][2]int
	for _, l := range w.linksOf(all) {
		got = append(got, [2]int{l.a.cpu, l.b.cpu})
	}
	want := [][2]int{{0, 1}, {8, 9}, {0, 2}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRoundTrip: both sides come to an end, also of several in a row, and also if the context ends
// and the other side is not there. It says nothing about times.
func TestRoundTrip(t *testing.T) {
	l := &link{}
	var run sync.WaitGroup
	for _, first := range []bool{true, false} {
		run.Go(func() {
			for turn := range int64(3) {
				if got := roundTrip(t.Context(), l, first, turn); got <= 0 {
					t.Errorf("a round trip of %v", got)
				}
			}
		})
	}
	run.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	roundTrip(ctx, &link{}, true, 1)
}
