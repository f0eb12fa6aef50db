package election

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// settled is a world of n agents of which one leads, on a network with delays of up
// to 2 ms.
func settled(t *testing.T, seed uint64, n int, loss float64) (w *world, leader *proc) {
	t.Helper()
	w = newWorld(seed)
	w.loss, w.delay = loss, 2*time.Millisecond
	for range n {
		p := w.add(RankOf(May, false, w.rng.IntN(4)))
		p.rate = 0.999 + 0.002*w.rng.Float64()
		p.joinWait = time.Second
		w.after(w.between(0, time.Second), func() { w.start(p) })
	}
	w.run(4*time.Second + w.between(0, 50*time.Millisecond))
	if err := w.agreed(); err != nil {
		w.failf("%w", err)
	}
	if w.fault != nil {
		t.Fatalf("seed %d: %v", seed, w.fault)
	}
	for _, p := range w.procs {
		if p.leading {
			leader = p
		}
	}
	return w, leader
}

// TestTimeWithoutLeader measures from a fault until another agent leads and all
// others follow it.
func TestTimeWithoutLeader(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world, leader *proc)
		most time.Duration
	}{
		{"killed", func(w *world, l *proc) { w.stop(l, true) }, 75 * time.Millisecond},
		{"power-lost", func(w *world, l *proc) { w.stop(l, false) }, 1100 * time.Millisecond},
		{"stopped", func(w *world, l *proc) { w.freeze(l, time.Hour, false) },
			1100 * time.Millisecond},
		{"cut-off", func(w *world, l *proc) {
			for i := range w.procs {
				w.cutLink(l.index, i)
			}
		}, 1300 * time.Millisecond},
	} {
		for _, n := range []int{2, 3, 6} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, n), func(t *testing.T) {
				var took []time.Duration
				for seed := uint64(1); seed <= 50; seed++ {
					w, old := settled(t, seed, n, 0)
					from := w.now
					tt.do(w, old)
					for w.fault == nil && w.now < from+3*time.Second && !led(w, old) {
						w.run(w.now + time.Millisecond)
					}
					if w.fault != nil {
						t.Fatalf("seed %d: %v", seed, w.fault)
					}
					took = append(took, w.now-from)
				}
				slices.Sort(took)
				t.Logf("least %v, median %v, most %v", took[0], took[len(took)/2],
					took[len(took)-1])
				if took[len(took)-1] > tt.most {
					t.Errorf("without a leader for up to %v, want at most %v", took[len(took)-1],
						tt.most)
				}
			})
		}
	}
}

// TestHostRefuses has the leader's stream to its successor break and its host refuse the successor,
// for a while, though the others hear the leader: it goes on to lead.
func TestHostRefuses(t *testing.T) {
	for seed := uint64(1); seed <= 100; seed++ {
		w, leader := settled(t, seed, 3+int(seed%4), 0)
		successor := w.indexOf(leader.node.Successor())
		w.cutLink(leader.index, successor)
		w.step(w.procs[successor], Event{Kind: StreamBroken, ID: leader.id})
		w.step(w.procs[successor], Event{Kind: ProcessEnded, ID: leader.id})
		w.run(w.now + w.between(0, time.Second))
		w.heal()
		w.run(w.now + time.Second)
		if err := w.agreed(); err != nil || w.fault != nil || !leader.leading || w.changes != 1 {
			t.Errorf("seed %d: %d leaders, %v, %v", seed, w.changes, err, w.fault)
		}
	}
}

// led reports whether an agent other than old leads, and all but old follow it.
func led(w *world, old *proc) bool {
	for _, p := range w.procs {
		c, ok := p.node.followed()
		if p != old && (!ok || c.Leader == old.id) {
			return false
		}
	}
	return true
}

// TestHandover checks that somebody leads all through a planned one.
func TestHandover(t *testing.T) {
	for seed := uint64(1); seed <= 100; seed++ {
		w, old := settled(t, seed, 4, []float64{0, 0.1}[seed%2])
		from := w.now
		w.step(old, Event{Kind: Resigned})
		for w.fault == nil && old.leading && w.now < from+bound {
			w.run(w.now + 100*time.Microsecond)
		}
		if took := w.now - from; w.fault != nil || took > 500*time.Millisecond {
			t.Fatalf("seed %d: handed over after %v, %v", seed, took, w.fault)
		}
		for _, p := range w.procs {
			if _, ok := p.node.followed(); !ok && p != old {
				t.Errorf("seed %d: %s follows nobody", seed, p.id)
			}
		}
		w.run(w.now + 200*time.Millisecond)
		if err := w.agreed(); err != nil || w.changes != 2 {
			t.Errorf("seed %d: %d leaders, %v", seed, w.changes, err)
		}
	}
}

// TestNoFlapping checks that a leader stays one while a tenth of all messages is
// lost, and also while one member cannot be reached.
func TestNoFlapping(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut=%v", cut), func(t *testing.T) {
			for seed := uint64(1); seed <= 20; seed++ {
				w, leader := settled(t, seed, 4, 0.1)
				before := w.changes
				if cut {
					w.cutLink(leader.index, (leader.index+1)%len(w.procs))
				}
				w.run(w.now + time.Minute)
				if w.fault != nil {
					t.Fatalf("seed %d: %v", seed, w.fault)
				}
				if w.changes != before || !leader.leading {
					t.Errorf("seed %d: the leader changed %d times in a minute", seed,
						w.changes-before)
				}
			}
		})
	}
}

// cutOneWay loses all messages to p, or all from p.
func (w *world) cutOneWay(p *proc, into bool) {
	for i := range w.procs {
		if into {
			w.cut[i][p.index] = i != p.index
		} else {
			w.cut[p.index][i] = i != p.index
		}
	}
}

// TestOneWay has messages of a minute get lost in one direction: the leader changes if that helps, at
// most once, and all that hear the leader follow it. Neither one whom nobody hears goes on to lead,
// nor one who hears nobody. When all is well again they agree.
func TestOneWay(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cut     func(w *world, leader, other *proc)
		changes int
	}{
		{"to one agent from the leader", func(w *world, l, p *proc) { w.cut[l.index][p.index] = true }, 0},
		{"to the leader from one agent", func(w *world, l, p *proc) { w.cut[p.index][l.index] = true }, 0},
		{"all from the leader", func(w *world, l, _ *proc) { w.cutOneWay(l, false) }, 1},
		{"all to the leader", func(w *world, l, _ *proc) { w.cutOneWay(l, true) }, 1},
		{"all from one agent", func(w *world, _, p *proc) { w.cutOneWay(p, false) }, 0},
	} {
		for _, n := range []int{3, 6} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, n), func(t *testing.T) {
				for seed := uint64(1); seed <= 20; seed++ {
					w, old := settled(t, seed, n, []float64{0, .1}[seed%2])
					other := w.procs[(old.index+1+int(seed)%(n-1))%n]
					tt.cut(w, old, other)
					w.run(w.now + time.Minute)
					leaders := 0
					for _, p := range w.procs {
						if p.leading {
							leaders++
						}
					}
					for _, p := range w.procs {
						c, ok := p.node.followed()
						if heard := ok && c.Leader != p.id; leaders == 1 && heard &&
							!w.procs[w.indexOf(c.Leader)].leading {
							t.Errorf("seed %d: %s follows %v, who does not lead", seed, p.id, c)
						}
					}
					if tt.changes > 0 && old.leading {
						t.Errorf("seed %d: %s still leads", seed, old.id)
					}
					if leaders != 1 || w.changes != 1+tt.changes || w.fault != nil {
						t.Errorf("seed %d: %d lead, %d changes, want 1 and %d; %v", seed, leaders,
							w.changes-1, tt.changes, w.fault)
					}
					w.heal()
					w.run(w.now + bound)
					if err := w.agreed(); err != nil || w.fault != nil {
						t.Errorf("seed %d: in the end %v, %v", seed, err, w.fault)
					}
				}
			})
		}
	}
}

// TestDeafAgentDeposesNobody has no message reach one agent, whose own get through until its
// connections break because nothing is acknowledged on them, 3 s after it has first claimed: the
// leader that all others hear stays.
func TestDeafAgentDeposesNobody(t *testing.T) {
	for _, n := range []int{3, 4, 6} {
		for seed := uint64(1); seed <= 50; seed++ {
			w, leader := settled(t, seed, n, []float64{0, .1}[seed%2])
			claim := leader.follows
			deaf := w.procs[(leader.index+1+int(seed)%(n-1))%n]
			w.cutOneWay(deaf, true)
			for from := w.now; !deaf.node.claiming && w.now < from+3*time.Second; {
				w.run(w.now + time.Millisecond)
			}
			if !deaf.node.claiming {
				t.Fatalf("seed %d: %s hears nobody, and claims nothing", seed, deaf.id)
			}
			w.run(w.now + 3*time.Second)
			w.cutOneWay(deaf, false)
			for _, p := range w.procs {
				if p != deaf {
					w.step(p, Event{Kind: StreamBroken, ID: deaf.id})
					w.step(deaf, Event{Kind: StreamBroken, ID: p.id})
				}
			}
			w.run(w.now + 20*time.Second)
			for _, p := range w.procs {
				if c, ok := p.node.followed(); p != deaf && (!ok || c != claim) {
					t.Errorf("%d agents, seed %d: %s follows %v, want %v as before", n, seed, p.id,
						c, claim)
				}
			}
			w.heal()
			w.run(w.now + bound)
			if err := w.agreed(); err != nil || w.fault != nil {
				t.Errorf("%d agents, seed %d: in the end %v, %v", n, seed, err, w.fault)
			}
		}
	}
}

// TestFrozenLeader checks that a leader that was frozen gives up or is back, depending
// on for how long, and that its control is not obeyed once another leads.
func TestFrozenLeader(t *testing.T) {
	for _, tt := range []struct {
		frozen     time.Duration
		clockStops bool
		changes    bool
	}{
		{700 * time.Millisecond, false, false},
		{700 * time.Millisecond, true, false},
		{3 * time.Second, false, true},
		{3 * time.Second, true, true},
	} {
		for seed := uint64(1); seed <= 50; seed++ {
			w, old := settled(t, seed, 3, 0)
			before := w.changes
			w.freeze(old, tt.frozen, tt.clockStops)
			w.run(w.now + tt.frozen + 500*time.Millisecond)
			if err := w.agreed(); err != nil {
				w.failf("%w", err)
			}
			if w.fault != nil || old.leading == tt.changes || w.changes > before+1 {
				t.Errorf("%+v, seed %d: leads is %v, %d leaders, %v", tt, seed, old.leading,
					w.changes, w.fault)
			}
		}
	}
}
