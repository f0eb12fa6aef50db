package worker

import (
	"testing"

	"github.com/muster-serve/muster/api/control"
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
		s.take(o)
		if (s.order == o) != c.taken || superseded != c.taken {
			t.Errorf("epoch %d, version %d: taken %v, superseded %v, want %v", c.epoch, c.version,
				s.order == o, superseded, c.taken)
		}
	}
}
