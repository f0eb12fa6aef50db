package worker

import (
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// TestFenced: of the orders of leaders that follow each other, only newer ones count.
func TestFenced(t *testing.T) {
	s := newLayouts(&Worker{})
	for _, c := range []struct {
		epoch, version uint64
		taken          bool
	}{
		{2, 5, true}, {2, 5, false}, {2, 4, false}, {1, 9, false}, {2, 6, true}, {3, 1, true},
		{2, 7, false},
	} {
		o := &control.LayoutOrder{Epoch: c.epoch, Version: c.version}
		superseded := false
		s.supersede = func() { superseded = true }
		s.takeOrder(o)
		if (s.order == o) != c.taken || superseded != c.taken {
			t.Errorf("epoch %d, version %d: taken %v, superseded %v, want %v", c.epoch, c.version,
				s.order == o, superseded, c.taken)
		}
	}
}

// TestOrdersOfTwoLeaders: the leaders of the two sides of a fleet that was cut in two have the same
// epoch, and each counts its orders from 1. A member that follows the other one afterwards takes
// its orders from the first on; of each it takes only newer ones, and none of an earlier epoch.
func TestOrdersOfTwoLeaders(t *testing.T) {
	s := newLayouts(&Worker{})
	for i, o := range []struct {
		leader         names.AgentName
		epoch, version uint64
		taken          bool
	}{
		{"a", 5, 3, true}, {"a", 5, 3, false}, {"a", 5, 2, false}, {"c", 5, 1, true},
		{"c", 5, 1, false}, {"c", 5, 2, true}, {"b", 4, 9, false}, {"b", 6, 1, true},
	} {
		s.moves = false
		s.takeLanesOrder(o.leader, &control.LanesOrder{Epoch: o.epoch, Version: o.version})
		if s.moves != o.taken {
			t.Errorf("order %d, %+v: taken %v, want %v", i+1, o, s.moves, o.taken)
		}
	}
}
