package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles/published"
)

func TestPlanBadInput(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	dir := writeFiles(t, map[string]string{
		"shares.csv": "batch_size,weight\n10,0.5\n20,0.3\n",
		"free.yaml": "instance_types:\n  - {type: r5n.large, price_usd_per_hour: 0, vcpus: 2, " +
			"memory_gib: 16, class: memory-optimized}\n",
		"debt.yaml": "instance_types:\n  - {type: r5n.large, price_usd_per_hour: -1, vcpus: " +
			"2, memory_gib: 16, class: memory-optimized}\n",
		"missing.json":  `{"0, 1": [0.15, 50], "1, 0": [0.53, 99.5]}`,
		"contrary.json": `{"0, 1": [0.15, 50], "1, 0": [0.53, 99.5], "1, 1": [0.68, 99.9], "0,1": [0.15, 60]}`,
		"good.json":     `{"0, 1": [0.15, 50], "1, 0": [0.53, 98], "1, 1": [0.68, 98.9]}`,
	})
	const types = " --types g4dn.xlarge,r5n.large"
	for args, want := range map[string]string{
		"":                         "give --model",
		"--model rm2":              "give --budget for the most throughput, or --rate",
		"--model bert --budget 2":  "mtwnd",
		"--model rm2 --budget 0":   "budget: 0 $/hr, want above 0",
		"--model rm2 --budget -1":  "budget: -1",
		"--model rm2 --budget NaN": "budget: NaN",
		"--model rm2 --budget 0.1": "below the cheapest instance, r5n.large at 0.149 $/hr: raise " +
			"the budget",
		"--model rm2 --budget 0.3": "needs an instance of the base type, g4dn.xlarge at " +
			"0.526",
		"--model rm2 --budget 1000 --planner kairos":          "lower the budget, limit how many of a type",
		"--model rm2 --budget 1e9 --evaluator bound":          "lower the budget, limit how many",
		"--model rm2 --rate 20000 --planner kairos":           "configurations to choose from: give a budget",
		"--model rm2 --rate 0":                                "rate: 0",
		"--model rm2 --rate 10 --budget 0":                    "budget: 0",
		"--model rm2 --budget 2 --target 0.99999 --qos-ms -1": "qos-ms: -1",
		"--model rm2 --budget 2 --target 100":                 "target: 100",
		"--model rm2 --budget 2 --qos-ms 1": "the fastest answer to the " +
			"smallest query, of batch size 1, takes",
		"--model rm2 --budget 4 --types g4dn.xlarge,p3.2xlarge":  "p3.2xlarge",
		"--model rm2 --budget 2 --types g4dn.xlarge,g4dn.xlarge": "g4dn.xlarge is named twice",
		"--model rm2 --budget 2 --max r5n.large":                 "want TYPE=N",
		"--model rm2 --budget 2 --max r5n.large=-1":              "want TYPE=N",
		"--model rm2 --budget 2 --max " +
			"m5.xlarge=1": "m5.xlarge is not one of the types to choose from: g4dn.xlarge, " +
			"c5n.2xlarge",
		"--model rm2 --budget 2 --max r5n.large=0": "out of --types instead",
		"--model rm2 --budget 2 --planner best":    "there are: fluid, kairos, kairos+",
		"--model rm2 --budget 2 --runs 3":          `it is a flag of "muster plan table"`,
		"--model rm2 --budget 2 --family a=wnd:1":  `it is a flag of "muster plan place"`,
		"--model rm2 --budget 2 --server a:1":      `it is a flag of "muster plan live"`,
		"table published --model dien --rate 5": `it is a flag of "muster plan", ` +
			`"muster plan live", "muster plan place"`,
		"live --samples x": `it is a flag of "muster plan", "muster plan certify", "muster plan place", ` +
			`"muster plan table"`,
		"table published --runs 0":    "runs: 0",
		"table":                       "accepts 1 arg(s)",
		"table published":             "--model mtwnd or --model dien",
		"table published --model rm2": "mtwnd and dien",
		"table published --model dien --types " +
			"r5n.large": "g4dn.xlarge,r5n.large,c5.2xlarge in this order",
		"--model rm2 --budget 2 --evaluator live": "want sim or bound",
		"table " + dir +
			"/good.json": "give --types in the order",
		"table no-such" + types:                                "no-such",
		"table " + dir + "/good.json --model rm2" + types:      "omit --model",
		"table " + dir + "/good.json --planner kairos" + types: "ribbon needs none",
		"table " + dir + "/good.json --planner twin" +
			types: "give the table's --model and the --samples",
		"table " + dir + "/good.json --planner twin --model rm2 --samples x" +
			types: "mtwnd and dien",
		"--planner twin --model rm2 --budget 2": "give it a rate",
		"table " + dir + "/good.json --runs 2" +
			types: "no configuration meets the target of 99 %",
		"table " + dir + "/missing.json" + types: "missing, such as (1,1): add them",
		"table " + dir + "/contrary.json" +
			types: `row "0,1" contradicts one before it`,
		"table " + dir +
			"/good.json --types r5n.large,g4dn.xlarge": "in the table's order",
		"--model rm2 --budget 2 " +
			"--plain": "plain: the planner is kairos+; only ribbon",
		"--model rm2 --budget 2 --top 0":                         "top is 0",
		"--model rm2 --budget 2 --policy best --max r5n.large=1": "there are: fcfs, horizon, kairos",
		"--model rm2 --model wnd --budget 2 --planner kairos": "for several use the fluid " +
			"planner",
		"--model rm2 --budget 2 --batch " + dir + "/shares.csv": "add up to 0.8, want 1",
		"--model rm2 --budget 2 --catalogue " + dir +
			"/free.yaml": "price_usd_per_hour is 0, want a number above 0",
		"--model rm2 --budget 2 --catalogue " + dir +
			"/debt.yaml": "price_usd_per_hour is -1, want a number above 0",
	} {
		stdout, _, err := execute(t, append([]string{"plan"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("plan %s: error %v, want one with %q", args, err, want)
		}
		if stdout != "" {
			t.Errorf("plan %s: printed %q", args, stdout)
		}
	}
}

// TestPlanLarge: fleets of hundreds of instances are planned, of which there are too many
// configurations to list.
func TestPlanLarge(t *testing.T) {
	for args, want := range map[string]string{
		"--rate 500":   "g4dn.xlarge=1,r5n.large=49 ",
		"--budget 50":  "g4dn.xlarge=5,c5n.2xlarge=1,r5n.large=315 ",
		"--rate 20000": "the cheapest of ",
	} {
		stdout, _, err := execute(t, append([]string{"plan", "--model", "rm2", "--planner", "fluid",
			"--evaluator", "bound"}, strings.Fields(args)...)...)
		if err != nil || !strings.Contains(stdout, want) ||
			!strings.Contains(stdout, "more than 100000 configurations") {
			t.Errorf("plan %s: %v\n%s\nwant %q, and a note of too many to list", args, err, stdout, want)
		}
	}
}

func TestPlan(t *testing.T) {
	skipSimulations(t)
	type report struct {
		Planner     string
		Evaluations *int
		SearchSpace int `json:"search_space"`
		Plans       []struct {
			Configuration map[string]int
			Price         float64 `json:"price_usd_per_hour"`
			Predicted     float64 `json:"predicted_qps"`
			Satisfaction  float64 `json:"predicted_qos_satisfaction"`
			Bound         float64 `json:"bound_qps"`
			FluidLimit    float64 `json:"fluid_limit_qps"`
			Binding       string  `json:"binding_constraint"`
			Gains         []any   `json:"one_more"`
			Reason        string
		}
		Log   []any `json:"evaluation_log"`
		Notes []string
	}
	picture := filepath.Join(t.TempDir(), "plan.png")
	for _, tt := range []struct {
		args        string
		evaluations bool
	}{
		{"--model rm2 --budget 1.2", true},
		{"--model rm2 --budget 1.2 --planner fluid --top 4 --plot " + picture, false},
		{"--model rm2 --budget 1.2 --planner kairos --top 1", false},
		{"--model rm2 --budget 1.2 --evaluator bound", true},
		{"--model rm2 --budget 1.2 --qos-ms 150 --planner kairos --max r5n.large=2", false},
		{"--model rm2 --rate 20 --max r5n.large=2,t3.xlarge=1", true},
		{"--model rm2 --rate 20 --planner ribbon --types g4dn.xlarge,r5n.large", true},
		{"--model rm2 --rate 20 --planner twin --types g4dn.xlarge,r5n.large", true},
		{"--model rm2=2 --model wnd --budget 1.2 --types g4dn.xlarge,r5n.large", true},
	} {
		stdout, _, err := execute(t,
			append([]string{"plan", "--json", "--queries", "200", "--seeds", "2"},
				strings.Fields(tt.args)...)...)
		if err != nil {
			t.Errorf("plan %s: %v", tt.args, err)
			continue
		}
		var r report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if r.Planner == "" || r.SearchSpace == 0 || r.Evaluations == nil ||
			*r.Evaluations != len(r.Log) || (*r.Evaluations > 0) != tt.evaluations ||
			len(r.Plans) == 0 {
			t.Errorf("plan %s: %s", tt.args, stdout)
		}
		for i, p := range r.Plans {
			if p.Price <= 0 || strings.Contains(tt.args, "--budget") && p.Price > 1.2 ||
				i == 0 && (p.Bound <= 0 || p.FluidLimit <= 0) || p.Predicted > p.FluidLimit ||
				p.Binding == "" || p.Reason == "" || len(p.Gains) != len(p.Configuration) ||
				p.Configuration["r5n.large"] > 2 && strings.Contains(tt.args, "--max") {
				t.Errorf("plan %s: plan %d: %+v", tt.args, i, p)
			}
		}
		if strings.Contains(tt.args, "--rate") != (r.Plans[0].Satisfaction >= 0.99) {
			t.Errorf("plan %s: satisfaction %v", tt.args, r.Plans[0].Satisfaction)
		}
		if strings.Contains(tt.args, "--qos-ms 150") && (len(r.Notes) != 1 ||
			!strings.Contains(r.Notes[0], "target would have to be")) {
			t.Errorf("plan %s: notes %q", tt.args, r.Notes)
		}
	}
	f, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}

	stdout, _, err := execute(t, "plan", "--model", "rm2", "--budget", "1.2", "--planner", "fluid",
		"--top", "2")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"most throughput within 1.2 $/hr", "planner fluid: 0 of", "g4dn.xlarge=1,r5n.large=4",
		"The limit of plan 1: time on", "a $/hr",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestPlanTable(t *testing.T) {
	skipSimulations(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, published.Files(published.RIBBON)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mtwnd.json")
	stdout, _, err := execute(t, "plan", "table", "published", "--model", "mtwnd",
		"--target", "99", "--runs", "2", "--seed", "7", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"planner": "ribbon", "runs": 2., "failed_runs": 0., "search_space": 857.,
		"optimum_price_usd_per_hour": 2.253,
	} {
		if r[key] != want {
			t.Errorf("%s is %v, want %v", key, r[key], want)
		}
	}
	for _, key := range []string{
		"evaluations", "evaluations_mean", "evaluations_median", "evaluations_worst",
		"violating_evaluations_mean", "exploration_cost_percent",
	} {
		if v, _ := r[key].(float64); v <= 0 {
			t.Errorf("%s is %v", key, r[key])
		}
	}
	own := writeFiles(t, map[string]string{
		"own.json": `{"1, 0": [0.62, 99.5], "0, 1": [0.15, 3], "1, 1": [0.77, 99.9]}`,
	})
	priced, _, err := execute(t, "plan", "table", own+"/own.json", "--types",
		"c5a.4xlarge,x9.large")
	if err != nil || !strings.Contains(priced, "0.616  99.50 % within QoS") ||
		!strings.Contains(priced, "price of x9.large from the table") {
		t.Errorf("c5a.4xlarge has the catalogue's price, x9.large the table's: %v, %s", err, priced)
	}
	plain, _, err := execute(t, "plan", "table", "published", "--model", "mtwnd",
		"--seed", "7", "--plain")
	if err != nil || !strings.Contains(plain, "planner ribbon as in its paper (--plain): ") ||
		!strings.Contains(plain, "1   2.253  99.24 % within QoS") {
		t.Errorf("plain: %v, %s", err, plain)
	}
	stdout, _, err = execute(t, "plan", "table", file, "--types",
		"g4dn.xlarge,c5.2xlarge,r5n.large", "--max", "g4dn.xlarge=4,c5.2xlarge=2,r5n.large=4",
		"--runs", "2")
	if err != nil ||
		!strings.Contains(stdout,
			"until a run found the best configuration, g4dn.xlarge=4,r5n.large=1 at 2.253 $/hr, "+
				"over 2 runs") {
		t.Errorf("%v, %s", err, stdout)
	}
	stdout, _, err = execute(t, "plan", "table", file, "--planner", "twin",
		"--types", "g4dn.xlarge,c5.2xlarge,r5n.large",
		"--model", "mtwnd", "--samples", filepath.Join(dir, "samples.csv.gz"))
	if err != nil || !strings.Contains(stdout, "1  2.253  99.24 % within QoS") {
		t.Errorf("%v, %s", err, stdout)
	}
	embedded, _, err := execute(t, "plan", "table", "published", "--planner", "twin",
		"--model", "mtwnd")
	if err != nil || !strings.Contains(embedded, "1  2.253  99.24 % within QoS") {
		t.Errorf("%v, %s", err, embedded)
	}
}

// TestPlanInterrupted: the configurations that were evaluated until Ctrl-C are ranked.
func TestPlanInterrupted(t *testing.T) {
	table := write(t, filepath.Join(t.TempDir(), "t.json"),
		`{"0, 1": [0.15, 50], "0, 2": [0.3, 80], "1, 0": [0.53, 99.5], "1, 1": [0.68, 99.9],
		"1, 2": [0.83, 99.9]}`)
	for _, asJSON := range []bool{false, true} {
		o := planOptions{
			target: 99, types: []string{"g4dn.xlarge", "r5n.large"}, planner: ribbonPlanner, top: 5,
		}
		o.sim.json = asJSON
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetContext(ctx)
		p, err := o.openTable(table)
		if err != nil {
			t.Fatal(err)
		}
		evaluated := []plan.Evaluation{
			{Configuration: plan.Configuration{0, 2}, Estimate: plan.Estimate{Value: 0.8}},
			{Configuration: plan.Configuration{1, 1}, Estimate: plan.Estimate{Value: 0.999}},
			{Configuration: plan.Configuration{1, 0}, Estimate: plan.Estimate{Value: 0.995}},
		}
		if err := o.reportSoFar(cmd, p, evaluated); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v", err)
		}
		want := []string{"1  0.526", "g4dn.xlarge=1",
			"the best of those evaluated before the interrupt",
			"interrupted after 3 of 5 configurations"}
		if asJSON {
			want = []string{`"interrupted": true`, `"evaluations": 3`}
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("printed %s, want %q in it", &out, w)
			}
		}
		out.Reset()
		if err := o.reportSoFar(cmd, p, nil); !errors.Is(err, context.Canceled) || out.Len() > 0 {
			t.Errorf("before any evaluation: printed %q, error %v", &out, err)
		}
	}
}
