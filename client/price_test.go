package client

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// TestPrices: a leader tells prices of classes of lanes beside those of types, and an older one
// does not. A change of a class's price alone has the gateway arrange anew.
func TestPrices(t *testing.T) {
	told := &control.TypePrice{Type: "x", PerMs: 2, ServiceMs: 1}
	want := match.Price{Type: "x", PerMs: 2, Service: time.Millisecond}
	if got := priceOf(told); !got.Equal(want) || got.Classes != nil {
		t.Errorf("of an older leader: got %+v, want %+v", got, want)
	}
	told.Classes = []*control.ClassPrice{{Models: []string{"m/1"}, PerMs: 3, ServiceMs: 4}, {}}
	want.Classes = []match.ClassPrice{
		{Models: []names.ModelKey{"m/1"}, PerMs: 3, Service: 4 * time.Millisecond}, {},
	}
	if got := priceOf(told); !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	bubble(t, 1, func(t *testing.T, f *testFleet) {
		l := f.gateway().leaderless
		settle()
		l.applyReports([]*control.TypePrice{told}, nil)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remakePriced()
		l.learnReports([]*control.TypePrice{told}, nil)
		if l.stale {
			t.Error("the same prices again have it arrange anew")
		}
		told.Classes[1].PerMs = 1
		if l.learnReports([]*control.TypePrice{told}, nil); !l.stale {
			t.Error("another price of a class does not have it arrange anew")
		}
	})
}
