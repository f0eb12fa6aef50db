package lane

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The machine of docs/internals/overload.md, where a real agent of two cores serves WND 256 under
// overload: a query takes some 8 ms of both cores, and as much of one as of both; to refuse one
// takes the agent .9 ms of a core and its client half as much; and where many are refused, an
// answer reaches its client 3 to 4 ms after the agent has sent it.
const (
	wndTarget   = 25 * ms
	wndRun      = 8 * ms
	wndOnCore   = 16 * ms
	wndRefusal  = (900 + 450) * time.Microsecond / 2 // of both cores
	wndAnswer   = 3500 * time.Microsecond
	wndDeadline = 10 * wndTarget
)

// closedLoop has clients send queries for ten seconds, each at most one in a pace, and the next one
// when it knows the outcome of the last; after a refusal, when it is to try again. It returns how
// many are answered in time, and the 99th percentile of the answers.
func closedLoop(t *testing.T, seed uint64, clients int, pace, answer time.Duration) (inTime int,
	p99 time.Duration) {
	const lasts = 10 * time.Second
	r := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(Config{Lanes: 1, Cores: 2, MaxWaiting: 1024, MaxWaitingBytes: 256 << 20})
	w.takes = func(q *Query, _ int) (time.Duration, bool) {
		mean := wndRun
		if q.onCore {
			mean = wndOnCore
		}
		// The clients take the cores at times: one run in ten takes several times as long.
		factor := .9 + .2*r.Float64()
		if r.Float64() < .1 {
			factor *= 1 + 2.5*r.ExpFloat64()
		}
		return time.Duration(float64(mean) * factor / 1.25), false // the mean of that
	}
	var answered []time.Duration
	send := func() {
		if w.now < lasts {
			q := Query{
				Profile: "wnd/1", BatchSize: 256, Arrival: w.now, QoSTarget: wndTarget,
				Deadline: w.now + wndDeadline, Refuse: true, Divide: true,
			}
			q.Bytes = 580_000
			w.arrive(q)
		}
	}
	w.outcome = func(v *visitor, why Reason, retryAfter time.Duration) {
		again := w.now + answer
		switch why {
		case 0:
			if answered = append(answered, again-v.Arrival); again-v.Arrival <= wndTarget {
				inTime++
			}
		case Overloaded:
			w.stolen += wndRefusal
			again += retryAfter
		}
		w.do(max(again, v.Arrival+pace), send)
	}
	for range clients {
		w.do(time.Duration(r.Float64()*float64(pace)), send)
	}
	w.finish()
	if w.fault != nil {
		t.Fatal(w.fault)
	}
	slices.Sort(answered)
	return inTime, answered[len(answered)*99/100]
}

// TestOverloadAsMeasured: simulated lanes under overload answer as many in time, of what two
// clients get, and within the times, as docs/internals/overload.md has measured at a real agent.
func TestOverloadAsMeasured(t *testing.T) {
	const seeds = 25
	median := func(x []float64) float64 {
		slices.Sort(x)
		return x[len(x)/2]
	}
	var two []float64
	for seed := range uint64(seeds) {
		n, _ := closedLoop(t, seed, 2, 0, 0)
		two = append(two, float64(n))
	}
	base := median(two)
	for _, tt := range []struct {
		clients        int
		times          float64 // what they ask for, of what the lane can do; 0: as fast as they are told
		minShare, most float64 // in time, of what two clients get
		minP99, maxP99 float64 // in targets
	}{
		{64, 0, .63, .97, 2.3, 2.7},
		{8, 3, .68, .97, 1.5, 4.7},
		{64, 3, .66, .98, 1.4, 2.9},
		{512, 3, .64, 1, 1.5, 2.9},
	} {
		var shares, p99s []float64
		pace := time.Duration(0)
		if tt.times > 0 {
			pace = time.Duration(float64(tt.clients) * float64(wndRun) / tt.times)
		}
		for seed := range uint64(seeds) {
			n, p99 := closedLoop(t, seed, tt.clients, pace, wndAnswer)
			shares = append(shares, float64(n)/base)
			p99s = append(p99s, float64(p99)/float64(wndTarget))
		}
		share, p99 := median(shares), median(p99s)
		t.Logf("%d clients at %v times: %.2f in time (%.2f-%.2f), p99 %.1f targets (%.1f-%.1f)",
			tt.clients, tt.times, share, shares[0], shares[seeds-1], p99, p99s[0], p99s[seeds-1])
		if share < tt.minShare || share > tt.most {
			t.Errorf("%d clients at %v times: %.2f are in time, measured %v to %v", tt.clients,
				tt.times, share, tt.minShare, tt.most)
		}
		if p99 < tt.minP99 || p99 > tt.maxP99 {
			t.Errorf("%d clients at %v times: p99 is %.1f targets, measured %v to %v", tt.clients,
				tt.times, p99, tt.minP99, tt.maxP99)
		}
	}
}
