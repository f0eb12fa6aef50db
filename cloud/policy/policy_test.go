package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
)

const good = `fleet: prod
mode: off
objective: {rate: auto, headroom: 1.2}
limits:
  max_price_usd_per_hour: 6.0
  min_instances: 3
  types: {g4dn.xlarge: {min: 1, max: 4}, r5n.large: {max: 20, spot: false}}
calm: 20m
change: {launches: 4, drains: 20%, threshold: 0.07, window: "mon-fri 06:00-22:00 UTC"}
ec2: {region: us-east-1, template: worker, template_version: "7", subnets: [subnet-a, subnet-b]}
spare: 1
spot: {share: 50%, max_pool: 0.4}
families: {rank: {min_accuracy: .99, target_accuracy: 0.995}, feed: {min_accuracy: 90%}}
`

// TestKubernetes: the section of pods is read with its defaults, and its faults with their lines.
func TestKubernetes(t *testing.T) {
	const head = "fleet: f\nlimits: {max_price_usd_per_hour: 1, types: {r5n.large: {}}}\n"
	p, err := Parse("f", head+"kubernetes: {template: worker, nodes: gke, zones: [a, b], "+
		"prices: {r5n.large@spot: 0.05}, template_version: v2}")
	if err != nil {
		t.Fatal(err)
	}
	if k := p.Kubernetes; p.Provider() != "kubernetes" || p.Template() != "v2" || k.Nodes != "gke" ||
		len(k.Zones) != 2 || k.Prices["r5n.large@spot"] != .05 || k.LaunchTimeout != 4*time.Minute {
		t.Errorf("read as %+v", p.Kubernetes)
	}
	for text, want := range map[string]string{
		"kubernetes: {}": "f:3: kubernetes: no template",
		"kubernetes: {template: a, nodes: elsewhere}": "want one of karpenter, eks, gke, aks",
		"kubernetes: {template: a, prices: {a/b: 1}}": "kubernetes.prices: instance type",
		"kubernetes: {template: a, prices: {a: 0}}":   "want $/hr above 0",
	} {
		if _, err := Parse("f", head+text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestParse(t *testing.T) {
	p, err := Parse("fleet.yaml", good)
	if err != nil {
		t.Fatal(err)
	}
	if p.Fleet != "prod" || p.Mode != Off || p.Headroom != 1.2 || p.MaxPrice != 6 ||
		p.Types["g4dn.xlarge"] != (choose.Limits{Min: 1, Max: 4}) || p.Calm != 20*time.Minute ||
		p.Drains != 0.2 ||
		p.Types["r5n.large"] != (choose.Limits{Max: 20, OnDemand: true}) || p.Spare != 1 ||
		p.SpotShare != 0.5 || p.MaxPool != 0.4 || p.Threshold != 0.07 || len(p.EC2.Subnets) != 2 ||
		p.Provider() != "ec2" {
		t.Errorf("%+v", p)
	}
	if len(p.Families) != 2 || p.Families["rank"] != (Accuracy{.99, .995}) ||
		p.Families["feed"] != (Accuracy{Min: .9}) {
		t.Errorf("of families it states %+v", p.Families)
	}
	least, err := Parse("fleet.yaml", "fleet: a\nlimits: {max_price_usd_per_hour: 1, types: "+
		"{r5n.large: {}}}\nprocess: {dir: d, models: m}\n")
	if err != nil {
		t.Fatal(err)
	}
	if least.Spare != 0 || least.SpotShare != 0 || least.MaxPool != 0.3 {
		t.Errorf("without a line on spare and spot: %+v", least)
	}
	if least.Mode != Advise {
		t.Errorf("mode %q without a line on it, want advise", least.Mode)
	}
}

// TestFaults: each fault is named with its line, what was found and what is expected.
func TestFaults(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{"mode: off", "mode: on", `f:2: "on", want one of off, advise, approve, auto`},
		{"calm: 20m", "clam: 20m", `f:8: unknown key "clam", want one of calm, change, ec2`},
		{"calm: 20m", "mode: auto", `f:8: "mode" is set twice, first at line 2`},
		{"headroom: 1.2", "headroom: 0.9", `f:3: "0.9", want 1 to 10`},
		{"rate: auto", "rate: -3", `f:3: "-3", want auto, or queries/s above 0`},
		{"max: 4", "max: 0", "f:7: max: 0, want 1 or more; leave the type out to have none"},
		{"min: 1, max: 4", "min: 5, max: 4", "limits.types.g4dn.xlarge: min 5 is above max 4"},
		{"min: 1, max: 4", "mix: 1", `f:7: limits.types.g4dn.xlarge: unknown key "mix"`},
		{"drains: 20%", "drains: 0%", `f:9: "0%", want a share, such as 10%`},
		{"launches: 4", "launches: many", `f:9: "many", want a whole number`},
		{`"7"`, "$Latest", `f:10: template_version: "$Latest", want the number of a version`},
		{"region: us-east-1, ", "", "f:10: ec2: no region"},
		{"fleet: prod", "fleet: Prod Fleet", `fleet: "Prod Fleet", want a name`},
		{"  max_price_usd_per_hour: 6.0\n", "", "limits.max_price_usd_per_hour: 0, want the maximum"},
		{"min_instances: 3", "min_instances: 30", "limits.min_instances: 30, but the types' max " +
			"allow 24"},
		{"headroom: 1.2", "budget: 7", "objective.budget: 7 $/hr is above"},
		{"mon-fri 06:00-22:00 UTC", "mon-fry 06:00-22:00 UTC", `days "mon-fry"`},
		{"mon-fri 06:00-22:00 UTC", "22:00-06:00 UTC", "end before they begin"},
		{"calm: 20m", "process: {dir: a, models: b}", "2 providers, ec2 and process: want one"},
		{"min_accuracy: .99", "min_accuracy: 2", `f:13: "2", want a share`},
		{"min_accuracy: .99", "accuracy: 1", `f:13: families.rank: unknown key "accuracy"`},
		{"spare: 1", "spare: 2", "f:11: spare: 2, want 0 or 1"},
		{"share: 50%", "share: 150%", `f:12: "150%", want a share`},
		{"max_pool", "max-pool", `f:12: spot: unknown key "max-pool", want one of max_pool, share`},
		{"spot: false", "spot: never", `f:7: "never", want one of true, false`},
		{"20m", "soon", `f:8: "soon", want a duration, such as 10m`},
		{"calm: 20m", "clam: 20m\nrequires: 9", "f:9: requires format 9, but this version of Muster knows"},
		{"calm: 20m", "requires: 0", `f:8: requires: got "0", want the number of a format`},
	} {
		text := strings.Replace(good, tt.old, tt.new, 1)
		if _, err := Parse("f", text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.new, err, tt.want)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{"", "f: empty"}, {"a: b\n---\nc: d\n", "more than one document"}, {
			"- a", "f:1: want keys",
		},
		{strings.Repeat("#", largest+1), "want at most 65536"},
	} {
		if _, err := Parse("f", tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.20q: %v, want %q", tt.text, err, tt.want)
		}
	}
}

// TestBudgetBelowMinimum: a limit that does not pay for the minimum of the file is named
// with both sums.
func TestBudgetBelowMinimum(t *testing.T) {
	prices := map[rent.Kind]float64{{Type: "g4dn.xlarge"}: 0.526, {Type: "r5n.large"}: 0.149}
	p, err := Parse("f", strings.Replace(good, "hour: 6.0", "hour: 0.8", 1))
	if err != nil {
		t.Fatal(err)
	}
	want := "limits.max_price_usd_per_hour: 0.8 $/hr does not pay for the minimum of this " +
		"file, 1 x g4dn.xlarge, 2 of the cheapest at 0.824 $/hr"
	if err := p.Affords(prices); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	p.MaxPrice = 0.83
	if err := p.Affords(prices); err != nil {
		t.Error(err)
	}
}

func TestAllows(t *testing.T) {
	p, err := Parse("f", good)
	if err != nil {
		t.Fatal(err)
	}
	gpu, small := rent.Kind{Type: "g4dn.xlarge"}, rent.Kind{Type: "r5n.large"}
	prices := map[rent.Kind]float64{gpu: 0.526, small: 0.149}
	if err := p.Allows(map[rent.Kind]int{gpu: 2, small: 3}, prices); err != nil {
		t.Error(err)
	}
	for want, counts := range map[string]map[rent.Kind]int{
		"5 of g4dn.xlarge: limits.types allows 4":           {gpu: 5},
		"0 of g4dn.xlarge: limits.types wants at least 1":   {small: 5},
		"2 instances: limits.min_instances is 3":            {gpu: 2},
		"$6.154/hr: limits.max_price_usd_per_hour is 6":     {gpu: 10, small: 6},
		"1 of x.large: limits.types of fleet.yaml does not": {{Type: "x.large"}: 1},
		"3 of g4dn.xlarge@spot: its price is not known": {
			gpu: 1, {Type: "g4dn.xlarge", Market: rent.Spot}: 3,
		},
		"3 of r5n.large@spot: limits.types has the type on demand alone": {
			gpu: 1, {Type: "r5n.large", Market: rent.Spot}: 3,
		},
	} {
		if err := p.Allows(counts, prices); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", counts, err, want)
		}
	}
}

func TestAllowsNoSpot(t *testing.T) {
	p, err := Parse("f", strings.Replace(good, "share: 50%", "share: 0", 1))
	if err != nil {
		t.Fatal(err)
	}
	spot := rent.Kind{Type: "g4dn.xlarge", Market: rent.Spot}
	want := "3 of g4dn.xlarge@spot: spot.share is 0"
	if err := p.Allows(map[rent.Kind]int{spot: 3}, nil); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestWindow(t *testing.T) {
	w, err := ParseWindow("mon-fri 06:00-22:00 UTC")
	if err != nil {
		t.Fatal(err)
	}
	monday := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	for after, open := range map[time.Duration]bool{
		0: false, 6 * time.Hour: true, 22*time.Hour - time.Second: true, 22 * time.Hour: false,
		5*24*time.Hour + 12*time.Hour: false,
	} {
		if why := w.Closed(monday.Add(after)); (why == "") != open {
			t.Errorf("after %v: %q", after, why)
		}
	}
	if why := (Window{}).Closed(monday); why != "" {
		t.Errorf("always: %q", why)
	}
}
