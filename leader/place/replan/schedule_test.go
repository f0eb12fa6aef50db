package replan

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// schedule lets a random fleet live through random demand, losses, failed loads and leaders, then
// leaves it in peace. The fault is "" if nothing went wrong and all agents got where they should.
func schedule(seed uint64, tamper *mutant) *world {
	rng := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(1+rng.IntN(4), 1+rng.IntN(3), 2+rng.IntN(14))
	w.rng, w.tamper = rng, tamper
	w.cfg.Steps = 200
	w.lossy = rng.IntN(2) == 0
	w.solveFor = time.Duration(rng.IntN(2500)) * time.Millisecond
	for _, k := range w.workers {
		k.lanes = 1 + rng.IntN(3)
		k.memory = []int64{0, 100, 150, 200, 300}[rng.IntN(5)]
		k.fixed = rng.IntN(12) == 0
		if rng.IntN(6) == 0 {
			k.typ = "gpu"
		}
		if rng.IntN(8) == 0 {
			k.held = place.Layout{}
		}
		if rng.IntN(4) == 0 {
			k.available = append([]names.ModelKey(nil), k.available...)
			rng.Shuffle(len(k.available), func(i, j int) {
				k.available[i], k.available[j] = k.available[j], k.available[i]
			})
			k.available = k.available[:1+rng.IntN(len(k.available))]
			k.available = append(k.available, k.held.Models()...)
		}
	}
	for _, v := range w.variants {
		w.latency[names.TableKey{Model: v.Model, Type: "gpu"}] = flat(time.Duration(
			1+rng.IntN(60)) * time.Millisecond)
	}
	memory := w.memory
	w.elect(memory)
	dead := 0
	for range 4 + rng.IntN(10) {
		w.run(time.Duration(rng.IntN(12_000)) * time.Millisecond)
		if w.fault != "" {
			return w
		}
		k := w.workers[rng.IntN(len(w.workers))]
		switch rng.IntN(7) {
		case 0, 1:
			w.rates[w.families[rng.IntN(len(w.families))].Name] = float64(rng.IntN(100))
		case 2: // lost, or back as it was started
			if k.dead {
				dead--
				k.dead, k.held, k.taken, k.state = false, place.Layout{}, place.Stamp{}, Settled
			} else if dead < len(w.workers)/2 {
				dead++
				w.kill(k)
			}
		case 3:
			m := w.variants[rng.IntN(len(w.variants))].Model
			k.fails[m] = !k.fails[m]
		case 4: // another leads: it may know less than the last, but for versions
			if rng.IntN(3) > 0 {
				memory = w.r.Memory()
				w.version = memory.Placements[len(memory.Placements)-1].Version
			}
			w.forget()
			w.elect(memory)
		case 5:
			f := w.families[rng.IntN(len(w.families))].Name
			w.lateness[f] = float64(rng.IntN(2)) * .3
		case 6:
			w.command(rng)
		}
	}
	for _, k := range w.workers {
		clear(k.fails)
	}
	clear(w.lateness)
	w.lossy = false
	w.run(time.Second) // a new leader sees its agents
	if w.r.Memory().Paused {
		w.r.Command(Command{Verb: Resume})
	}
	w.run(25 * time.Second)
	for range 12 { // settled between two periods, at some time
		w.run(10 * time.Second)
		if w.fault != "" || w.arrived() {
			return w
		}
	}
	w.fail("not there: moves %v, waits %v", w.answer.Moves, w.answer.Waits)
	return w
}

// forget makes the checker take the next leader's versions as they are.
func (w *world) forget() {
	w.version = 0
	clear(w.history)
	clear(w.away)
	clear(w.bars) // a leader does not know another's
}

func (w *world) arrived() bool {
	pinned := 0 // such an agent may have to wait: it is the last host
	for _, k := range w.workers {
		if k.dead || k.fixed {
			continue
		}
		if w.r.pinOf(k.name) != nil {
			if !k.held.Equal(w.r.wanted[k.name]) {
				pinned++
			}
			continue
		}
		if l, ok := w.answer.Placement.Layout(k.name); !ok || k.state == Changing ||
			!l.Equal(k.held) {
			return false
		}
	}
	return len(w.answer.Moves)+len(w.answer.Waits) == pinned
}

// command asks for something at random; it may be refused.
func (w *world) command(rng *rand.Rand) {
	if w.answer == nil {
		return
	}
	k := w.workers[rng.IntN(len(w.workers))]
	c := Command{Verb: Verb(rng.IntN(int(Rollback) + 1)), Agent: k.name, By: "rapid"}
	c.Layout = place.NewLayout(w.variants[rng.IntN(len(w.variants))].Model)
	c.Version = w.version - min(w.version, uint64(rng.IntN(4)))
	w.r.Command(c)
}

// TestSchedules: whatever happens, never is a quarter of a family's lanes exceeded or its last host
// taken, no agent is asked for what it cannot hold, no older layout comes after a newer one, and in
// the end all agents hold what they should.
func TestSchedules(t *testing.T) {
	moves := 0
	for seed := range uint64(*schedules) {
		w := schedule(seed, nil)
		moves += w.moves
		if w.fault != "" {
			t.Fatalf("schedule %d: %s", seed, w.fault)
		}
	}
	if t.Logf("%d changes", moves); moves < 2**schedules {
		t.Errorf("only %d changes in %d schedules", moves, *schedules)
	}
}

var schedules = flag.Int("schedules", 60, "how many random schedules to run")
