package fleet

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
)

// A modal is the latency of a machine with a usual mode, a lognormal around mean with a deviation
// of a tenth, and a share of runs that take times as long.
type modal struct {
	mean         time.Duration
	share, times float64
}

func (m modal) draw(uniform, noise float64) time.Duration {
	x := float64(m.mean) * math.Exp(0.1*noise-0.005)
	if uniform < m.share {
		x *= m.times
	}
	return time.Duration(x)
}

func (m modal) Mean(int) time.Duration {
	return time.Duration(float64(m.mean) * (1 + m.share*(m.times-1)))
}

// Quantile is that of the two modes without their noise, but for a tenth.
func (m modal) Quantile(p float64, _ int) time.Duration {
	if p > 1-m.share {
		return time.Duration(1.2 * m.times * float64(m.mean))
	}
	return m.mean * 11 / 10
}

// A modes is a fleet of one model on ten lanes of one type that run as a modal.
type modes struct {
	modal
	target  time.Duration
	load    float64 // of the lanes' time
	queries int
	learns  bool
	freak   int // the number of a query of which one run takes 100 times as long; 0: none
	faults  []Fault

	f          *Fleet
	late, lost int
	worst      time.Duration
}

func (m *modes) run(t *testing.T, seed uint64) {
	t.Helper()
	const lanes = 10
	table, err := match.NewTable(m.modal, 10)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Models: []Model{{Model: match.Model{
			Name: "m", QoSTarget: m.target, LargestBatchSize: 10,
		}, Share: 0.99}},
		Seed: seed, RTT: time.Millisecond, Gateways: 2, GossipDelay: time.Second,
		Probes: inquire.DefaultProbes, Learns: m.learns, Faults: m.faults,
		Service: func(_ int, q *ArrivingQuery) time.Duration {
			if m.freak > 0 && q.Sequence == uint64(m.freak) {
				m.freak = -m.freak
				return 100 * m.mean
			}
			return m.draw(q.Uniform, q.Noise)
		},
		Waits: func(uint64, bool) {}, Split: func(uint64) {},
	}
	for range lanes {
		cfg.Lanes = append(cfg.Lanes, LaneConfig{
			Type: "box", Known: []match.Latencies{m.modal}, Predicted: []*match.LatencyTable{table},
		})
	}
	rng := rand.New(rand.NewPCG(seed, 77))
	arrived := map[uint64]time.Duration{}
	cfg.Finish = func(sequence uint64, o Outcome, _ Answer) {
		if o != Served {
			m.lost++
		}
		took := m.f.now - arrived[sequence]
		if o != Served || took > m.target {
			m.late++
		}
		m.worst = max(m.worst, took)
	}
	if m.f, err = New(&cfg); err != nil {
		t.Fatal(err)
	}
	gap := float64(m.Mean(1)) / lanes / m.load
	at := time.Duration(0)
	for i := range m.queries {
		at += time.Duration(gap * rng.ExpFloat64())
		if err := m.f.Until(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		arrived[uint64(i)] = at
		m.f.Arrive(ArrivingQuery{
			Sequence: uint64(i), BatchSize: 1 + rng.IntN(10), Arrival: at,
			Uniform: rng.Float64(), Noise: rng.NormFloat64(),
		})
	}
	if err := m.f.Until(t.Context(), Never); err != nil {
		t.Fatal(err)
	}
}

// told is what the leader has learned.
func (m *modes) told(t *testing.T) *leader.Latency {
	t.Helper()
	l, ok := m.f.told[names.TableKey{Model: "m/1", Type: "box"}]
	if !ok {
		t.Fatal("the leader has learned nothing")
	}
	return &l
}

// elsewhere is how many attempts gateways have cut off for others, and how many had another beside
// them.
func (m *modes) elsewhere() (cutOff, hedged uint64) {
	for _, g := range m.f.gateways {
		s := g.state.Stats()
		cutOff, hedged = cutOff+s.Superseded, hedged+s.Hedged
	}
	return cutOff, hedged
}

// TestSlowMode: where 5 % of the runs take 8 times as long, and that is in time, the leader learns
// so, and does not have them begun again elsewhere. Those that it does before go on beside their
// second attempts.
func TestSlowMode(t *testing.T) {
	for _, mean := range []time.Duration{20 * ms, 100 * ms} {
		for seed := range uint64(3) {
			m := modes{
				modal: modal{mean, 0.05, 8}, target: 12 * mean, load: 0.3, queries: 5000,
				learns: true,
			}
			m.run(t, seed)
			profile := m.told(t).Profile
			late := float64(m.late) / float64(m.queries)
			p99 := float64(profile.Quantile(.99, 5)) / float64(mean)
			load := float64(profile.Load(5)) / float64(m.Mean(5))
			cutOff, hedged := m.elsewhere()
			t.Logf("mean %v, seed %d: late %.4f, cut off %d, hedged %d, p99 %.1f times the usual mean, "+
				"load %.2f times the true mean", mean, seed, late, cutOff, hedged, p99, load)
			if late > 0.0002 || m.lost > 0 || cutOff > 0 || hedged > 20 {
				t.Errorf("mean %v, seed %d: %.4f are late, %d lost, %d attempts cut off, %d hedged; "+
					"want at most .0002, 0, 0 and 20", mean, seed, late, m.lost, cutOff, hedged)
			}
			if p99 < 7.5 || p99 > 11 || load < .9 || load > 1.1 {
				t.Errorf("mean %v, seed %d: learned are a p99 of %.1f and a load of %.2f, want 8.7 and 1",
					mean, seed, p99, load)
			}
		}
	}
}

// TestFrozenAfterFreak: one run of 100 times as long does not keep the leader from noticing a
// machine that has stopped: after the usual time and three times the 99 % quantile.
func TestFrozenAfterFreak(t *testing.T) {
	for _, freak := range []int{0, 200} {
		m := modes{
			modal: modal{50 * ms, 0, 1}, target: 500 * ms, load: 0.3, queries: 4000, learns: true,
			freak: freak, faults: []Fault{{Verb: freeze, Target: "box-3", At: 40 * time.Second,
				Duration: 4 * time.Second}},
		}
		m.run(t, 1)
		t.Logf("freak %d: late %d, the worst after %v", freak, m.late, m.worst)
		if r := m.f.Results()[0]; r.After.Late > 1 {
			t.Errorf("freak %d: %d are late after the machine stopped, want at most the one that it "+
				"ran", freak, r.After.Late)
		}
	}
}
