package rent

import (
	"testing"

	"github.com/muster-serve/muster/api/control"
)

// TestSafeLoadOfManager: the safe load is what the leader of now has learned, else what was told;
// without either, and without renting, all may be planned for.
func TestSafeLoadOfManager(t *testing.T) {
	var none *Manager
	told := &Manager{desired: &control.DesiredFleet{Learned: &control.LearnedRenting{SafeLoad: .8}}}
	leads := &Manager{desired: told.desired, term: &loop{
		learned: &control.LearnedRenting{SafeLoad: .6},
	}}
	for _, tt := range []struct {
		manager *Manager
		want    float64
	}{{none, 1}, {&Manager{}, 1}, {told, .8}, {leads, .6}} {
		if got := tt.manager.SafeLoad(); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.manager, got, tt.want)
		}
	}
}
