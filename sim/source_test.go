package sim

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
)

// TestPhases: the rate of each phase is its factor times the configured one, also where phases are
// shorter than the time between two arrivals.
func TestPhases(t *testing.T) {
	sizes, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	c := &Config{Rate: 50, Models: []Model{{Name: "m", BatchSizes: sizes}}}
	for _, tt := range []struct {
		arrivals, phases string
		first            time.Duration // how much of each second has the first phase's rate
		want             [2]int        // arrivals in the first phases and in the others of 100 s
	}{
		{"constant", "50ms:1", time.Second, [2]int{5000, 0}},
		{"constant", "500ms:1,500ms:3", 500 * time.Millisecond, [2]int{2500, 7500}},
		{"constant", "10ms:1,10ms:3", time.Second, [2]int{10000, 0}},
		{"gamma:0.1", "20ms:2", time.Second, [2]int{10000, 0}},
		{"constant", "1ns:1,1ns:2", time.Second, [2]int{7500, 0}},
	} {
		phases, err := ParseLoad(tt.phases)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := StreamOf(tt.arrivals, phases...)(c)
		if err != nil {
			t.Fatal(err)
		}
		var got [2]int
		var last time.Duration
		for q := range stream {
			if q.At < last {
				t.Fatalf("%s, %s: %v after %v", tt.arrivals, tt.phases, q.At, last)
			}
			if last = q.At; last > 100*time.Second {
				break
			}
			if q.At%time.Second < tt.first {
				got[0]++
			} else {
				got[1]++
			}
		}
		for i, want := range tt.want {
			if math.Abs(float64(got[i]-want)) > 0.06*float64(want)+2 {
				t.Errorf("%s, %s: %d arrivals, want about %d", tt.arrivals, tt.phases, got, tt.want)
			}
		}
	}
}

// TestLargestRun: simulated queries merge into no run that is larger than the largest that was
// measured, since what it would take is not known.
func TestLargestRun(t *testing.T) {
	samples, err := profiles.ReadSamples("own.csv", strings.NewReader(
		"model,instance_type,batch_size,sample_ms\nown,r5n.large,1,1\nown,r5n.large,100,3\n"))
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := workload.Fixed(50)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewSource(samples).Model("own", []string{"r5n.large"}, sizes, 25*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Merge: names.MergeDeadline}
	if got := c.largestRun(&m); got != 100 {
		t.Errorf("a run has up to %d items, 100 were measured", got)
	}
}
