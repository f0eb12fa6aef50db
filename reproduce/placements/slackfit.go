package placements

import (
	"math/rand/v2"
	"slices"
	"time"
)

// SlackFit is the policy of SuperServe: an idle agent takes the family's most urgent queries, and
// the time that is left to the most urgent one decides how many run together and by which variant.
// Agents hold all variants of a family, as if these had weights in common, so that none is ever
// loaded; agents are divided among the families by the program of package place.
type SlackFit struct {
	tables map[[2]int][]control // by type and family
	start  Proteus
}

// A control is a run that an agent can choose, and how long it takes.
type control struct {
	Variant, Size int
	latency       time.Duration
}

// buckets is into how many ranges of one width the latencies are divided.
const buckets = 16

// Place divides agents among families. Which variant [State] says is of no concern.
func (f *SlackFit) Place(s *State) error { return f.start.Place(s) }

// Route implements [Rival]: queries wait for their family, not for an agent.
func (f *SlackFit) Route(*State, int, *rand.Rand) int { return -1 }

// Choose returns the variant, and the index in Sizes of the most queries, that an idle agent of a
// type runs when the most urgent of a family's queries has so much time left.
func (f *SlackFit) Choose(s *Fleet, typ, family int, left time.Duration) (variant, size int) {
	if f.tables == nil {
		f.tables = map[[2]int][]control{}
	}
	key := [2]int{typ, family}
	table, ok := f.tables[key]
	if !ok {
		table = controls(s, typ, family)
		f.tables[key] = table
	}
	if len(table) == 0 {
		return -1, -1
	}
	best := table[0]
	for _, c := range table {
		if c.latency <= left {
			best = c
		}
	}
	return best.Variant, best.Size
}

// controls are the choices by rising latency: of each range of latencies the one of the most
// queries, and of these the most accurate.
func controls(s *Fleet, typ, family int) []control {
	var all []control
	for v, x := range s.Variants {
		if x.Family != family {
			continue
		}
		for k, l := range s.Latency[typ][v] {
			if l > 0 && l <= s.Families[family].Target {
				all = append(all, control{v, k, l})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	byTime := func(a, b control) int { return int(a.latency - b.latency) }
	lo := slices.MinFunc(all, byTime).latency
	width := (slices.MaxFunc(all, byTime).latency-lo)/buckets + 1
	chosen := make([]*control, buckets)
	for i := range all {
		c := &all[i]
		k := int((c.latency - lo) / width)
		b := chosen[k]
		if b == nil || c.Size > b.Size || c.Size == b.Size &&
			s.Variants[c.Variant].Accuracy > s.Variants[b.Variant].Accuracy {
			chosen[k] = c
		}
	}
	var table []control
	for _, c := range chosen {
		if c != nil {
			table = append(table, *c)
		}
	}
	return table
}
