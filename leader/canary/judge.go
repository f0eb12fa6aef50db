package canary

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// BatchClasses is how many classes of batch sizes there are. Within one a batch is at most four
// times as large as another, so that queries of one class are late about equally often; classes of
// half the width would make each of them take more queries to be known.
const BatchClasses = 6

// ClassOf returns the class of a batch size: 0 up to 4, 1 up to 16, and so on; the last one is
// open.
func ClassOf(batchSize int) int {
	return min(max(0, (bits.Len(uint(max(batchSize, 1)-1))+1)/2-1), BatchClasses-1)
}

// ClassSize returns the largest batch size of a class; of the last one some batch size.
func ClassSize(class int) int { return 4 << (2 * class) }

// A Tally counts queries that have ended: Answered, of which Late were answered late, and those
// that Failed for no fault of their clients.
type Tally struct{ Answered, Late, Failed uint64 }

// TrialCounts are of the queries for one version since a trial began.
type TrialCounts struct {
	Classes [BatchClasses]Tally
	// UnsizedFailed are those that failed of which no batch size is known: gateways of earlier
	// versions tell none.
	UnsizedFailed uint64
	// Runs are the executions whose time could be compared with what the current version is known
	// to take for a batch of the same size on the same type of lane: for each second of that, how
	// long they took.
	Runs  Times
	Times Times // of all executions
}

// slower is the factor by which a run that counts as slow is longer than the current version's
// median. Chosen: more than the 22 % by which latencies vary on t3.xlarge, the noisiest type that
// was measured.
const slower = 1.5

// CountAnswered counts a query that was answered.
func (c *TrialCounts) CountAnswered(batchSize int, late bool) {
	t := &c.Classes[ClassOf(batchSize)]
	t.Answered++
	if late {
		t.Late++
	}
}

// CountFailed counts n queries that failed for no fault of their clients; batchSize is 0 if it is
// not known.
func (c *TrialCounts) CountFailed(batchSize int, n uint64) {
	if batchSize < 1 {
		c.UnsizedFailed += n
		return
	}
	c.Classes[ClassOf(batchSize)].Failed += n
}

// Total is the sum over the classes, with the failures of no known size.
func (c *TrialCounts) Total() (sum Tally) {
	for _, t := range c.Classes {
		sum.Answered += t.Answered
		sum.Late += t.Late
		sum.Failed += t.Failed
	}
	sum.Failed += c.UnsizedFailed
	return sum
}

// Queries is how many queries have ended.
func (t Tally) Queries() uint64 { return t.Answered + t.Failed }

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
	if t.Total == 0 {
		return 0
	}
	rest := uint64(math.Ceil(q * float64(t.Total)))
	for i, n := range t.Steps {
		if uint64(n) >= rest && rest > 0 {
			return time.Duration(1e3 * math.Exp((float64(i)+.5)*timeStep))
		}
		rest -= min(rest, uint64(n))
	}
	return 0
}

// countAbove is how many durations are above d, within a twentieth.
func (t *Times) countAbove(d time.Duration) (n uint64) {
	if t.Total == 0 {
		return 0
	}
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
	Current, Canary TrialCounts
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
	return t.Current.Runs.countAbove(limit), t.Canary.Runs.countAbove(limit)
}

// A Limit says by how much a share of a canary's queries may exceed the current version's. Once it
// is known to exceed it by more than Tolerated, the canary is rolled back. Until it is known to
// exceed it by less than Margin, the canary is not promoted. Between the two either may happen, so
// that no canary is undecided for ever.
type Limit struct{ Tolerated, Margin float64 }

// A Rule says when a canary is rolled back, and when it is promoted.
type Rule struct {
	// Alpha bounds the chance that a canary is ever rolled back which is within what all limits
	// tolerate. It holds for all reasons together, at whichever times one looks.
	Alpha float64
	// Beta bounds the chance that a canary is ever promoted which is worse than the margin of a
	// limit.
	Beta float64
	// MinQueries is how many of the canary's queries must have ended, or runs, before it is rolled
	// back because it is late or slow: the first runs on lanes that have just loaded a version take
	// longer.
	MinQueries uint64
	// Failures and Lateness limit the shares of failed and of late queries, Slow that of slow runs.
	// Slowness alone does not keep a canary from promotion: if it matters, queries are late.
	Failures, Lateness, Slow Limit
	// Wrong limits the share of compared answers that differ. Promotion needs it only if Compared.
	Wrong    Limit
	Compared bool
	// PromoteAfter and PromoteQueries say after how long and after how many of its queries a canary
	// is promoted. 0 means no condition; if both are 0, nobody promotes it automatically.
	PromoteAfter   time.Duration
	PromoteQueries uint64
	// MaxUndecided is how long after PromoteAfter a canary may stay undecided until it is rolled
	// back.
	MaxUndecided time.Duration
}

// DefaultRule returns the rule of docs/releases.md.
func DefaultRule() Rule {
	return Rule{
		Alpha: .01, Beta: .01, MinQueries: 50,
		// One query in a thousand fails unnoticed by most clients; one in a hundred is what an
		// objective of 99 % leaves in all. Lateness is noisier, for it depends on the load.
		Failures: Limit{Tolerated: .001, Margin: .01},
		Lateness: Limit{Tolerated: .01, Margin: .02},
		Slow:     Limit{Tolerated: .5, Margin: 1},
		Wrong:    Limit{Tolerated: .001, Margin: .01},
		// Loads repeat themselves by the week: a canary that is undecided after one learns little
		// from a second.
		MaxUndecided: 7 * 24 * time.Hour,
	}
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
	// Undecided says that a promotion is due by its terms, and waits for more queries.
	Undecided bool
}

// compareTrial are those of a trial, in the order in which they are told of.
func (r *Rule) compareTrial(t *Trial) []comparison {
	canary, current := t.Canary.Total(), t.Current.Total()
	failures := comparison{
		what: "queries failed", limit: r.Failures, needed: true,
		canary: newShare(canary.Failed, canary.Queries()),
		usual:  newShare(current.Failed, current.Queries()),
	}
	if t.Canary.UnsizedFailed+t.Current.UnsizedFailed > 0 {
		failures.forAllSizes()
	} else {
		failures.byClass(&t.Canary, &t.Current, func(c *Tally) (uint64, uint64) {
			return c.Failed, c.Queries()
		})
	}
	lateness := comparison{
		what: "queries were late", limit: r.Lateness, needed: true, minDraws: float64(r.MinQueries),
		canary: newShare(canary.Late, canary.Answered),
		usual:  newShare(current.Late, current.Answered),
	}
	lateness.byClass(&t.Canary, &t.Current, func(c *Tally) (uint64, uint64) {
		return c.Late, c.Answered
	})
	slow, slowCanary := t.Slow()
	slowness := comparison{
		what: "runs are slow", limit: r.Slow, minDraws: float64(r.MinQueries),
		canary: newShare(slowCanary, t.Canary.Runs.Total),
		usual:  newShare(slow, t.Current.Runs.Total),
	}
	slowness.forAllSizes()
	answers := comparison{
		what: "compared answers differ", limit: r.Wrong, needed: r.Compared,
		canary: newShare(t.Answers.Wrong, t.Answers.Compared),
	}
	return []comparison{answers, failures, lateness, slowness}
}

func newShare(hits, draws uint64) share { return share{float64(hits), float64(draws)} }

// Judge decides about a canary that has been on trial for so long. It may be asked as often as one
// likes, and errs no more often than Alpha and Beta say.
func (r *Rule) Judge(t *Trial, age time.Duration) Verdict {
	n := t.Canary.Total().Queries()
	all := r.compareTrial(t)
	decision, c := r.decideOn(all)
	byHand := r.PromoteAfter == 0 && r.PromoteQueries == 0
	due := !byHand && age >= r.PromoteAfter && n >= r.PromoteQueries
	switch {
	case decision == RollBack:
		return Verdict{Decision: RollBack, Why: fmt.Sprintf(
			"%s: at least %s more, where %s are tolerated; the chance of an error is at most %.3g %%",
			c.countedNoun(), formatPoints(c.lowExcess(r.Alpha/reasons)),
			formatPoints(c.limit.Tolerated),
			100*r.Alpha)}
	case decision == Wait && !byHand && age >= r.PromoteAfter+r.MaxUndecided:
		return Verdict{Decision: RollBack, Why: fmt.Sprintf("still undecided after %v: %s; try it "+
			"again with a larger share, or promote it by hand", age.Round(time.Second),
			r.waitsFor(c))}
	case n == 0:
		return Verdict{Why: "undecided: none of its queries has ended yet", Undecided: due}
	case decision == Wait:
		more := "how many more of its queries it needs is not known yet"
		if left, any := r.queriesLeft(all, n); any {
			more = fmt.Sprintf("it needs about %d more of its queries", left)
		}
		return Verdict{
			Why: fmt.Sprintf("undecided: %s; %s", r.waitsFor(c), more), Undecided: due,
		}
	case byHand:
		return Verdict{Why: "it is no worse, and promoted by hand"}
	case age < r.PromoteAfter:
		return Verdict{Why: fmt.Sprintf("it is no worse, and promoted in %v",
			(r.PromoteAfter - age).Round(time.Second))}
	case n < r.PromoteQueries:
		return Verdict{Why: fmt.Sprintf("it is no worse, and promoted after %d more of its queries",
			r.PromoteQueries-n)}
	}
	why := fmt.Sprintf("it was no worse in %d of its queries and %v", n, age.Round(time.Second))
	for i := range all {
		if c := &all[i]; c.needed {
			why += fmt.Sprintf("; %s: %s", c.countedNoun(), atMost(c.highExcess(r.Beta)))
		}
	}
	return Verdict{Decision: Promote, Why: why}
}

// waitsFor says what is known of a comparison for which a promotion has to wait.
func (r *Rule) waitsFor(c *comparison) string {
	return fmt.Sprintf("%s: %s, where a promotion needs less than %s", c.countedNoun(),
		atMost(c.highExcess(r.Beta)), formatPoints(c.limit.Margin))
}

// countedNoun says what was counted.
func (c *comparison) countedNoun() string {
	text := fmt.Sprintf("%s of %.0f %s", c.canary, c.canary.draws, c.what)
	if c.usual.draws > 0 {
		text += fmt.Sprintf(", %s of the current version's %.0f", c.usual, c.usual.draws)
	}
	return text
}

func (s share) String() string {
	percent := 100 * s.hits / s.draws
	switch {
	case s.draws == 0:
		return "0"
	case percent >= 9.95:
		return fmt.Sprintf("%.0f %%", percent)
	case percent == 0 || percent >= .095:
		return fmt.Sprintf("%.1f %%", percent)
	default:
		return fmt.Sprintf("%.1g %%", percent)
	}
}

// atMost says how much above the current version's a share is at most.
func atMost(excess float64) string {
	if excess < 0 {
		return "at least " + formatPoints(-excess) + " fewer"
	}
	return "at most " + formatPoints(excess) + " more"
}

// formatPoints prints a difference of two shares.
func formatPoints(difference float64) string {
	switch text := fmt.Sprintf("%.2g", 100*difference); {
	case text == "1":
		return "1 point"
	case 100*difference >= 10:
		return fmt.Sprintf("%.0f points", 100*difference)
	default:
		return text + " points"
	}
}
