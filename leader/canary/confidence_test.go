package canary

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestBoundsAreTight: a bound of a share is where the evidence against that share just reaches what
// the chance of an error asks for: the martingale of one of the 16 tilts, among which the chance is
// divided, as it is between the two bounds, is the inverse of its part of the chance. A bound with
// more confidence than that makes trials longer, one with less errs too often.
func TestBoundsAreTight(t *testing.T) {
	// against is the most evidence that k hits of n draws are against a mean chance of p, by the
	// tilts of one sign.
	against := func(k, n, p, sign float64) float64 {
		most, tilt := math.Inf(-1), .01
		for range 16 {
			most = max(most, sign*tilt*k-n*math.Log1p(p*math.Expm1(sign*tilt)))
			tilt *= 1.6
		}
		return most
	}
	r := rand.New(rand.NewPCG(1, 6))
	for range 2000 {
		n := uint64(math.Exp(12 * r.Float64()))
		k := uint64(r.IntN(int(n) + 1))
		if r.IntN(2) == 0 {
			k = min(k, uint64(r.IntN(10)))
		}
		alpha := math.Pow(10, -1-4*r.Float64())
		low, high := Bounds(k, n, alpha)
		want := math.Log(16 * 2 / alpha)
		for sign, bound := range map[float64]float64{1: low, -1: high} {
			got := against(float64(k), float64(n), bound, sign)
			switch {
			case bound == 0 && sign > 0, bound == 1 && sign < 0:
				if got > want {
					t.Errorf("%d of %d, %v: evidence %v excludes more than [%v, %v]", k, n, alpha,
						got,
						low, high)
				}
			case math.Abs(got-want) > 1e-6*want:
				t.Errorf("%d of %d, %v: at the bound %v the evidence is %v, want %v", k, n, alpha,
					bound,
					got, want)
			}
		}
	}
}

// TestErrorsAreDivided: a canary is rolled back and promoted by bounds of which all may err
// together with the chance that the rule states, and by no others. Each of five reasons to roll it
// back has a fifth of it, a promotion all of it for each, for it needs them all; half of that is
// for the canary's share, and half for the current version's, by class of batch sizes.
func TestErrorsAreDivided(t *testing.T) {
	// excess bounds by how much a canary's share is above that of the current version, of which
	// shares has, by class, what was counted, and the weight of the class in what the canary got.
	type counted struct {
		hits, draws uint64
		weight      float64
	}
	excess := func(hits, draws uint64, shares []counted, chance float64) (low, high float64) {
		low, high = Bounds(hits, draws, chance)
		positive := low > 0
		for _, s := range shares {
			if s.weight > 0 {
				l, h := Bounds(s.hits, s.draws, chance/(BatchClasses+1))
				high -= s.weight * l
				if positive {
					low -= s.weight * h
				}
			}
		}
		return low, high
	}
	var fates [3]int
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 7))
		rule, trial := DefaultRule(), &Trial{}
		rule.Alpha, rule.Beta = math.Pow(10, -1-2*r.Float64()), math.Pow(10, -1-2*r.Float64())
		rule.PromoteQueries, rule.Compared = 1, r.IntN(2) == 0
		scale := math.Exp(11 * r.Float64())
		tally := func(c *TrialCounts, worse float64) {
			for i := range c.Classes {
				of := func(share float64) uint64 { return uint64(scale * share * r.Float64()) }
				c.Classes[i] = Tally{Answered: of(1), Failed: of(.005 * worse)}
				c.Classes[i].Late = min(c.Classes[i].Answered, of(.02*worse))
			}
			for range r.IntN(300) {
				took := time.Second
				if r.Float64() < .1*worse {
					took *= 3
				}
				c.Runs.Add(took)
			}
			if r.IntN(4) == 0 {
				c.UnsizedFailed = uint64(r.IntN(5))
			}
		}
		tally(&trial.Current, 1)
		worse := 10 * r.Float64() * r.Float64()
		if r.IntN(4) == 0 {
			worse = 50 // beyond doubt after a few queries
		}
		tally(&trial.Canary, worse)
		trial.Answers = Answers{Compared: uint64(scale * r.Float64())}
		trial.Answers.Wrong = min(trial.Answers.Compared, uint64(r.IntN(4)*r.IntN(20)))

		canary, current := trial.Canary.Total(), trial.Current.Total()
		var failed, late []counted
		for i, c := range trial.Current.Classes {
			mine := trial.Canary.Classes[i]
			failed = append(failed, counted{c.Failed, c.Queries(),
				float64(mine.Queries()) / float64(max(1, canary.Queries()))})
			late = append(late, counted{c.Late, c.Answered,
				float64(mine.Answered) / float64(max(1, canary.Answered))})
		}
		if trial.Canary.UnsizedFailed+trial.Current.UnsizedFailed > 0 {
			failed = []counted{{current.Failed, current.Queries(), 1}}
		}
		slow, slowCanary := trial.Slow()
		want := Promote
		for _, tt := range []struct {
			hits, draws, least uint64
			current            []counted
			limit              Limit
			needed             bool
		}{
			{canary.Failed, canary.Queries(), 0, failed, rule.Failures, true},
			{canary.Late, canary.Answered, 50, late, rule.Lateness, true},
			{slowCanary, trial.Canary.Runs.Total, 50,
				[]counted{{slow, trial.Current.Runs.Total, 1}}, rule.Slow, false},
			{trial.Answers.Wrong, trial.Answers.Compared, 0, nil, rule.Wrong, rule.Compared},
		} {
			low, _ := excess(tt.hits, tt.draws, tt.current, rule.Alpha/5)
			_, high := excess(tt.hits, tt.draws, tt.current, rule.Beta)
			if low > tt.limit.Tolerated && tt.draws >= tt.least {
				want = RollBack
				break
			}
			if tt.needed && high >= tt.limit.Margin {
				want = Wait
			}
		}
		if canary.Queries() == 0 {
			continue // nothing is decided
		}
		got := rule.Judge(trial, time.Minute)
		if got.Decision != want {
			t.Errorf("seed %d: got %+v, want the decision %d", seed, got, want)
		}
		fates[want]++
	}
	t.Logf("%d wait, %d are rolled back, %d promoted", fates[Wait], fates[RollBack], fates[Promote])
	for _, n := range fates {
		if n < 200 {
			t.Errorf("%v of the fates are expected, want 200 of each or more", fates)
		}
	}
}
