package lead

import (
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/rent/choose"
)

// TestClassesAreRentedFor: what a class is of its family's queries is rented for, up to its share of
// the agents; families of which nothing is counted have no class.
func TestClassesAreRentedFor(t *testing.T) {
	best := leader.ModelID{Name: "best", Version: 1}
	for _, tt := range []struct {
		arrived uint64
		share   float64
		want    float64
	}{{0, .5, 0}, {20, .5, .2}, {80, .5, .5}} {
		term := &term{}
		f := &choose.Fleet{Families: []choose.Family{{Name: "rank"}, {Name: "other"}}}
		term.addClasses(f, []leader.FamilyCount{{Name: "rank", Arrived: 100,
			Classes: []leader.ClassCount{
				{Models: []leader.ModelID{best}, Share: tt.share, Arrived: tt.arrived},
			}}})
		got := f.Families[0].Classes
		if len(got) != 1 || got[0].Share != tt.want ||
			!slices.Equal(got[0].Models, []names.ModelKey{best.Key()}) ||
			f.Families[1].Classes != nil {
			t.Errorf("%d of 100 with a share of %v: %+v, want %v", tt.arrived, tt.share, got, tt.want)
		}
	}
}
