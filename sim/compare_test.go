package sim

import (
	"strings"
	"testing"
)

var paperPrices = []Price{
	{"g4dn.xlarge", 0.526}, {"c5n.2xlarge", 0.432}, {"r5n.large", 0.149}, {"t3.xlarge", 0.1664},
}

func TestConfigurations(t *testing.T) {
	cfg := reference(t, "rm2")
	pools, err := Configurations(cfg.Models, paperPrices, 2.5)
	if err != nil {
		t.Fatal(err)
	}
	if len(pools) != 331 {
		t.Errorf("%d configurations, want 331", len(pools))
	}
	for _, p := range pools {
		if p.Of("g4dn.xlarge") == 0 || p.Cost(paperPrices) > 2.5+1e-9 {
			t.Errorf("pool %s costs %v", p, p.Cost(paperPrices))
		}
	}
	for _, budget := range []float64{0, -1, 0.5} {
		if _, err := Configurations(cfg.Models, paperPrices, budget); err == nil {
			t.Errorf("budget %v: no error", budget)
		}
	}
	if _, err := Configurations(cfg.Models, paperPrices, 1e6); err == nil ||
		!strings.Contains(err.Error(), "too many") {
		t.Errorf("budget 1e6: %v", err)
	}
}

// TestCompare at a small budget, where every pool can be measured alone: the best found is
// the best there is.
func TestCompare(t *testing.T) {
	cfg := reference(t, "rm2")
	cfg.Queries = 1000
	const budget = 0.85
	c, err := Compare(t.Context(), cfg, []string{"horizon", "fcfs", Oracle}, paperPrices,
		budget, nil, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Homogeneous.Pool != "g4dn.xlarge=1" || c.HomogeneousScaled <= c.Homogeneous.Rate {
		t.Errorf("homogeneous: %+v, scaled %v", c.Homogeneous, c.HomogeneousScaled)
	}
	pools, err := Configurations(cfg.Models, paperPrices, budget)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := c.WriteText(&text); err != nil || len(c.Notes) != 1 ||
		!strings.Contains(text.String(), "\nNote: the oracle is that of KAIROS's paper") {
		t.Errorf("got notes %q and %s, want that the oracle is no bound", c.Notes, &text)
	}
	for _, e := range c.Policies {
		if e.PriceUSDPerHour > budget || e.Rate <= 0 {
			t.Errorf("%+v", e)
		}
		for _, p := range pools {
			one := *cfg
			one.Pool, one.Policy = p, e.Policy
			found, err := FindThroughput(t.Context(), &one, 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			// Seeds beside the first, which the search did not use, may favour
			// another pool a little.
			if found.Rate > 1.05*e.Rate {
				t.Errorf("%s: pool %s reaches %v, more than %v of %s", e.Policy, p, found.Rate,
					e.Rate, e.Pool)
			}
		}
	}
}
