package profiles_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// A bimodal machine takes a mean by batch size with lognormal noise, and a share of its runs times
// as long.
type bimodal struct {
	r            *rand.Rand
	now          time.Time
	share, times float64
}

func newBimodal(seed uint64, share, times float64) *bimodal {
	return &bimodal{rand.New(rand.NewPCG(seed, 3)), time.Unix(1e9, 0), share, times}
}

func (m *bimodal) usual(batch int) time.Duration {
	return 10*time.Millisecond + time.Duration(batch)*100*time.Microsecond
}

func (m *bimodal) draw() (batch int, latency time.Duration) {
	batch = 1 + m.r.IntN(200)
	x := float64(m.usual(batch)) * math.Exp(0.1*m.r.NormFloat64()-0.005)
	if m.r.Float64() < m.share {
		x *= m.times
	}
	m.now = m.now.Add(10 * time.Millisecond)
	return batch, time.Duration(x)
}

// mean is the plain mean of a batch size.
func (m *bimodal) mean(batch int) time.Duration {
	return time.Duration(float64(m.usual(batch)) * (1 + m.share*(m.times-1)))
}

// teach has the learner observe n queries of an agent. What runs longer than cutAt(batch) is cut
// off then; 0 means never.
func (m *bimodal) teach(t testing.TB, l *profiles.Learner, n int, agent names.AgentName,
	cutAt func(batch int) time.Duration) {
	t.Helper()
	for range n {
		batch, latency := m.draw()
		observe := l.Observe
		if cutAt != nil {
			if at := cutAt(batch); at > 0 && latency > at {
				observe, latency = l.ObserveCut, at
			}
		}
		if err := observe(batch, latency, agent, m.now); err != nil {
			t.Fatal(err)
		}
	}
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// within fails the test if a ratio of what was learned to the truth is not within bounds.
func within(t *testing.T, what string, got, low, high float64) {
	t.Helper()
	t.Logf("%s: %.3f", what, got)
	if !(got >= low && got <= high) {
		t.Errorf("%s is %.3f, want %v to %v", what, got, low, high)
	}
}

// TestByLoad: what plans with lanes' time has the plain mean, also in the form that is told, and
// the quantiles as they are.
func TestByLoad(t *testing.T) {
	m, l := newBimodal(1, 0.05, 8), profiles.NewLearner(profiles.Key{Model: "m"}, nil)
	m.teach(t, l, 3000, "a", nil)
	data, err := json.Marshal(l.LatencyTable().ByLoad())
	if err != nil {
		t.Fatal(err)
	}
	var told profiles.Table
	if err := json.Unmarshal(data, &told); err != nil {
		t.Fatal(err)
	}
	for _, batch := range []int{20, 100, 180, 400} {
		within(t, "mean / plain mean", ratio(told.Mean(batch), m.mean(batch)), 0.93, 1.07)
		within(t, "p80 as before", ratio(told.Quantile(0.8, batch), l.LatencyTable().Quantile(0.8,
			batch)),
			0.99, 1.01)
	}
}

func TestLearnerFindsASlowMode(t *testing.T) {
	for seed := range uint64(5) {
		m, l := newBimodal(seed, 0.05, 8), profiles.NewLearner(profiles.Key{}, nil)
		m.teach(t, l, 3000, "a", nil)
		table := l.LatencyTable()
		for _, batch := range []int{20, 100, 180} {
			usual := m.usual(batch)
			within(t, "p99 / usual mean", ratio(table.Quantile(0.99, batch), usual), 7, 11)
			within(t, "load / plain mean", ratio(table.Load(batch), m.mean(batch)), 0.93, 1.07)
			within(t, "mean / usual mean", ratio(table.Mean(batch), usual), 0.95, 1.1)
			within(t, "p80 / usual mean", ratio(table.Quantile(0.8, batch), usual), 1, 1.25)
		}
		if l.Changes() > 0 {
			t.Errorf("seed %d: %d changes seen where there was none", seed, l.Changes())
		}
	}
}

// What an agent cuts off is what is overdue: by three times the 99 % quantile as it is known then,
// beside the mean.
func TestLearnerFindsASlowModeThatIsCutOff(t *testing.T) {
	for seed := range uint64(5) {
		m, l := newBimodal(seed, 0.05, 8), profiles.NewLearner(profiles.Key{}, nil)
		m.teach(t, l, 3000, "a", func(batch int) time.Duration {
			if table := l.LatencyTable(); table != nil {
				return table.Mean(batch) + 3*table.Quantile(0.99, batch)
			}
			return 0
		})
		table := l.LatencyTable()
		within(t, "p99 / usual mean", ratio(table.Quantile(0.99, 100), m.usual(100)), 7, 11)
		within(t, "load / plain mean", ratio(table.Load(100), m.mean(100)), 0.93, 1.1)
	}
	// If all are cut off at half of what they take, half of it is known, and no less.
	m, l := newBimodal(9, 0.05, 8), profiles.NewLearner(profiles.Key{}, nil)
	m.teach(t, l, 3000, "a", func(batch int) time.Duration { return 4 * m.usual(batch) })
	within(t, "p99 / usual mean where all is cut at 4", ratio(l.LatencyTable().Quantile(0.99, 100),
		m.usual(100)), 3.5, 5)
}

func TestLearnerSeesASlowdownThatIsCutOff(t *testing.T) {
	m, l := newBimodal(1, 0, 1), profiles.NewLearner(profiles.Key{}, nil)
	m.teach(t, l, 1000, "a", nil)
	m.share, m.times = 1, 10
	m.teach(t, l, 60, "a", func(batch int) time.Duration {
		return l.LatencyTable().Mean(batch) + 3*l.LatencyTable().Quantile(0.99, batch)
	})
	within(t, "mean / usual mean after all became 10 times as long",
		ratio(l.LatencyTable().Mean(100),
			m.usual(100)), 8, 12)
}

func TestLearnerIgnoresOneFreak(t *testing.T) {
	for _, before := range []int{3, 40, 400} {
		clean, dirty := profiles.NewLearner(profiles.Key{}, nil),
			profiles.NewLearner(profiles.Key{},
				nil)
		for _, l := range []*profiles.Learner{clean, dirty} {
			m := newBimodal(1, 0, 1)
			m.teach(t, l, before, "a", nil)
			if l == dirty {
				if err := l.Observe(100, 100*m.usual(100), "a", m.now); err != nil {
					t.Fatal(err)
				}
			}
			m.teach(t, l, 60, "a", nil)
		}
		for what, of := range map[string]func(*profiles.Table) time.Duration{
			"mean": func(t *profiles.Table) time.Duration { return t.Mean(100) },
			"load": func(t *profiles.Table) time.Duration { return t.Load(100) },
			"p80":  func(t *profiles.Table) time.Duration { return t.Quantile(0.8, 100) },
			"p99":  func(t *profiles.Table) time.Duration { return t.Quantile(0.99, 100) },
		} {
			within(t, what+" with one freak of 100 times / without",
				ratio(of(dirty.LatencyTable()), of(clean.LatencyTable())), 0.97, 1.15)
		}
	}
}

// A lasting slowdown is not a slow mode: the first queries of it are no outliers of what follows.
func TestLearnerTakesASlowdownForNoSlowMode(t *testing.T) {
	for _, agents := range []int{1, 4} {
		m, l := newBimodal(1, 0, 1), profiles.NewLearner(profiles.Key{}, nil)
		for i := range 2000 {
			m.teach(t, l, 1, names.AgentName(string(rune('a'+i%agents))), nil)
		}
		m.share, m.times = 1, 6
		for i := range 200 * agents {
			m.teach(t, l, 1, names.AgentName(string(rune('a'+i%agents))), nil)
		}
		within(t, "p99 / mean after all became 6 times as long",
			ratio(l.LatencyTable().Quantile(0.99, 100),
				l.LatencyTable().Mean(100)), 1.1, 1.6)
		within(t, "load / mean", ratio(l.LatencyTable().Load(100), l.LatencyTable().Mean(100)), 1,
			1.03)
	}
}

// A plain lognormal machine is told as before.
func TestLearnerOfAPlainMachineHasLoadAndMeanAlike(t *testing.T) {
	for seed := range uint64(5) {
		m, l := newBimodal(seed, 0, 1), profiles.NewLearner(profiles.Key{}, nil)
		m.teach(t, l, 3000, "a", nil)
		table := l.LatencyTable()
		within(t, "load / mean", ratio(table.Load(100), m.usual(100)), 0.98, 1.02)
		within(t, "p99 / mean", ratio(table.Quantile(0.99, 100), m.usual(100)), 1.2, 1.32)
	}
}

// The next leader has the profile as it is told, without the evidence.
func TestLearnerInheritsASlowMode(t *testing.T) {
	m, l := newBimodal(1, 0.05, 8), profiles.NewLearner(profiles.Key{}, nil)
	m.teach(t, l, 3000, "a", nil)
	data, err := json.Marshal(l.LatencyTable())
	if err != nil {
		t.Fatal(err)
	}
	var told profiles.Table
	if err := json.Unmarshal(data, &told); err != nil {
		t.Fatal(err)
	}
	next := profiles.NewLearner(profiles.Key{}, &told)
	for _, n := range []int{0, 10, 100, 1000} {
		m.teach(t, next, n, "a", nil)
		within(t, "p99 / usual mean", ratio(next.LatencyTable().Quantile(0.99, 100), m.usual(100)),
			6.5, 11)
	}
	m.share = 0 // and it ends
	m.teach(t, next, 9000, "a", nil)
	within(t, "p99 / usual mean long after the slow mode", ratio(next.LatencyTable().Quantile(0.99,
		100),
		m.usual(100)), 1.1, 2)
}
