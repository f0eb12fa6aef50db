package choose

import (
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fleetplan"
)

// A Class is a part of a family's queries that only some of its variants may answer: of clients that
// demand an accuracy and may have models loaded for that.
type Class struct {
	Models []names.ModelKey // that may answer
	// Share is its part of the family's queries, in [0, 1].
	Share float64
}

// addClasses divides the bins of a family among its classes and the rest of its queries, which may
// be answered by all variants. Of the share of a family's queries that may go unserved all could be
// a class's: so that much more of a class is planned for.
func addClasses(family *fleetplan.Family, classes []Class, unserved float64) {
	rest, all := family.Bins, 1.0
	family.Bins = nil
	for _, c := range classes {
		if !(c.Share > 0) {
			continue
		}
		share := min(c.Share, all)
		all -= share
		for _, b := range rest {
			of := fleetplan.Bin{BatchSize: b.BatchSize, Rate: b.Rate * (share + unserved),
				RunTime: slices.Clone(b.RunTime)}
			for v := range of.RunTime {
				if !slices.Contains(c.Models, family.Variants[v].Model) {
					of.RunTime[v] = make([]float64, len(b.RunTime[v]))
				}
			}
			family.Bins = append(family.Bins, of)
		}
	}
	for _, b := range rest {
		b.Rate *= all
		family.Bins = append(family.Bins, b)
	}
}

// classMemory is over how long a ClassMeter counts: as long as a class is demand after its last query,
// so that placement keeps a host for it (leader's keepClass).
const classMemory = 10 * time.Minute

// A ClassMeter measures which part of its family's queries a class is, from counts of all that have
// arrived. The zero value has seen nothing. It is not safe for concurrent use.
type ClassMeter struct{ counts map[string][]classCount }

type classCount struct {
	at            time.Time
	class, family uint64
}

// Share notes how many queries of a class, and of its family, have arrived in all, and returns the
// class's part of those of the last ten minutes. Counts below the last ones are of another term.
func (m *ClassMeter) Share(now time.Time, key string, class, family uint64) float64 {
	if m.counts == nil {
		m.counts = map[string][]classCount{}
	}
	its := m.counts[key]
	if n := len(its); n == 0 || class < its[n-1].class || family < its[n-1].family {
		its = []classCount{{at: now}} // the counts began with the term
	}
	its = append(its, classCount{now, class, family})
	gone := 0
	for gone < len(its)-2 && now.Sub(its[gone+1].at) >= classMemory {
		gone++
	}
	its = slices.Delete(its, 0, gone)
	m.counts[key] = its
	for k, of := range m.counts {
		if now.Sub(of[len(of)-1].at) > classMemory {
			delete(m.counts, k)
		}
	}
	if family == its[0].family {
		return 0
	}
	return math.Min(1, float64(class-its[0].class)/float64(family-its[0].family))
}
