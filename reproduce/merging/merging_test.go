package merging

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

const ms = time.Millisecond

// A line is a latency with a fixed part and one for each item. Its 80 % quantile is a tenth higher.
type line struct{ fixed, perItem time.Duration }

func (l line) Mean(batch int) time.Duration { return l.fixed + time.Duration(batch)*l.perItem }
func (l line) P80(batch int) time.Duration  { return l.Mean(batch) * 11 / 10 }

// due makes items of the given batch sizes and due times.
func items(pairs ...int) (all []merge.Item) {
	for i := 0; i < len(pairs); i += 2 {
		x := merge.Item{Batch: pairs[i], Due: time.Duration(pairs[i+1]) * ms}
		if pairs[i+1] == 0 {
			x.Due = merge.Never
		}
		all = append(all, x)
	}
	return all
}

func TestChoose(t *testing.T) {
	floor := line{10 * ms, ms / 10} // merging pays
	steep := line{ms, 10 * ms}      // it does not
	for _, tt := range []struct {
		name    string
		policy  names.MergePolicy
		latency line
		largest int
		waiting []merge.Item
		take    []int
		until   time.Duration
	}{
		{"nexus", Nexus, floor, 100, items(1, 12, 5, 13, 50, 14, 1, 15), []int{0, 1}, 0},
		{"nexus without gain", Nexus, steep, 100, items(1, 50, 1, 50, 1, 50, 1, 50),
			[]int{0, 1, 2, 3}, 0},
		{"nexus, late ones", Nexus, floor, 5, items(1, 0, 3, 0, 3, 0), []int{0, 1}, 0},

		// 10.2 ms for two items, 11.22 ms by the quantile, nearly at most 13.26 ms
		{"proteus waits for a second", Proteus, floor, 100, items(1, 50), []int{0},
			50*ms - 13260*time.Microsecond},
		{"proteus waits for a third", Proteus, floor, 100, items(2, 50, 2, 60), []int{0, 1},
			50*ms - 13780*time.Microsecond},
		{"proteus runs", Proteus, floor, 100, items(1, 12, 1, 13, 1, 14, 50, 15),
			[]int{0, 1, 2}, 0},
		{"proteus is full", Proteus, floor, 2, items(1, 50, 1, 50), []int{0, 1}, 0},
		{"proteus, late ones", Proteus, floor, 9, items(1, 0, 1, 0), []int{0, 1}, 0},

		{"symphony waits longer", Symphony, floor, 100, items(1, 50), []int{0},
			50*ms - 13130*time.Microsecond},
		{"symphony is full", Symphony, floor, 2, items(1, 50, 1, 50, 1, 50), []int{0, 1}, 0},

		{"aimd begins with one", AIMD, floor, 100, items(1, 50, 1, 50), []int{0}, 0},
	} {
		k := &merge.Kind{
			Policy: tt.policy, Rule: New(tt.policy), Latency: tt.latency, Largest: tt.largest,
		}
		take, until := k.Choose(0, tt.waiting)
		if !slices.Equal(take, tt.take) || until != tt.until {
			t.Errorf("%s: takes %v, until %v, want %v, %v", tt.name, take, until, tt.take, tt.until)
		}
	}
}

func TestAIMD(t *testing.T) {
	k := &merge.Kind{Policy: AIMD, Rule: New(AIMD), Latency: line{ms, 0}, Largest: 30}
	waiting := items(slices.Repeat([]int{1, 0}, 64)...)
	size := func() int {
		take, _ := k.Choose(0, waiting)
		return len(take)
	}
	for want := 1; want < 20; want++ {
		if got := size(); got != want {
			t.Fatalf("after %d runs in time %d queries run, want %d", want-1, got, want)
		}
		k.Ran(want, false)
	}
	if k.Ran(3, false); size() != 20 {
		t.Errorf("a small run lets the next have %d, want still 20", size())
	}
	if k.Ran(20, true); size() != 18 {
		t.Errorf("after a late one %d run, want 18", size())
	}
	for range 100 {
		k.Ran(size(), false)
	}
	if size() != 30 {
		t.Errorf("%d run, want at most the largest batch size, 30", size())
	}
	for range 100 {
		k.Ran(size(), true)
	}
	if size() != 1 {
		t.Errorf("%d run, want at least 1", size())
	}
	k.Rule = New(AIMD)
	if k.Ran(1, false); size() != 2 { // it ran alone, so nothing was chosen before
		t.Errorf("after a run in time %d run, want 2", size())
	}
}
