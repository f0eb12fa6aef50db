package replan

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/place"
)

// TestStandBy: a family that a plan leaves with one host gets another where an agent has memory for
// it beside what it serves and a model to load; it costs neither accuracy nor served queries.
func TestStandBy(t *testing.T) {
	for _, memory := range []int64{0, 200, 300} {
		w := newWorld(3, 2, 3)
		for i, k := range w.workers {
			k.memory, k.held = memory, place.NewLayout(w.variants[2*i].Model)
		}
		for f := range w.rates {
			w.rates[f] = 2
		}
		w.elect(Memory{})
		w.run(time.Minute)
		want := 2
		if memory == 200 { // for what serves and what is loaded in its place
			want = 1
		}
		for f, n := range w.hosts() {
			if n < want || memory == 200 && n > want {
				t.Errorf("with memory of %d bytes family %s has %d hosts, want %d", memory, f, n,
					want)
			}
		}
		for _, f := range w.answer.Placement.Families {
			if f.Accuracy != 1 || f.Served != 1 {
				t.Errorf("with memory of %d bytes: %+v", memory, f)
			}
		}
		if w.fault != "" {
			t.Error(w.fault)
		}
		placed := w.version
		w.run(5 * time.Minute)
		if w.version != placed {
			t.Errorf("placement %d after %d, want that it stays", w.version, placed)
		}
	}
}

// TestRescue: a family whose only host is lost gets another at once, also from a leader that has
// just come and changes nothing else.
func TestRescue(t *testing.T) {
	for _, c := range []struct {
		name    string
		memory  int64
		elected bool
	}{
		{"beside what it holds", 200, false}, {"in place of what it holds", 100, false},
		{"by a new leader, beside", 200, true}, {"by a new leader, in place", 100, true},
	} {
		w := newWorld(2, 2, 4)
		for i, k := range w.workers {
			k.memory, k.held = c.memory, place.NewLayout(w.variants[0].Model)
			if i == 3 {
				k.held = place.NewLayout(w.variants[2].Model)
			}
		}
		w.rates["f0"], w.rates["f1"] = 20, 5
		w.elect(Memory{})
		w.run(time.Minute)
		var only *worker
		for _, k := range w.workers {
			if k.held.Has("f1-v0/1") {
				only = k
			}
		}
		if w.hosts()["f1"] != 1 || only == nil {
			t.Fatalf("%s: %v hosts, want one of f1", c.name, w.hosts())
		}
		w.kill(only)
		if c.elected {
			w.elect(w.memory)
		}
		w.run(3 * time.Second)
		if n := w.hosts()["f1"]; n != 1 {
			t.Errorf("%s: family f1 has %d hosts 3 s after it has lost its only one, want 1", c.name,
				n)
		}
		w.run(6 * time.Second) // it has not settled
		changed := 0
		for _, k := range w.workers {
			if !k.dead && k.taken.Epoch == w.cfg.Epoch {
				changed++
			}
		}
		if c.elected && changed != 1 {
			t.Errorf("%s: the new leader has changed %d agents before it settled, want 1", c.name,
				changed)
		}
		if w.fault != "" {
			t.Errorf("%s: %s", c.name, w.fault)
		}
	}
}

// TestRescueNoHost: without an agent that can hold the family, nothing is asked of any.
func TestRescueNoHost(t *testing.T) {
	w := newWorld(2, 1, 2)
	for i, k := range w.workers {
		k.memory, k.held = 100, place.NewLayout(w.variants[i].Model)
		k.fails["f1-v0/1"] = true
	}
	w.elect(Memory{})
	w.run(30 * time.Second)
	w.kill(w.workers[1])
	w.run(5 * time.Minute)
	if w.fault != "" || !w.workers[0].held.Has("f0-v0/1") {
		t.Errorf("%s; the last agent holds %s", w.fault, w.workers[0].held)
	}
}

// TestRescueAll: agents that hold nothing get the families, each another one.
func TestRescueAll(t *testing.T) {
	w := newWorld(3, 2, 3)
	for _, k := range w.workers {
		k.memory, k.held = 100, place.Layout{}
	}
	w.elect(Memory{})
	w.run(3 * time.Second)
	if n := len(w.hosts()); n != 3 || w.fault != "" {
		t.Errorf("%d of 3 families have a host: %v; %s", n, w.hosts(), w.fault)
	}
	if w.version != 4 {
		t.Errorf("placement %d, want one for each family after the first", w.version)
	}
}

// TestLoadsByItself: an agent that comes with nothing, and loads a model by itself before there is a
// plan, is not asked to unload it.
func TestLoadsByItself(t *testing.T) {
	w := newWorld(2, 1, 3)
	w.workers[2].held = place.Layout{}
	w.elect(Memory{})
	w.run(2 * time.Second)
	w.workers[2].held = place.NewLayout(w.variants[0].Model)
	for range 200 {
		w.run(time.Second / 4)
		for _, m := range w.answer.Moves {
			if len(m.Layout.Partitions) == 0 {
				t.Fatalf("%s is asked to hold nothing: %s", m.Agent, m.Why)
			}
		}
	}
	if w.fault != "" {
		t.Error(w.fault)
	}
}
