package lead

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// TestOutlook: what runs, what would do for less and what one more instance adds are told, and
// without a price what can be told without.
func TestOutlook(t *testing.T) {
	d := demandOf("g4dn.xlarge", "g4dn.xlarge", "r5n.large", "r5n.large")
	prices, err := PricesOf(d, profiles.DefaultCatalogue(), true)
	if err != nil {
		t.Fatal(err)
	}
	p := &control.Plan{Priced: true}
	if err := outlookOf(t.Context(), d, prices, profiles.ShippedLibrary(), p); err != nil {
		t.Fatal(err)
	}
	now := 2*prices["g4dn.xlarge"] + 2*prices["r5n.large"]
	if p.Rate != 500 || p.Now.GetPrice() != now || p.Now.GetLimit() <= 500 ||
		p.Now.GetAllowable() != 0.95*p.Now.GetLimit() || len(p.Now.GetInstances()) != 2 {
		t.Errorf("what runs is told as %v of a rate of %v", p.Now, p.Rate)
	}
	if !p.Change || p.Proposed.GetPrice() >= now || p.Proposed.GetAllowable() < 500 || p.Gain <= 0 {
		t.Errorf("500 queries/s cost %v; the proposal is %v, gain %v", now, p.Proposed, p.Gain)
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

	p = &control.Plan{}
	err = outlookOf(t.Context(), d, map[string]float64{"g4dn.xlarge": 1, "r5n.large": 1},
		profiles.ShippedLibrary(), p)
	if err != nil {
		t.Fatal(err)
	}
	if p.Proposed != nil || p.Now.GetPrice() != 0 || p.Now.GetLimit() <= 500 || len(p.More) != 2 ||
		p.More[0].GetPrice() != 0 || p.Reason == "" {
		t.Errorf("without prices it tells %v", p)
	}
}

// TestOutlookIsDue: it is made when something has changed, and not all the time.
func TestOutlookIsDue(t *testing.T) {
	now := time.Now()
	one, two := map[string]int{"box": 1}, map[string]int{"box": 2}
	for _, tt := range []struct {
		name   string
		o      outlook
		counts map[string]int
		rate   float64
		want   string
	}{
		{"nothing was asked", outlook{}, one, 0, ""},
		{"nobody is there", outlook{}, nil, 5, ""},
		{"the first", outlook{}, one, 5, "fleet"},
		{"just made", outlook{made: now.Add(-59 * time.Second), counts: one, rate: 5}, two, 50, ""},
		{"more instances", outlook{made: now.Add(-time.Hour), counts: one, rate: 5}, two, 5,
			"fleet"},
		{"more queries", outlook{made: now.Add(-time.Hour), counts: one, rate: 5}, one, 6, "time"},
		{"fewer", outlook{made: now.Add(-time.Hour), counts: one, rate: 5}, one, 4, "time"},
		{"all as before", outlook{made: now.Add(-time.Hour), counts: one, rate: 5}, one, 5.5, ""},
	} {
		if got := tt.o.trigger(now, tt.counts, tt.rate); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func BenchmarkOutlook(b *testing.B) {
	d := demandOf("g4dn.xlarge", "g4dn.xlarge", "r5n.large", "r5n.large")
	prices, err := PricesOf(d, profiles.DefaultCatalogue(), true)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p := &control.Plan{Priced: true}
		if err := outlookOf(b.Context(), d, prices, profiles.ShippedLibrary(), p); err != nil {
			b.Fatal(err)
		}
	}
}
