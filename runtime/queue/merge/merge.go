package merge

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
)

const (
	// Most is how many waiting queries a choice looks at; a run of more gains hardly anything.
	Most = 128
	// Gain bounds the time of a run of MergeDeadline, as a share of what its parts would take one
	// after the other. The tenth to be gained covers errors of the profile.
	Gain = 0.9
)

// Never is when the answer of a query is due that is late already or has no QoS target.
const Never time.Duration = math.MaxInt64

// A Latency predicts how long a run takes. A *match.Table implements it.
type Latency interface {
	// Mean is the mean at a batch size; 0 if it is unknown.
	Mean(batch int) time.Duration
	// P80 is the time that four runs of five do not exceed.
	P80(batch int) time.Duration
}

// An Item is a waiting query.
type Item struct {
	// Batch is its batch size.
	Batch int
	// Due is when the query's answer is due; Never if it is late or has no target.
	Due time.Duration
	// Mean and P80 are how long it runs alone. Choose reads them only if Other is set.
	Mean, P80 time.Duration
	// Extra, if above 0, is the most by which it may lengthen the run of MergeDeadline: elsewhere
	// it would cost less.
	Extra time.Duration
	// Other says that the query cannot run together with the first.
	Other bool
	// Planned says that the query was sent to run together with the first. MergeDeadline then takes
	// it in any case up to the largest batch size: the leader's account of the lane is of that run.
	Planned bool
}

// A Kind is what queries that may run together share: they are of one version of a model, and their
// inputs differ in the batch size only. It also counts those of them that wait at a lane.
type Kind struct {
	Policy names.MergePolicy
	// Rule, if not nil, chooses in place of Policy, which must be one that merges.
	Rule    Rule
	Latency Latency
	// Largest is the largest batch size of a run.
	Largest int

	n, batch int           // queries that wait, and their items
	estimate time.Duration // the sum of the times that they would run alone
	taken    []int
}

// A Rule is a way of merging from outside of production, to compare with. It serves one kind at one
// lane.
type Rule interface {
	// Choose is [Kind.Choose] for a kind whose latency is known.
	Choose(k *Kind, now time.Duration, waiting []Item) (take []int, until time.Duration)
	// Ran is [Kind.Ran].
	Ran(k *Kind, batch int, late bool)
	// Waits reports whether Choose may leave a lane idle although queries wait.
	Waits() bool
}

// Choose returns which of the waiting queries run now, by their index. The first one is always
// among them, unless until is after now: then nothing runs before until, except if more comes.
// waiting is not empty, and in the order in which the lane would run the queries one after the
// other. If the first is late, so are all. The result is valid until the next call.
func (k *Kind) Choose(now time.Duration, waiting []Item) (take []int, until time.Duration) {
	k.taken = append(k.taken[:0], 0)
	if k.Latency == nil || k.Latency.Mean(waiting[0].Batch) <= 0 {
		return k.taken, now
	}
	if k.Rule != nil {
		return k.Rule.Choose(k, now, waiting)
	}
	if k.Policy == names.MergeDeadline {
		k.takeByDeadline(now, waiting)
	}
	return k.taken, now
}

// takeByDeadline takes what MergeDeadline runs now.
func (k *Kind) takeByDeadline(now time.Duration, waiting []Item) {
	sum, due := waiting[0].Batch, waiting[0].Due
	for i := 1; i < len(waiting); i++ {
		if x := &waiting[i]; x.Planned {
			sum, due = sum+x.Batch, min(due, x.Due)
		}
	}
	planned := sum <= k.Largest
	if !planned { // it has become smaller
		sum, due = waiting[0].Batch, waiting[0].Due
	}
	mean := k.Latency.Mean(sum)
	// The run must end by limit. Otherwise queries would be late that are not taken, that are more
	// urgent than some taken ones, and that would be in time after the first query alone. They take
	// behind in all, one after the other.
	limit, behind := Never, time.Duration(0)
	for i := 1; i < len(waiting); i++ {
		x := &waiting[i]
		if x.Planned && planned {
			k.taken = append(k.taken, i)
			continue
		}
		if !x.Other && sum+x.Batch <= k.Largest {
			joined, alone := k.Latency.Mean(sum+x.Batch), k.Latency.Mean(x.Batch)
			if float64(joined) < Gain*float64(mean+alone) && now+joined <= limit &&
				(x.Extra <= 0 || joined-mean <= x.Extra) &&
				(due == Never || now+k.Latency.P80(sum+x.Batch) <= min(due, x.Due)) {
				k.taken = append(k.taken, i)
				sum, mean, due = sum+x.Batch, joined, min(due, x.Due)
				continue
			}
		}
		if x.Due == Never {
			continue
		}
		alone, safe := x.Mean, x.P80
		if !x.Other {
			alone, safe = k.Latency.Mean(x.Batch), k.Latency.P80(x.Batch)
		}
		if latest := x.Due - safe - behind; now+mean <= latest {
			limit = min(limit, latest)
		}
		behind += alone
	}
}

// Ran tells the outcome of a run: its batch size, and whether any of its queries was late.
func (k *Kind) Ran(batch int, late bool) {
	if k.Rule != nil {
		k.Rule.Ran(k, batch, late)
	}
}

// Waits reports whether a lane may be left idle although queries of the kind wait.
func (k *Kind) Waits() bool { return k.Rule != nil && k.Rule.Waits() }

// Enter counts a query that waits at the lane from now on. estimate is how long it would run alone.
func (k *Kind) Enter(batch int, estimate time.Duration) { k.addCounts(1, batch, estimate) }

// Leave counts that a query waits no more. The arguments are those of its Enter.
func (k *Kind) Leave(batch int, estimate time.Duration) { k.addCounts(-1, -batch, -estimate) }

func (k *Kind) addCounts(n, batch int, estimate time.Duration) {
	k.n, k.batch, k.estimate = k.n+n, k.batch+batch, k.estimate+estimate
}

// seeksOthers reports whether a query of the kind, which may be nil, seeks others to run with.
func (k *Kind) seeksOthers() bool {
	return k != nil && k.Policy.Merges() && (k.n > 1 || k.Waits())
}

// Saved returns by how much the waiting queries take less time merged than alone, as an estimate; 0
// if they take hardly less.
func (k *Kind) Saved() time.Duration {
	if k.n < 2 || !k.Policy.Merges() || k.Latency == nil || k.Largest < 1 {
		return 0
	}
	merged := k.Latency.Mean(min(k.batch, k.Largest))
	if k.batch > k.Largest {
		merged = time.Duration(float64(merged) * float64(k.batch) / float64(k.Largest))
	}
	if merged <= 0 || float64(merged) >= Gain*float64(k.estimate) {
		return 0
	}
	return k.estimate - merged
}
