// Package merging has the ways of other systems to choose the waiting queries that run as one, as
// rules for a lane of Muster's: Proteus, Nexus, Symphony and Clipper's AIMD.
package merging

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// The rules, by the names under which runs take them.
const (
	// Proteus waits until the most urgent query would be late if one more came and ran with it
	// (ASPLOS 2024, section 5).
	Proteus names.MergePolicy = "proteus"
	// Nexus never waits. It takes as many as let the most urgent one be in time (SOSP 2019). Queries
	// that are late already run when none is in time, or are rejected, by the order of the queue.
	Nexus names.MergePolicy = "nexus"
	// Symphony waits as long as the most urgent query permits, so that other lanes stay idle and
	// can be given back (deferred batching; 2023).
	Symphony names.MergePolicy = "symphony"
	// AIMD takes up to a number of items that grows by one after a run of that size in which
	// nothing was late, and shrinks by a tenth after one in which something was (Clipper, NSDI
	// 2017).
	AIMD names.MergePolicy = "aimd"
)

// New returns the rule of a name for one kind at one lane; nil, by which the lane follows its
// policy, if no rule has the name.
func New(name names.MergePolicy) merge.Rule {
	switch name {
	case Proteus:
		return &inTime{waits: true, oneMore: true}
	case Symphony:
		return &inTime{waits: true}
	case Nexus:
		return &inTime{}
	case AIMD:
		return &aimd{}
	}
	return nil
}

// inTime takes queries as long as the first is in time, and may wait for more.
type inTime struct {
	waits   bool
	oneMore bool // it waits until one more of the usual size would make the first late
	taken   []int
}

// Waits implements [merge.Rule].
func (r *inTime) Waits() bool { return r.waits }

// Ran implements [merge.Rule].
func (r *inTime) Ran(*merge.Kind, int, bool) {}

// Choose implements [merge.Rule].
func (r *inTime) Choose(k *merge.Kind, now time.Duration, waiting []merge.Item) (take []int,
	until time.Duration) {
	sum, all := r.whileInTime(k, now, waiting)
	if !r.waits || waiting[0].Due == merge.Never || !all {
		return r.taken, now
	}
	last := sum // the run that is just in time at until
	if r.oneMore {
		last += max(1, (sum+len(r.taken)/2)/len(r.taken))
	}
	if last <= k.Largest {
		return r.taken, max(now, waiting[0].Due-nearlyMost(k, last))
	}
	return r.taken, now
}

// whileInTime takes queries in their order as long as the first is in time. It returns the sum of
// their batch sizes, and whether that are all that may run together.
func (r *inTime) whileInTime(k *merge.Kind, now time.Duration,
	waiting []merge.Item) (sum int, all bool) {
	r.taken, sum = append(r.taken[:0], 0), waiting[0].Batch
	for i := 1; i < len(waiting); i++ {
		if waiting[i].Other {
			continue
		}
		more := sum + waiting[i].Batch
		if more > k.Largest || waiting[0].Due != merge.Never &&
			now+k.Latency.P80(more) > waiting[0].Due {
			return sum, false
		}
		r.taken = append(r.taken, i)
		sum = more
	}
	return sum, len(waiting) < merge.Most
}

// nearlyMost is a time that hardly any run of a batch size exceeds, for rules that wait: by the 80 %
// quantile one run in five would be late. Where latency is normal, it is the 99.4 % quantile.
func nearlyMost(k *merge.Kind, batch int) time.Duration {
	mean := k.Latency.Mean(batch)
	return mean + 3*(k.Latency.P80(batch)-mean)
}

// aimdLess is the factor of AIMD after a late query.
const aimdLess = 0.9

type aimd struct {
	most  float64 // items of a run; 0 stands for 1
	taken []int
}

// Waits implements [merge.Rule].
func (r *aimd) Waits() bool { return false }

// Choose implements [merge.Rule].
func (r *aimd) Choose(k *merge.Kind, now time.Duration, waiting []merge.Item) (take []int,
	until time.Duration) {
	r.taken = append(r.taken[:0], 0)
	most, sum := min(k.Largest, int(max(r.most, 1))), waiting[0].Batch
	for i := 1; i < len(waiting); i++ {
		if waiting[i].Other {
			continue
		}
		if sum += waiting[i].Batch; sum > most {
			break
		}
		r.taken = append(r.taken, i)
	}
	return r.taken, now
}

// Ran implements [merge.Rule].
func (r *aimd) Ran(k *merge.Kind, batch int, late bool) {
	r.most = max(r.most, 1)
	switch {
	case late:
		r.most = max(1, r.most*aimdLess)
	case batch >= int(r.most):
		r.most = min(r.most+1, float64(k.Largest))
	}
}
