package placecmd

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// muster runs a command below `muster place` with text as its standard input.
func muster(t *testing.T, text string, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "place", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	var out bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(text))
	root.SetOut(&out)
	err := root.Execute()
	return out.String(), err
}

const bert = `{"types": [{"name": "cpu", "count": 20}, {"name": "gpu", "count": 2}],
 "variants": [{"name": "bert-base", "family": "bert", "accuracy": 97.9},
              {"name": "bert-tiny", "family": "bert", "accuracy": 90}],
 "rates": [{"type": "cpu", "variant": "bert-base", "qps": 2.5},
           {"type": "cpu", "variant": "bert-tiny", "qps": 12.5},
           {"type": "gpu", "variant": "bert-base", "qps": 20}],
 "demand": {"bert": 100}}`

func solved(t *testing.T, text string) (a solution) {
	t.Helper()
	out, err := muster(t, text, "solve", "-", "--json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return a
}

func TestSolve(t *testing.T) {
	a := solved(t, bert)
	// Two gpu serve 40 and 20 cpu are to serve 60: with k of bert-tiny 12.5 k + 2.5 (20 - k) >= 60
	// at k = 1, and 40 + 19 * 2.5 = 87.5 queries/s are of bert-base.
	want := (87.5*97.9 + 12.5*90) / 100
	if a.ServedShare != 1 || math.Abs(a.Accuracy-want) > 1e-9 || !a.Proven || a.Agents != 22 ||
		a.Bound < a.Accuracy {
		t.Errorf("%+v, want accuracy %v of 22 agents, proven", a, want)
	}
	got, err := muster(t, bert, "solve", "-")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"served 100.000 % of the demand, accuracy 96.9",
		" points, proven to be the best\n",
		"bert    100     100     0         96.9",
		"cpu   bert-tiny  1       12.5\n",
		"gpu   bert-base  2       40\n",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("no line %q in:\n%s", line, got)
		}
	}
}

func TestSolveOverload(t *testing.T) {
	a := solved(t, strings.Replace(bert, `"bert": 100`, `"bert": 580`, 1))
	if want := (20*12.5 + 40) / 580; math.Abs(a.ServedShare-want) > 1e-9 {
		t.Errorf("served %v, want %v", a.ServedShare, want)
	}
	a = solved(t, strings.Replace(bert, `"bert": 100`, `"bert": 0`, 1))
	if a.ServedShare != 1 || a.Agents != 0 || a.Accuracy != 0 {
		t.Errorf("without demand: %+v", a)
	}
}

func TestSolveLayouts(t *testing.T) {
	a := solved(t, `{"types": [{"name": "m", "count": 10}],
 "variants": [{"name": "a", "family": "a", "accuracy": 100},
              {"name": "b", "family": "b", "accuracy": 100}],
 "layouts": [{"name": "a", "type": "m", "serves": [{"variant": "a", "qps": 10}]},
             {"name": "b", "type": "m", "serves": [{"variant": "b", "qps": 10}]},
             {"name": "a+b", "type": "m", "serves": [{"variant": "a", "qps": 7},
                                                     {"variant": "b", "qps": 7}]}],
 "demand": {"a": 21, "b": 28}, "objective": "fewest"}`)
	if a.Agents != 4 || *a.LeastAgents != 4 || a.ServedShare != 1 {
		t.Errorf("%+v, want 4 agents", a)
	}
	for _, n := range a.Counts {
		if n.Layout == "" || n.Variant != "" {
			t.Errorf("count of %+v, want a layout's", n)
		}
	}
}

// TestSolveRefuses: what is wrong with a file is told by its path.
func TestSolveRefuses(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{`"qps": 2.5`, `"qps": -2.5`, "rates[0].qps: is -2.5, want a finite number >= 0"},
		{`"qps": 2.5`, `"qps": NaN`, "rates[0].qps: is NaN, want a finite number >= 0"},
		{`"qps": 2.5`, `"qps": -Infinity`, "rates[0].qps: is -Infinity"},
		{`"qps": 2.5`, `"qps": 1e999`, "rates[0].qps: is 1e999"},
		{`"qps": 2.5`, `"qps": "2"`, `rates[0].qps: is "2", want`},
		{`, "qps": 2.5`, ``, "rates[0].qps: is missing"},
		{`"qps": 2.5`, `"qps": 2.5, "gps": 1`, "rates[0].gps: unknown, want one of type"},
		{`"type": "gpu"`, `"type": "tpu"`, `rates[2].type: there is no type "tpu"`},
		{`"cpu", "variant": "bert-tiny"`, `"cpu", "variant": "bert-base"`,
			"rates[1]: is of the same type and variant as rates[0]"},
		{`"variant": "bert-tiny"`, `"variant": "x"`, `rates[1].variant: there is no variant "x"`},
		{`"name": "bert-tiny"`, `"name": "bert-base"`,
			`variants[1].name: there is a variant "bert-base" before`},
		{`"name": "gpu"`, `"name": "cpu"`, `types[1].name: there is a type "cpu" before`},
		{`"accuracy": 90`, `"accuracy": -1`, "variants[1].accuracy: is -1"},
		{`"count": 20`, `"count": 2.5`, "types[0].count: is 2.5, want a whole number"},
		{`"count": 20`, `"count": -1`, "types[0].count: is -1"},
		{`"bert": 100`, `"bort": 100`, "demand.bort: no variant is of this family"},
		{`"bert": 100`, `"bert": 100, "bert": 2`, "demand.bert: is given twice"},
		{`"bert": 100`, `"bert": Infinity`, "demand.bert: is Infinity"},
		{`"demand"`, `"objective": "most", "demand"`, `objective: is "most", want "fewest"`},
		{`"demand"`, `"layouts": [], "demand"`, "layouts: is given beside rates"},
		{`"rates"`, `"layouts"`, "layouts[0].name: is missing"},
		{`{"types"`, `["types"`, "not JSON"},
		{`100}}`, `100}`, "ends too early"},
		{`100}}`, `100}} {}`, "the value is followed by more text"},
	} {
		text := strings.Replace(bert, tt.old, tt.new, 1)
		if text == bert {
			t.Fatalf("%q is not in the problem", tt.old)
		}
		if _, err := muster(t, text, "solve", "-"); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s for %s: %v, want %q", tt.new, tt.old, err, tt.want)
		}
	}
}
