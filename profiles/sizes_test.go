package profiles_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// A pair is two agents of one type, of which one takes longer on large batches.
type pair struct {
	r   *rand.Rand
	now time.Time
}

func (p *pair) latency(agent names.AgentName, batch int) float64 {
	ms := 5 + 0.05*float64(batch)
	if agent == "slow" && batch > 256 {
		ms *= 1.8
	}
	return ms
}

func (p *pair) teach(t *testing.T, l *profiles.Learner, n int) {
	t.Helper()
	for i := range n {
		agent, batch := names.AgentName("slow"), 1+p.r.IntN(1000)
		if i%2 > 0 {
			agent = "sound"
		}
		if p.r.IntN(3) > 0 {
			batch = 1 + p.r.IntN(256)
		}
		p.now = p.now.Add(10 * time.Millisecond)
		ms := p.latency(agent, batch) * math.Exp(0.05*p.r.NormFloat64())
		if err := l.Observe(batch, time.Duration(ms*1e6), agent, p.now); err != nil {
			t.Fatal(err)
		}
	}
}

// errorOf is the relative error of what is predicted for an agent.
func (p *pair) errorOf(l *profiles.Learner, agent names.AgentName, batch int) float64 {
	for _, a := range l.Agents() {
		if a.Name == agent {
			predicted := ms(l.LatencyTable().ScaleBy(a.At).Mean(batch))
			return predicted/p.latency(agent, batch) - 1
		}
	}
	return math.NaN()
}

func TestLearnerTellsAgentsApartBySize(t *testing.T) {
	for seed := range uint64(5) {
		p := pair{rand.New(rand.NewPCG(seed, 5)), time.Unix(1e9, 0)}
		l := profiles.NewLearner(profiles.Key{}, nil)
		for _, n := range []int{600, 3400} {
			p.teach(t, l, n)
			for _, agent := range []names.AgentName{"slow", "sound"} {
				for _, batch := range []int{10, 100, 200, 400, 900} {
					e := p.errorOf(l, agent, batch)
					t.Logf("seed %d, after %d more: %s at %d is predicted with an error of %+.1f %%", seed, n,
						agent, batch, 100*e)
					if math.Abs(e) > 0.08 {
						t.Errorf("seed %d, after %d more: %s at %d is predicted with an error of %+.1f %%, "+
							"want at most 8 %%", seed, n, agent, batch, 100*e)
					}
				}
			}
		}
	}
}
