package colocate

import (
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/profiles"
)

// Pairs are the slowdowns of models from what was measured of each two: every run under way beside
// another adds what it adds alone.
func Pairs(models []string, measured profiles.Slowdowns) Slowdown {
	by := make([][]float64, len(models))
	for i, a := range models {
		for _, b := range models {
			adds := 0.0
			if factor := measured[a][b]; factor > 0 {
				adds = factor - 1
			}
			by[i] = append(by[i], adds)
		}
	}
	return func(model int, running []int) float64 {
		factor := 1.0
		for other, n := range running {
			if other == model {
				n-- // itself
			}
			factor += float64(n) * by[model][other]
		}
		return max(factor, 1)
	}
}

// Shared are the slowdowns on a machine by the models' profiles: a model's runs have what it serves
// with as many workers and its ways of the cache, of which the memory's bandwidth leaves a part
// while other models run beside it. A model's own profile has what bandwidth costs it alone. Alone
// is one worker with all of the cache. ways is read at each call, so it may change.
func Shared(m place.Machine, of []*place.Profile, ways []int) Slowdown {
	return func(model int, running []int) float64 {
		p := of[model]
		each := p.QPS[min(running[model], m.Cores)][ways[model]] / float64(running[model])
		wanted, beside := 0.0, false
		for i, n := range running {
			wanted += of[i].Bandwidth / float64(max(1, m.Cores/2)) * float64(n)
			beside = beside || n > 0 && i != model
		}
		if beside && wanted > m.Bandwidth {
			each *= m.Bandwidth / wanted
		}
		if !(each > 0) {
			return 1e6 // the model cannot run there at all
		}
		return p.QPS[1][m.Ways] / each
	}
}
