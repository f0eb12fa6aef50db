package dashboard

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

func rowAt(second uint64, models int) *control.Row {
	r := &control.Row{
		Second: second, Beats: 1, Rate: float64(second % 100), Limit: math.NaN(), Price: 2,
		Waiting: uint32(second % 7), Answered: 3,
	}
	for i := range models {
		r.Models = append(r.Models, &control.ModelRow{
			Model: fmt.Sprintf("model%d/1", i), Answered: 3, P50Ns: math.NaN(),
			P99Ns: float64(second % 60),
		})
	}
	return r
}

// TestRings: the last 600 seconds and 1,440 minutes are kept; a minute sums up, averages or has the
// highest of its seconds; and what another agent is told of it is the same.
func TestRings(t *testing.T) {
	var r rings
	const first, last = 100_000, 200_039
	for s := uint64(first); s <= last; s++ {
		r.add(rowOf(rowAt(s, 2)))
	}
	seconds, minutes := r.rowsAfter(0, last)
	if len(seconds) != 600 || seconds[0].second != last-599 || len(minutes) != 1440 {
		t.Fatalf("%d seconds from %d, %d minutes", len(seconds), seconds[0].second, len(minutes))
	}
	m := minutes[100]
	sum := 0.0
	for s := m.second; s < m.second+60; s++ {
		sum += float64(s % 100)
	}
	if m.second%60 != 0 || m.beats != 60 || m.answered != 180 || m.waiting != 6 || m.price != 2 ||
		!math.IsNaN(float64(m.limit)) || math.Abs(float64(m.rate)-sum/60) > 1e-3 ||
		len(m.models) != 2 || m.models[1].answered != 180 || m.models[1].p99 != 59 ||
		!math.IsNaN(float64(m.models[1].p50)) {
		t.Errorf("a minute is %+v", m)
	}
	var other rings
	other.add(rowOf(rowAt(last+1, 1))) // what it knows itself stays
	newSeconds, newMinutes := other.put(toRowMessages(seconds), toRowMessages(minutes))
	if len(newSeconds) != 599 || len(newMinutes) != 1439 {
		t.Errorf("%d seconds and %d minutes were new", len(newSeconds), len(newMinutes))
	}
	again, _ := other.rowsAfter(last-5, last+1)
	if len(again) != 6 || again[5].second != last+1 {
		t.Errorf("after the sixth last second there are %d", len(again))
	}
	for i, x := range again[:5] {
		if !proto.Equal(x.toMessage(), seconds[595+i].toMessage()) {
			t.Errorf("second %d is %v, was %v", x.second, x.toMessage(), seconds[595+i].toMessage())
		}
	}
	// A minute in which the second is, and that was told in part, is told again: it had not ended.
	_, again = r.rowsAfter(last-100, last)
	if len(again) != 2 || again[0].second != last-100-(last-100)%60 || again[0].beats != 60 {
		t.Errorf("after the middle of a minute there are %d minutes, %+v", len(again), again)
	}
	if _, again = r.rowsAfter(199_979, last); len(again) != 1 || again[0].second != 199_980 {
		t.Errorf("after the last second of a minute there are %d minutes, %+v", len(again), again)
	}
	if s, m := other.put(toRowMessages(seconds), toRowMessages(minutes)); len(s)+len(m) != 0 {
		t.Errorf("told twice, %d seconds and %d minutes are new", len(s), len(m))
	}
}

// TestRingsMemory: a day with 20 models takes less than 2 MB.
func TestRingsMemory(t *testing.T) {
	size := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := size()
	r := new(rings)
	for s := uint64(1); s <= 24*3600; s++ {
		r.add(rowOf(rowAt(s, 20)))
	}
	if used := size() - before; used > 2<<20 {
		t.Errorf("%d bytes, want 2 MB at most", used)
	}
	runtime.KeepAlive(r)
}
