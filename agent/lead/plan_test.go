package lead

import (
	"context"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/propose"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
)

// planOf plans for a demand at prices.
func planOf(ctx context.Context, d *control.FleetDemand, prices map[string]float64,
	priced bool) (*control.Plan, error) {
	problem, running, err := problemAt(d, prices, profiles.ShippedLibrary())
	if err != nil {
		return nil, err
	}
	plan, err := new(propose.Proposer).Plan(ctx, time.Now(), "fleet", problem, running, priced)
	if err != nil {
		return nil, err
	}
	return messageOf(plan), nil
}

// TestPlan: what runs, what would do for less and what one more instance adds are told, and without
// a price what can be told without.
func TestPlan(t *testing.T) {
	d := demandOf("g4dn.xlarge", "g4dn.xlarge", "r5n.large", "r5n.large")
	prices, err := PricesOf(d, profiles.DefaultCatalogue(), true)
	if err != nil {
		t.Fatal(err)
	}
	p, err := planOf(t.Context(), d, prices, true)
	if err != nil {
		t.Fatal(err)
	}
	now := 2*prices["g4dn.xlarge"] + 2*prices["r5n.large"]
	if p.Rate != 500 || p.Now.GetPrice() != now || p.Now.GetLimit() <= 500 ||
		p.Now.GetAllowable() != staffing.SafeShare(4)*p.Now.GetLimit() || len(p.Now.GetInstances()) != 2 {
		t.Errorf("what runs is told as %v of a rate of %v", p.Now, p.Rate)
	}
	if !p.Change || p.State != "proposed" || len(p.Changes) == 0 || p.Proposed.GetPrice() >= now ||
		p.Proposed.GetAllowable() < 500 || p.Gain <= 0 {
		t.Errorf("500 queries/s cost %v; the plan is %v", now, p)
	}
	for i, g := range p.More {
		if g.Price != prices[g.Type] || g.Rate < 0 ||
			i > 0 && g.Rate/g.Price > p.More[i-1].Rate/p.More[i-1].Price {
			t.Errorf("one more instance, the best for its price first: %v", p.More)
		}
	}
	if len(p.More) < 4 {
		t.Errorf("%d types may be added, want more than run", len(p.More))
	}
	p, err = planOf(t.Context(), d, map[string]float64{"g4dn.xlarge": 1, "r5n.large": 1}, false)
	if err != nil {
		t.Fatal(err)
	}
	if p.Proposed != nil || p.Now.GetPrice() != 0 || p.Now.GetLimit() <= 500 || len(p.More) != 2 ||
		p.More[0].GetPrice() != 0 || p.Reason == "" {
		t.Errorf("without prices it tells %v", p)
	}
}

func BenchmarkPlan(b *testing.B) {
	d := demandOf("g4dn.xlarge", "g4dn.xlarge", "r5n.large", "r5n.large")
	prices, err := PricesOf(d, profiles.DefaultCatalogue(), true)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := planOf(b.Context(), d, prices, true); err != nil {
			b.Fatal(err)
		}
	}
}
