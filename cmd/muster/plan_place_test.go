package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const twoFamilies = "--family ctr=wnd:1,wnd-int8:.985:wnd*.4 " +
	"--family feed=dien:1,dien-s:.97:dien*.5@2"

func TestPlanPlaceBadInput(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	for args, want := range map[string]string{
		"--rate 10 --budget 2":                             "give --model",
		"--model rm2 --budget 2":                           "give --rate",
		"--model rm2 --budget 2 --rate -1":                 "rate: -1",
		"--model rm2 --budget 2 --rate Inf":                "rate: +Inf",
		"--model rm2 --rate 10":                            "give --budget",
		"--model rm2 --rate 10 --budget NaN":               "budget: NaN",
		"--model rm2 --rate 10 --budget .01":               "below the cheapest instance",
		"--model rm2 --rate 10 --min-accuracy 0":           "min-accuracy: 0",
		"--model rm2 --rate 10 --min-accuracy 1.1":         "min-accuracy: 1.1",
		"--model rm2 --rate 10 --budget 2 --live":          "unknown flag: --live",
		"--model rm2 --rate 10 --budget 2 --plot a.png":    `it is a flag of "muster plan"`,
		"--model rm2 --rate 10 --budget 2 --planner fluid": `it is a flag of "muster plan", "muster plan live"`,
		"--model rm2 --rate 10 --budget 2 --evaluator table:x": `evaluator "table:x" is unknown, ` +
			`want sim or bound`,
		"--model rm2 --rate 10 --budget 2 --place-headroom .5": "place-headroom: 0.5",
		"--model rm2 --rate 10 --budget 2 --top 0":             "top is 0",
		"--model rm2 --rate 10 --budget 2 --max m5.xlarge=1":   "m5.xlarge is not one of",
		"--model bert --rate 10 --budget 2":                    "mtwnd",
		"--family a=bert:1 --rate 10 --budget 2":               "mtwnd",
		"--family a=wnd --rate 10 --budget " +
			"2": "want NAME=VARIANT:ACCURACY",
		"--family a=wnd:1 --family b=wnd:1 --rate 10 --budget 2": "wnd is named twice",
		"--family a=wnd:1,low:.3:wnd*.2 --rate 10 --budget 2":    `low is too inaccurate for family "a"`,
		"--family a=wnd:1 --family a=rm2:1 --rate 10 --budget 2": "family a has the name",
		"--family a=wnd:1,dien:.9 --rate 10 --budget 2":          "give one with --qos-ms",
		"--model rm2 --rate 10 --budget 2 --qos-ms 1": "serves any query in time; family " +
			"rm2: no instance can serve it within its QoS target of 1ms",
	} {
		stdout, _, err := execute(t, append([]string{"plan", "place"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("plan place %s: error %v, want one with %q", args, err, want)
		}
		if stdout != "" {
			t.Errorf("plan place %s: printed %q", args, stdout)
		}
	}
}

// TestPlanPlace: what the plans say fits together: counts, prices, layouts, shares, and the order.
func TestPlanPlace(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	type report struct {
		Met         bool
		BoundServed float64 `json:"bound_served_share"`
		Bound       float64 `json:"bound_accuracy"`
		BoundPrice  float64 `json:"bound_usd_per_hour"`
		Notes       []string
		Plans       []struct {
			Configuration map[string]int
			Price         float64 `json:"price_usd_per_hour"`
			Served        float64 `json:"served_share"`
			Accuracy      float64
			Holds         []struct {
				Type   string `json:"instance_type"`
				Count  int
				Models []string
				Rate   float64 `json:"serves_qps"`
			}
			Families []struct {
				Family  string
				Planned float64 `json:"planned_qps"`
				Served  float64 `json:"served_share"`
				Shares  map[string]float64
			}
			Simulated *struct {
				WithinQoS float64 `json:"qos_satisfaction"`
				Accuracy  float64 `json:"effective_accuracy"`
			}
		}
	}
	price := map[string]float64{"g4dn.xlarge": .526, "r5n.large": .149}
	for args, met := range map[string]bool{
		"--budget 2.5":                      true,
		"--budget .6":                       false,
		"--min-accuracy .99":                true,
		"--least-accuracy .99 --budget 1.5": false, // the former name
		"--min-accuracy .99 --budget 4 --max r5n.large=3": true,
	} {
		stdout, _, err := execute(t, append([]string{"plan", "place", "--rate", "900", "--json",
			"--types", "g4dn.xlarge,r5n.large", "--queries", "2000", "--seeds", "1"},
			strings.Fields(args+" "+twoFamilies)...)...)
		if err != nil {
			t.Errorf("plan place %s: %v", args, err)
			continue
		}
		var r report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if r.Met != met || met == (len(r.Notes) > 0) {
			t.Errorf("%s: met %v, notes %q", args, r.Met, r.Notes)
		}
		for i, p := range r.Plans {
			cost, count, flow, planned := 0.0, map[string]int{}, 0.0, 0.0
			for name, n := range p.Configuration {
				cost += price[name] * float64(n)
			}
			for _, h := range p.Holds {
				count[h.Type] += h.Count
				flow += h.Rate
			}
			for _, f := range p.Families {
				planned += f.Planned
			}
			if d := cost - p.Price; d > 1e-6 || d < -1e-6 {
				t.Errorf("%s: %v costs %v, and the plan says %v", args, p.Configuration, cost,
					p.Price)
			}
			for name, n := range p.Configuration {
				if count[name] != n {
					t.Errorf("%s: %d of %d %s hold something", args, count[name], n, name)
				}
			}
			if d := flow/planned - p.Served; d > 1e-4 || d < -1e-4 {
				t.Errorf("%s: instances serve %v of %v, and the plan says %v", args, flow, planned,
					p.Served)
			}
			if (p.Simulated != nil) != (i == 0) {
				t.Errorf("%s: plan %d: simulated is %v", args, i+1, p.Simulated)
			}
		}
		first := r.Plans[0]
		if met && (first.Simulated.WithinQoS < .99 ||
			first.Simulated.Accuracy < first.Accuracy-.01) {
			t.Errorf("%s: simulated %+v, planned accuracy %v", args, first.Simulated,
				first.Accuracy)
		}
		if r.BoundPrice > first.Price+1e-6 || r.Bound > 0 && r.Bound < first.Accuracy {
			t.Errorf("%s: %v $/hr at %v, bounds %v and %v", args, first.Price, first.Accuracy,
				r.BoundPrice, r.Bound)
		}
	}
}

func TestPlanPlaceText(t *testing.T) {
	stdout, _, err := execute(
		t, append([]string{"plan", "place", "--rate", "900", "--budget", ".6",
			"--evaluator", "bound"}, strings.Fields(twoFamilies)...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ctr, feed: maximum share of 900 queries/s, then maximum accuracy, within 0.6 $/hr",
		"r5n.large=4", "Plan 1:\n  r5n.large  #", "wnd-int8 100.0 %", "Note: plan 1 leaves",
		"of feed unserved.",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("want %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "Simulated") {
		t.Errorf("simulated with --evaluator bound:\n%s", stdout)
	}
}

// TestPlanPlaceLarge: fleets of hundreds of instances are planned, whatever may be chosen from, and
// what no fleet is to exceed none does: with more money the plan is no worse than that.
func TestPlanPlaceLarge(t *testing.T) {
	last := 0.0
	for _, budget := range []string{"18", "22", "1e5"} {
		stdout, _, err := execute(t, append([]string{"plan", "place", "--rate", "9000", "--json",
			"--budget", budget, "--top", "1", "--evaluator", "bound"},
			strings.Fields(twoFamilies)...)...)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			Met   bool
			Bound float64 `json:"bound_accuracy"`
			Doubt string
			Plans []struct{ Accuracy float64 }
			// Where money buys more accuracy, both families and accuracy have a price.
			Margin *struct {
				Queries     map[string]float64 `json:"usd_per_million_queries"`
				Rate        map[string]float64 `json:"usd_per_hour_per_qps"`
				Millisecond map[string]float64 `json:"usd_per_hour_saved_per_ms_of_qos_target"`
				Point       float64            `json:"usd_per_hour_per_point_of_accuracy"`
			}
		}
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if got := r.Plans[0].Accuracy; !r.Met || r.Doubt != "" || got < last || got > r.Bound+1e-6 {
			t.Errorf("within %s $/hr: %+v, and %v for less", budget, r, last)
		}
		last = r.Plans[0].Accuracy
		if m := r.Margin; (m == nil) != (budget == "1e5") || m != nil && (len(m.Queries) != 2 ||
			!(m.Queries["ctr"] > 0) || !(m.Queries["feed"] > m.Queries["ctr"]) || !(m.Point > 0) ||
			!(m.Rate["ctr"] > 0) || !(m.Millisecond["ctr"]+m.Millisecond["feed"] > 0)) {
			t.Errorf("within %s $/hr: margin %+v", budget, m)
		}
	}
}
