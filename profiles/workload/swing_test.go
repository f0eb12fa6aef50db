package workload

import (
	"math"
	"testing"
	"time"
)

func TestSwing(t *testing.T) {
	swing := Swing{Period: 100 * time.Second, Depth: .5}
	arrivals, err := ParseArrivals("poisson", 400*swing.Most())
	if err != nil {
		t.Fatal(err)
	}
	one, err := Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := Queries(1, arrivals, Load{"a", 1, one}, Load{"b", 1, one})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][4]int{}
	for q := range swing.Thin(1, stream, []string{"a", "b"}) {
		if q.At >= 400*time.Second {
			break
		}
		quarters := got[q.Model]
		quarters[int(q.At/(25*time.Second))%4]++
		got[q.Model] = quarters
	}
	// Each of the models has 200 queries/s in the mean, in its high half 1+.5*2/pi times as many.
	high, low := 20_000*(1+1/math.Pi), 20_000*(1-1/math.Pi)
	for model, want := range map[string][4]float64{
		"a": {high, high, low, low}, "b": {low, low, high, high},
	} {
		for i, n := range got[model] {
			if math.Abs(float64(n)-want[i]) > 5*math.Sqrt(want[i]) {
				t.Errorf("%s, quarter %d: got %d queries, want %.0f", model, i, n, want[i])
			}
		}
	}
	for _, bad := range []Swing{{}, {time.Second, 2}, {-1, .5}, {time.Second, math.NaN()}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
