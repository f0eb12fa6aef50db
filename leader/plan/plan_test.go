package plan

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// paperTypes are the instance types of KAIROS's experiments.
func paperTypes() []Type {
	return []Type{
		{"g4dn.xlarge", 0.526, 0}, {"c5n.2xlarge", 0.432, 0}, {"r5n.large", 0.149, 0}, {
			"t3.xlarge", 0.1664, 0,
		},
	}
}

// line is a latency that grows in proportion.
type line struct{ base, perItem time.Duration }

func (l line) Mean(batchSize int) time.Duration {
	return l.base + time.Duration(batchSize)*l.perItem
}

func TestConfigurations(t *testing.T) {
	p := &Problem{Types: paperTypes(), Budget: 2.5}
	space, err := p.Space()
	if err != nil {
		t.Fatal(err)
	}
	withBase := 0
	seen := map[string]bool{}
	for _, c := range space {
		if !p.Affordable(c) || c.Count() == 0 || seen[c.String()] {
			t.Errorf("%s: price %v, seen %v", c, p.Price(c), seen[c.String()])
		}
		seen[c.String()] = true
		if c[0] > 0 {
			withBase++
		}
	}
	if withBase != 331 {
		t.Errorf("%d configurations with a base instance, want 331", withBase)
	}
	// A price that is met exactly is within the budget, and limits hold.
	p = &Problem{Types: []Type{{"a", 0.1, 0}, {"b", 0.2, 1}}, Budget: 0.3}
	space, err = p.Space()
	if err != nil || len(space) != 5 { // 01 10 11 20 30
		t.Errorf("%v, %v", space, err)
	}
	p = &Problem{Types: []Type{{"a", 0.1, 0}}, Objective: LeastCost}
	if _, err := p.Space(); err == nil || !strings.Contains(err.Error(), "number of a") {
		t.Errorf("without any limit: %v", err)
	}
	p = &Problem{Types: paperTypes(), Budget: 500}
	if _, err := p.Space(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too many: %v", err)
	}
}

func TestValidate(t *testing.T) {
	good := func() *Problem {
		return &Problem{
			Types: []Type{{"a", 1, 0}, {"b", 0.5, 3}}, Budget: 2,
			Models: []ModelDemand{{
				Name: "m", QoSTarget: time.Second, BatchSizes: profiles.Distribution{
					{BatchSize: 1, Share: 0.5}, {BatchSize: 9, Share: 0.5},
				},
				Latencies: []Latencies{line{0, 1}, line{1, 1}},
			}},
		}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Problem){
		"no instance types":         func(p *Problem) { p.Types, p.Models = nil, nil },
		"a is named twice":          func(p *Problem) { p.Types[1].Name = "a" },
		"price of a is -1":          func(p *Problem) { p.Types[0].Price = -1 },
		"price of b is 0":           func(p *Problem) { p.Types[1].Price = 0 },
		"price of b is NaN":         func(p *Problem) { p.Types[1].Price = math.NaN() },
		"at most -1 instances of b": func(p *Problem) { p.Types[1].Max = -1 },
		"budget is 0":               func(p *Problem) { p.Budget = 0 },
		"budget is -2":              func(p *Problem) { p.Budget = -2 },
		"budget is NaN":             func(p *Problem) { p.Budget = math.NaN() },
		"below the cheapest instance, b at 0.5 $/hr": func(p *Problem) { p.Budget = 0.4 },
		"rate is -1":                func(p *Problem) { p.Rate = -1 },
		"give a rate above 0":       func(p *Problem) { p.Objective = LeastCost },
		"share of 99":               func(p *Problem) { p.Target = 99 },
		"model m: QoS target is 0s": func(p *Problem) { p.Models[0].QoSTarget = 0 },
		"model m: weight is -1":     func(p *Problem) { p.Models[0].Weight = -1 },
		"1 profiles for 2 instance types": func(p *Problem) {
			p.Models[0].Latencies = p.Models[0].Latencies[:1]
		},
		"model m has no profile on b: measure it": func(p *Problem) {
			p.Models[0].Latencies[1] = nil
		},
		"model m: no batch sizes": func(p *Problem) { p.Models[0].BatchSizes = nil },
		"batch size 0 after 0": func(p *Problem) {
			p.Models[0].BatchSizes[0].BatchSize = 0
		},
		"batch size 9 after 9": func(p *Problem) {
			p.Models[0].BatchSizes[0].BatchSize = 9
		},
		"share of batch size 1 is -0.5": func(p *Problem) {
			p.Models[0].BatchSizes[0].Share = -0.5
		},
		"its batch sizes add up to 0.6, want 1: divi": func(p *Problem) {
			p.Models[0].BatchSizes[0].Share = 0.1
		},
	} {
		p := good()
		spoil(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestLog(t *testing.T) {
	calls := 0
	broken := errors.New("broken")
	l := NewLog(EvaluatorFunc(func(_ context.Context, c Configuration) (Estimate, error) {
		calls++
		if c[0] == 9 {
			return Estimate{}, broken
		}
		return Estimate{Value: float64(c[0])}, nil
	}))
	c := Configuration{3, 1}
	for range 2 {
		if e, err := l.Evaluate(t.Context(), c); err != nil || e.Value != 3 {
			t.Errorf("%v, %v", e, err)
		}
	}
	c[0] = 4 // what was logged stays
	if _, err := l.Evaluate(t.Context(), c); err != nil {
		t.Error(err)
	}
	if _, err := l.Evaluate(t.Context(), Configuration{9, 0}); !errors.Is(err, broken) ||
		!strings.Contains(err.Error(), "(9,0)") {
		t.Errorf("error %v", err)
	}
	if calls != 3 || l.Count() != 2 || l.Evaluations()[0].Configuration.String() != "(3,1)" ||
		l.Evaluations()[1].Value != 4 {
		t.Errorf("%d calls, log %v", calls, l.Evaluations())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Evaluate(ctx, Configuration{1, 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		c, d Configuration
		want bool
	}{
		{Configuration{1, 2}, Configuration{1, 2}, true},
		{Configuration{0, 2}, Configuration{1, 2}, true},
		{Configuration{2, 0}, Configuration{1, 2}, false},
	} {
		if got := tt.c.Within(tt.d); got != tt.want {
			t.Errorf("%s within %s: %v", tt.c, tt.d, got)
		}
	}
}
