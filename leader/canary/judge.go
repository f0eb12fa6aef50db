package canary

import (
	"fmt"
	"math"
	"time"
)

// Counts are of the queries for one version since a trial began.
type Counts struct {
	// Answered queries, of which Late were answered late; and those that Failed for no fault of
	// their clients.
	Answered, Late, Failed uint64
	// Runs are the executions whose time could be compared with what the current version is known
	// to take for a batch of the same size on the same type of lane: for each second of that, how
	// long they took.
	Runs  Times
	Times Times // of all executions
}

// slower is by which factor a run is longer than the usual one of the current version that counts
// as slow.
const slower = 1.5

// Queries is how many queries have ended.
func (c *Counts) Queries() uint64 { return c.Answered + c.Failed }

// Bad is how many of them were late or failed.
func (c *Counts) Bad() uint64 { return c.Late + c.Failed }

// Times is a histogram of durations in steps of a twentieth.
type Times struct {
	Steps [400]uint32
	Total uint64
}

var timeStep = math.Log(1.05)

// Add adds a duration.
func (t *Times) Add(d time.Duration) {
	t.Steps[stepOf(d)]++
	t.Total++
}

func stepOf(d time.Duration) int {
	return min(int(math.Log(max(1, float64(d)/1e3))/timeStep), len(Times{}.Steps)-1)
}

// Quantile is the duration that a share q of those added do not exceed, within a twentieth; 0 if
// none was added.
func (t *Times) Quantile(q float64) time.Duration {
	rest := uint64(math.Ceil(q * float64(t.Total)))
	for i, n := range t.Steps {
		if uint64(n) >= rest && rest > 0 {
			return time.Duration(1e3 * math.Exp((float64(i)+.5)*timeStep))
		}
		rest -= min(rest, uint64(n))
	}
	return 0
}

// above is how many durations are above d, within a twentieth.
func (t *Times) above(d time.Duration) (n uint64) {
	for _, steps := range t.Steps[stepOf(d)+1:] {
		n += uint64(steps)
	}
	return n
}

// Answers are of queries that both versions have answered.
type Answers struct {
	Compared uint64
	Wrong    uint64  // in which a score differs by more than the tolerance
	Sum      float64 // of the largest difference of a score in each
	Most     float64 // the largest of all
}

// Add adds what another has counted.
func (a *Answers) Add(o Answers) {
	a.Compared += o.Compared
	a.Wrong += o.Wrong
	a.Sum += o.Sum
	a.Most = max(a.Most, o.Most)
}

// A Trial is what is known of a canary beside the current version, over the same time.
type Trial struct {
	Current, Canary Counts
	Answers         Answers
}

// Slow returns how many runs of each version were slow: longer than the median of the current
// version's in this trial by more than half. So it does not matter how well the profile is known
// that they are compared by.
func (t *Trial) Slow() (current, canary uint64) {
	usual := t.Current.Runs.Quantile(.5)
	if usual == 0 {
		usual = time.Second // as the profile says
	}
	limit := time.Duration(slower * float64(usual))
	return t.Current.Runs.above(limit), t.Canary.Runs.above(limit)
}

// A Rule says when a canary is taken back, and when it is promoted.
type Rule struct {
	// Confidence is how sure it must be that the canary is worse, at whichever time one looks.
	Confidence float64
	// Least is how many of the canary's queries must have ended before it is judged.
	Least uint64
	// Margin is by how much the share of late and failed queries may exceed the current version's.
	Margin float64
	// Slow is by how much the share of slow runs may exceed the current version's.
	Slow float64
	// Wrong is the share of answers that may be wrong.
	Wrong float64
	// PromoteAfter and PromoteQueries are after which time and how many of its queries a canary is
	// promoted, of the two those that are not 0; if both are 0, it is not.
	PromoteAfter   time.Duration
	PromoteQueries uint64
}

// DefaultRule returns the rule of docs/releases.md.
func DefaultRule() Rule {
	return Rule{Confidence: .99, Least: 50, Margin: .01, Slow: .5, Wrong: .001}
}

// A Decision says what becomes of a canary.
type Decision uint8

// The decisions.
const (
	Wait Decision = iota
	RollBack
	Promote
)

// A Verdict is a decision with its reason in words.
type Verdict struct {
	Decision Decision
	Why      string
}

// Judge decides about a canary that has been on trial for so long. It may be asked as often as one
// likes: the chance that a canary is ever taken back which is no worse than the rule allows is 1 -
// Confidence for each of the three reasons.
func (r *Rule) Judge(t *Trial, age time.Duration) Verdict {
	n, alpha := t.Canary.Queries(), 1-r.Confidence
	answers := t.Answers
	if low, _ := Bounds(answers.Wrong, answers.Compared, alpha); low > r.Wrong {
		return Verdict{RollBack,
			fmt.Sprintf("%d of %d compared answers differ: above %.3g %% with "+
				"%g %% confidence", answers.Wrong, answers.Compared, 100*r.Wrong, 100*r.Confidence)}
	}
	if n < r.Least {
		return Verdict{Why: fmt.Sprintf("%d of its queries have ended, it is judged from %d on", n,
			r.Least)}
	}
	slow, slowCanary := t.Slow()
	for _, x := range []struct {
		what         string
		bad, all     uint64 // of the canary
		usual, total uint64 // of the current version
		margin       float64
	}{
		{"late or failed", t.Canary.Bad(), n, t.Current.Bad(), t.Current.Queries(), r.Margin},
		{"slow", slowCanary, t.Canary.Runs.Total, slow, t.Current.Runs.Total, r.Slow},
	} {
		low, _ := Bounds(x.bad, x.all, alpha/2)
		_, high := Bounds(x.usual, x.total, alpha/2)
		if low > high+x.margin {
			return Verdict{RollBack,
				fmt.Sprintf("%d of %d are %s, of the current version %d of %d: "+
					"more by above %g points with %g %% confidence", x.bad, x.all, x.what, x.usual,
					x.total, 100*x.margin, 100*r.Confidence)}
		}
	}
	switch {
	case r.PromoteAfter == 0 && r.PromoteQueries == 0:
		return Verdict{Why: "it is no worse, and promoted by hand"}
	case age < r.PromoteAfter:
		return Verdict{Why: fmt.Sprintf("it is no worse, and promoted in %v",
			(r.PromoteAfter - age).Round(time.Second))}
	case n < r.PromoteQueries:
		return Verdict{Why: fmt.Sprintf("it is no worse, and promoted after %d more of its queries",
			r.PromoteQueries-n)}
	}
	return Verdict{Promote, fmt.Sprintf("it was no worse in %d of its queries and %v", n,
		age.Round(time.Second))}
}

// Bounds returns bounds of a share of which k of n draws are known. The chance that the true share
// is ever outside, at whichever n one looks, is at most alpha: they are the shares whose likelihood
// is not below alpha times that of a mixture of all shares, by Jeffreys's prior (Robbins 1970,
// Ville's inequality).
func Bounds(k, n uint64, alpha float64) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	x, y := float64(k), float64(n-k)
	beta := func(a, b float64) float64 {
		la, _ := math.Lgamma(a)
		lb, _ := math.Lgamma(b)
		lab, _ := math.Lgamma(a + b)
		return la + lb - lab
	}
	mixture := beta(x+.5, y+.5) - math.Log(math.Pi) + math.Log(alpha)
	outside := func(p float64) bool {
		likelihood := 0.
		if x > 0 {
			likelihood += x * math.Log(p)
		}
		if y > 0 {
			likelihood += y * math.Log1p(-p)
		}
		return likelihood < mixture
	}
	share := x / (x + y)
	edge := func(out, in float64) float64 {
		if !outside(out) {
			return out
		}
		for range 40 {
			if p := (out + in) / 2; outside(p) {
				out = p
			} else {
				in = p
			}
		}
		return out
	}
	return edge(0, share), edge(1, share)
}
