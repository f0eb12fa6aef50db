package colocate

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/profiles"
)

const second = time.Second

// finish runs what is under way, and returns when each lane's run ended.
func finish(m *Machine, ends map[int]time.Duration) {
	due := map[int]time.Duration{}
	for {
		for lane, end := range m.Moved() {
			due[lane] = end
		}
		next, at := -1, time.Duration(math.MaxInt64)
		for lane := range m.runs {
			if end, ok := due[lane]; ok && end < at {
				next, at = lane, end
			}
		}
		if next < 0 {
			return
		}
		ends[next] = at
		delete(due, next)
		m.Stop(at, next)
	}
}

// TestTwoRuns: of two runs, of which the first has done part of its work alone, each ends when what
// is left of it, slowed down while both run, is done.
func TestTwoRuns(t *testing.T) {
	slow := Pairs([]string{"a", "b"}, profiles.Slowdowns{"a": {"b": 2}, "b": {"a": 1.5}})
	m := NewMachine(slow, 2, 2)
	m.Start(0, 0, 0, 10*second)
	for range m.Moved() {
	}
	m.Start(4*second, 1, 1, 3*second)
	// b takes 3 s * 1.5, until 8.5 s. a had 6 s left, of which 2.25 are done by then.
	ends := map[int]time.Duration{}
	finish(m, ends)
	if ends[1] != 8500*time.Millisecond || ends[0] != 12250*time.Millisecond {
		t.Errorf("a ended at %v, b at %v; want 12.25 s and 8.5 s", ends[0], ends[1])
	}
}

// TestProgress: whatever starts and stops, what each run has done by its end is its work: the sum,
// over the times between changes, of the time by the slowdown then. Runs that nothing slows down
// take their time to the nanosecond.
func TestProgress(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		lanes, models := 1+rng.IntN(6), 1+rng.IntN(3)
		table := make([][]float64, models)
		for i := range table {
			for range models {
				table[i] = append(table[i], rng.Float64())
			}
		}
		plain := rng.IntN(4) == 0
		slow := func(model int, running []int) float64 {
			factor := 1.0
			for other, n := range running {
				if other == model {
					n--
				}
				if !plain {
					factor += table[model][other] * float64(n)
				}
			}
			return factor
		}
		m := NewMachine(slow, lanes, models)
		type job struct {
			model int
			work  time.Duration
			done  float64
			began time.Duration
			on    bool
		}
		jobs, due := make([]job, lanes), make([]time.Duration, lanes)
		now := time.Duration(0)
		pass := func(to time.Duration) {
			running := make([]int, models)
			for _, j := range jobs {
				if j.on {
					running[j.model]++
				}
			}
			for i := range jobs {
				if j := &jobs[i]; j.on {
					j.done += float64(to-now) / slow(j.model, running)
				}
			}
			now = to
		}
		for range 200 {
			for lane, end := range m.Moved() {
				due[lane] = end
			}
			next := -1
			for lane, j := range jobs {
				if j.on && (next < 0 || due[lane] < due[next]) {
					next = lane
				}
			}
			idle := -1
			for lane, j := range jobs {
				if !j.on {
					idle = lane
				}
			}
			if idle >= 0 && (next < 0 || rng.IntN(2) == 0) {
				at := now + time.Duration(rng.IntN(1e6))
				if next >= 0 {
					at = min(at, due[next])
				}
				pass(at)
				j := job{
					model: rng.IntN(models), work: 1 + time.Duration(rng.IntN(3e6)), began: at,
					on: true,
				}
				jobs[idle] = j
				m.Start(at, idle, j.model, j.work)
				continue
			}
			pass(due[next])
			j := &jobs[next]
			// Each change rounds the end by less than a nanosecond.
			if math.Abs(j.done-float64(j.work)) > 1+1e-6*float64(j.work) {
				r.Fatalf("a run of %v ends having done %v ns", j.work, j.done)
			}
			if plain && now-j.began != j.work {
				r.Fatalf("a run of %v took %v with nothing that slows it down", j.work, now-j.began)
			}
			j.on = false
			m.Stop(now, next)
		}
	})
}

func TestSeats(t *testing.T) {
	s := Sharing{
		Machines: [][]Lanes{{{"x", 1}, {"y", 2}}, {{"x", 1}}},
		Slowdown: func(int, []int) float64 { return 1 },
	}
	seats, err := s.Seats([]string{"y", "x", "x", "y", "x"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	first, second := seats[1].Machine, seats[2].Machine
	if first == second || seats[0].Machine != first || seats[3].Machine != first ||
		seats[4].Machine != nil {
		t.Errorf("seats %+v", seats)
	}
	for lane, seat := range seats {
		if seat.Machine != nil && seat.Machine.names[seat.Lane] != lane {
			t.Errorf("lane %d is not in its seat", lane)
		}
	}
	s.Machines = append(s.Machines, []Lanes{{"x", 2}})
	if _, err := s.Seats([]string{"y", "x", "x", "y", "x"}, 1); err == nil ||
		err.Error() != "machine 2 has 2 lanes of x, and 1 are left" {
		t.Errorf("too many lanes: %v", err)
	}
}
