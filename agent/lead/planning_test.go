package lead

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/profiles"
)

// demandOf is a fleet that is asked for ncf, with members of these types.
func demandOf(types ...string) *control.FleetDemand {
	d := &control.FleetDemand{Models: []*control.ModelDemand{{
		Model: "ncf", Version: 1, Queries: 5000, Rate: 500, BatchSizes: []uint32{50, 150, 300},
		Shares:      []float64{0.2, 0.6, 0.2},
		QosTargetNs: 5e6, QosPercentile: 0.99, LargestBatchSize: 1000,
	}}}
	for _, t := range types {
		d.Members = append(d.Members, &control.Member{Name: "on-" + t, InstanceType: t, Lanes: 1})
	}
	return d
}

// TestProblemOf: what is planned for is the fleet as it is, and what cannot be is said.
func TestProblemOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    *control.FleetDemand
		edit func(*control.FleetDemand)
		want string // of the error
	}{
		{"a fleet", demandOf("g4dn.xlarge", "r5n.large", "r5n.large"), nil, ""},
		{"one drains", demandOf("g4dn.xlarge", "r5n.large", "r5n.large", "r5n.large"),
			func(d *control.FleetDemand) { d.Members[3].Draining = true }, ""},
		{"one has not said what it is", demandOf("g4dn.xlarge", "r5n.large", "r5n.large", ""),
			func(d *control.FleetDemand) { d.Members[3].Lanes = 0 }, ""},
		{"a model that hardly anybody asks for", demandOf("g4dn.xlarge", "r5n.large", "r5n.large"),
			func(d *control.FleetDemand) {
				d.Models = append(d.Models, &control.ModelDemand{
					Model: "unknown", Version: 1, Queries: 3, Rate: 1,
				})
			}, ""},
		{"no price", demandOf("g4dn.xlarge", "box"), nil,
			`agent on-box is of the type "box", of which no price is known`},
		{"no profile", demandOf("g4dn.xlarge", "c4.large"), nil,
			"ncf/1 has no profile on c4.large yet, which the fleet has"},
		{"no demand", demandOf("g4dn.xlarge"),
			func(d *control.FleetDemand) { d.Models[0].Queries = 99 },
			"of no model at least 100 queries have come"},
		{"none left", demandOf("g4dn.xlarge"),
			func(d *control.FleetDemand) { d.Members[0].Draining = true }, "all agents drain"},
	} {
		if tt.edit != nil {
			tt.edit(tt.d)
		}
		p, running, err := problemOf(tt.d, profiles.DefaultCatalogue(), profiles.ShippedLibrary())
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got the error %v, want %s", tt.name, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if err := p.Validate(); err != nil && !strings.Contains(err.Error(), "budget") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := p.Name(running); got != "g4dn.xlarge=1,r5n.large=2" || len(p.Types) < 4 ||
			len(p.Models) != 1 ||
			p.Models[0].Weight != 500 ||
			p.Target <= 0.99 {
			t.Errorf("%s: what runs is %s of %d types, models %v, target %v", tt.name, got,
				len(p.Types), p.Models, p.Target)
		}
	}
}

// TestPlanningRests: a first change is planned for at once. What changes in the minute after it is
// planned for at its end, the last of each model alone; and a leader that steps down stops.
func TestPlanningRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		planning := a.leader.currentTerm().planning
		told := func() (all []*control.Proposal) {
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, m := range a.told {
				if m.Proposal != nil && (len(all) == 0 || m.Proposal != all[len(all)-1]) {
					all = append(all, m.Proposal)
				}
			}
			return all
		}
		change := func(model string, kind profiles.ChangeKind, from, to float64) {
			planning.addChanges(
				[]learn.DemandChange{
					{Model: leader.ModelID{Name: model, Version: 1}, Change: profiles.Change{
						Kind: kind, Seen: time.Now(), At: time.Now(),
						Before: profiles.QueryMix{Rate: from}, Now: profiles.QueryMix{Rate: to},
					}},
				},
			)
			time.Sleep(10 * time.Millisecond)
		}
		change("m", profiles.RateChanged, 10, 20)
		if all := told(); len(all) != 1 ||
			!strings.HasPrefix(all[0].Reason, "no plan: of no model") ||
			all[0].Change {
			t.Fatalf("a change of a fleet of which nothing is asked: got %v", all)
		}
		change("m", profiles.RateChanged, 20, 40)
		change("n", profiles.BatchSizesChanged, 1, 1)
		time.Sleep(50 * time.Second)
		change("m", profiles.BatchSizesChanged, 40, 80)
		if all := told(); len(all) != 1 {
			t.Errorf("%d plans within a minute, want 1", len(all))
		}
		time.Sleep(10 * time.Second)
		all := told()
		last := all[len(all)-1]
		if last.Model != "m" || last.Before.Rate != 20 || last.Now.Rate != 80 ||
			last.Kind != string(profiles.BothChanged) {
			t.Errorf("after a minute %v is told, want what has changed since the plan before", last)
		}
		time.Sleep(time.Hour)
		if n := len(told()); n != len(all) {
			t.Errorf("%d plans without a change", n-len(all))
		}
	})
}

// TestPlansWithAllRuns: where one run in ten takes eight times as long, plans have the mean of all
// runs, by which lanes are busy, not that of usual ones.
func TestPlansWithAllRuns(t *testing.T) {
	book, now := profiles.NewBook(nil), time.Unix(1e9, 0)
	key := profiles.Key{Model: "m", Version: 1, InstanceType: "x", Provider: "cpu"}
	const usual, plain = 10 * time.Millisecond, 17 * time.Millisecond
	for i := range 2000 {
		run := usual * time.Duration(90+i*7%21) / 100
		if i%10 == 9 {
			run *= 8
		}
		now = now.Add(time.Second / 10)
		if err := book.Observe(key, 1+i%50, run, "a", now); err != nil {
			t.Fatal(err)
		}
	}
	s := &profileLearner{book: book, state: learn.New(book)}
	var out control.FleetDemand
	s.fillDemand(&out, now)
	if len(out.GetProfiles()) != 1 {
		t.Fatalf("there are %d profiles, want 1", len(out.GetProfiles()))
	}
	var told profiles.Table
	if err := json.Unmarshal(out.GetProfiles()[0].GetTable(), &told); err != nil {
		t.Fatal(err)
	}
	if got := told.Mean(25); got < plain*9/10 || got > plain*11/10 {
		t.Errorf("the mean is %v, want about %v", got, plain)
	}
	if got := book.Table(key).Mean(25); got > usual*13/10 {
		t.Errorf("for matching the mean is %v, want about %v", got, usual)
	}
}

// TestMoveToProfiled: the demand of a family counts for the most accurate variant of which
// latencies are known, and stays where it is if there is none.
func TestMoveToProfiled(t *testing.T) {
	variant := func(name, family string, accuracy float64, queries int) learn.Demand {
		return learn.Demand{Queries: queries, Rate: float64(queries) / 10,
			HeldModel: &leader.HeldModel{
				ModelID: leader.ModelID{Name: name, Version: 1}, Family: family, Accuracy: accuracy,
			}}
	}
	all := []learn.Demand{
		variant("new", "rank", 1, 100), variant("good", "rank", .99, 10),
		variant("fast", "rank", .9, 0), variant("lone", "other", 1, 50), variant("own", "", 0, 7),
	}
	moveToProfiled(all, func(m *leader.HeldModel) bool {
		return m.Name == "good" ||
			m.Name == "fast"
	})
	for i, want := range []int{0, 110, 0, 50, 7} {
		if d := &all[i]; d.Queries != want || d.Rate != float64(want)/10 {
			t.Errorf("%s has %d queries at %v/s, want %d", d.Name, d.Queries, d.Rate, want)
		}
	}
}

// TestFamiliesOf: renting may divide the demand of a family of which an accuracy is stated among
// its variants that reach the floor and have profiles: the aim is the target, else the floor.
// Others are planned for as they are asked for.
func TestFamiliesOf(t *testing.T) {
	library := profiles.ShippedLibrary()
	for name, tt := range map[string]struct {
		floor, target, fleet float64 // stated by a model, and in fleet.yaml
		aim                  float64
		variants             int
	}{
		"nothing stated":          {aim: 0},
		"a target":                {target: .99, aim: .99, variants: 2},
		"a floor":                 {floor: .9, aim: .9, variants: 2},
		"a floor above a variant": {floor: .99, aim: .99, variants: 1},
		"in fleet.yaml":           {floor: .9, fleet: .95, aim: .95, variants: 2},
	} {
		d := demandOf("r5n.large")
		d.Models[0].Model = "rm2"
		d.Members[0].Models = []*control.Model{
			{Name: "rm2", Version: 1, Newest: true, Family: "rank", Accuracy: 1, StatesFor: "rank",
				MinAccuracy: tt.floor, TargetAccuracy: tt.target},
			{Name: "unknown", Version: 1, Newest: true, Family: "rank", Accuracy: .99},
		}
		d.Members[0].Loadable = []*control.Model{
			{Name: "dien", Version: 1, Newest: true, Family: "rank", Accuracy: .98},
		}
		if tt.fleet > 0 {
			d.Members[0].Accuracies = []*control.FamilyAccuracy{
				{Family: "rank", TargetAccuracy: tt.fleet},
			}
		}
		problem, _, err := problemAt(d, map[string]float64{"r5n.large": .149}, library)
		if err != nil {
			t.Fatal(err)
		}
		got := familiesOf(d, problem, library)
		switch {
		case tt.aim == 0:
			if len(got) > 0 {
				t.Errorf("%s: got %+v", name, got)
			}
		case len(got) != 1 || got[0].TargetAccuracy != tt.aim || got[0].Model != 0 ||
			len(got[0].Variants) != tt.variants:
			t.Errorf("%s: got %+v, want %d variants for %v", name, got, tt.variants, tt.aim)
		}
	}
}
