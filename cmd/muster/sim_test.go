package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader"
)

// writeFiles writes files into an empty directory and returns it.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// skipSimulations skips a test whose time goes into simulations when tests are to be short, as under the
// race detector: what runs at a time in a simulation, sim's own tests show there.
func skipSimulations(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it simulates for seconds")
	}
}

func TestSimBadInput(t *testing.T) {
	skipSimulations(t)
	dir := writeFiles(t, map[string]string{
		"empty.csv": "",
		"words.csv": "model,instance_type,batch_size,sample_ms\nrm2,g4dn.xlarge,10,fast\n",
		"missing.csv": "model,instance_type,batch_size,sample_ms\nrm2,g4dn.xlarge,10,1\n" +
			"rm2,g4dn.xlarge,20,1\nrm2,r5n.large,10,1\n",
		"trace.csv":  "arrival_ms,model,batch_size\n0,rm2,x\n",
		"q.jsonl":    `{"at_ms":1,"model":"rm2"}`,
		"sizes.csv":  "batch_size\n0\n",
		"run.txt":    leader.Header + "\nrubbish\n",
		"former.txt": "muster-match 2\nconfig {}\n",
		"fleet.yaml": dayFleet,
		"faults.txt": "# comment\nkill-leader@1s\nkill-leader@soon # why\n",
	})
	const pool = " --pool g4dn.xlarge=1,r5n.large=4"
	for args, want := range map[string]string{
		"":                                 "give --pool",
		"--pool g4dn.xlarge":               `got "g4dn.xlarge", want TYPE=COUNT`,
		"--pool g4dn.xlarge=0 --model rm2": "has 0 instances",
		"--pool g4dn.xlarge=-1":            "counts of 0 or more",
		"--pool g4dn.xlarge=1000000000":    "want 1..",
		"--model rm2 --pool p3.2xlarge=1":  "r5n.large",
		"--model bert" + pool:              "mtwnd",
		pool:                               "dien, mtwnd, ncf, rm2, wnd",
		"--model rm2" + pool:               "give --rate",
		"--model rm2 --rate 0" + pool:      "rate is 0",
		"--model rm2 --rate -5" + pool:     "rate is -5",
		"--model rm2 --rate 1e99" + pool:   "rate is 1e+99",
		"--model rm2 --rate NaN" + pool:    "rate is NaN",
		"--model rm2 --rate 5 --policy p" +
			pool: "there are: fcfs, horizon, kairos",
		"--model rm2 --rate 5 --policy drs" + pool:       "reproduce/ in Muster's repository has it",
		"--model rm2 --rate 5 --merge nexus" + pool:      "reproduce/ in Muster's repository has it",
		"--model rm2 --rate 5 --queries 0" + pool:        "number of queries is 0",
		"--model rm2 --rate 5 --seeds 0" + pool:          "number of seeds is 0",
		"--model rm2 --rate 5 --qos-ms -1" + pool:        "qos-ms: -1",
		"--model rm2 --rate 5 --rtt-ms NaN" + pool:       "rtt-ms: NaN",
		"--model rm2 --rate 5 --latency-noise 2" + pool:  "latency noise is 2",
		"--model rm2 --rate 5 --batch weekly" + pool:     `batch sizes "weekly"`,
		"--model rm2 --rate 5 --batch fixed:5000" + pool: "5000",
		"--model rm2 --rate 5 --arrivals weekly" + pool:  "or a file of recorded queries",
		"--model rm2 --rate 5 --load 1:1" + pool:         "DURATION:FACTOR",
		"throughput --model rm2 --rate 5" + pool: `it is a flag of "muster sim", ` +
			`"muster sim day", "muster sim faults"`,
		"throughput --model rm2 --log x" + pool: "unknown flag: --log",
		"faults --model rm2 --rate 5" + pool:    "give --fault",
		"--model rm2 --rate 5 --fits 1" + pool: `it is a flag of ` +
			`"muster sim day", "muster sim place"`,
		"--model rm2 --policy oracle --rate 5" + pool:                   "oracle",
		"--model rm2 --rate 5 --seeds 2 --log " + dir + "/log" + pool:   "one run",
		"--model rm2 --rate 5 --samples no-such" + pool:                 "no-such",
		"--model rm2 --rate 5 --samples " + dir + "/empty.csv" + pool:   "empty.csv",
		"--model rm2 --rate 5 --samples " + dir + "/words.csv" + pool:   "line 2",
		"--model rm2 --rate 5 --samples " + dir + "/missing.csv" + pool: "20",
		"--model rm2 --rate 5 --batch " + dir + "/sizes.csv" + pool:     "line 2",
		"--model rm2 --arrivals " + dir + "/trace.csv" + pool:           "line 2",
		"--from " + dir + "/q.jsonl" + pool:                             "line 1: rows is missing",
		"--from " + dir + "/q.jsonl --load 1s:1" + pool:                 "line 1: rows is missing",
		"--from " + dir + "/no.jsonl" + pool:                            "no.jsonl is no file",
		"--from " + dir + "/q.jsonl --arrivals constant" + pool:         "give --from or --arrivals",
		"faults --model rm2 --rate 5 --fault kill" + pool:               `fault "kill": got no @`,
		"faults --model rm2 --rate 5 --fault melt-leader@1s" + pool:     `got the verb "melt"`,
		"faults --model rm2 --rate 5 --fault kill-box-1@1s" +
			pool: "r5n.large-1 to r5n.large-4",
		"faults --model rm2 --rate 5 --fault " + dir + "/faults.txt" +
			pool: `faults.txt line 3: fault "kill-leader@soon": got the time "soon"`,
		"throughput --model rm2 --fault kill-leader@1s" + pool:                   `"muster sim faults"`,
		"day --model rm2 --rate 5":                                               "give --fleet FILE",
		"day --fleet " + dir + "/no-such --model rm2 --rate 5":                   "no-such",
		"day --model rm2 --fleet " + dir + "/fleet.yaml":                         "rate: 0",
		"day --rate 5 --fleet " + dir + "/fleet.yaml":                            "give --model",
		"day --model rm2 --rate 5 --curve weekly --fleet " + dir + "/fleet.yaml": `curve "weekly"`,
		"day --model rm2 --rate 5 --curve ncf=flat --fleet " + dir +
			"/fleet.yaml": `no model or family is called "ncf"`,
		"day --model rm2 --rate 5 --forms best --fleet " + dir +
			"/fleet.yaml": "joint, renting, placement, tracking, fixed",
		"day --model rm2 --rate 5 --speed 0 --fleet " + dir + "/fleet.yaml": "want 1..10000",
		"day --model rm2 --rate 5 --duration 1m --fleet " + dir +
			"/fleet.yaml": "the day has 1m0s",
		"replay " + dir + "/run.txt": "line 2",
		"replay " + dir +
			"/former.txt": `line 1: got the format "muster-match 2", want "muster-term 1"`,
		"replay " + dir + "/no-such":            "no-such",
		"compare":                               "give --model",
		"compare --model rm2 --budget 0":        "budget: 0",
		"compare --model rm2 --budget 0.2":      "no pool within 0.2",
		"compare --model rm2 --types g5.xlarge": "g4dn.xlarge",
		"compare --model rm2 --policies best --budget " +
			"0.6": "there are: fcfs, horizon, kairos",
	} {
		stdout, _, err := execute(t, append([]string{"sim"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sim %s: error %v, want one with %q", args, err, want)
		}
		if stdout != "" {
			t.Errorf("sim %s: printed %q", args, stdout)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "log*")); len(left) > 0 {
		t.Errorf("files left of failed runs: %q", left)
	}
}

// dayFleet is a fleet.yaml.
const dayFleet = `fleet: day
limits: {max_price_usd_per_hour: 3, types: {g4dn.xlarge: {max: 3}, r5n.large: {max: 6}}}
process: {dir: ., models: .}
`

// TestSimDay: a part of a day is simulated, printed and drawn, for two forms.
func TestSimDay(t *testing.T) {
	skipSimulations(t)
	dir := writeFiles(t, map[string]string{"fleet.yaml": dayFleet,
		"queries.jsonl": `{"at_ms":0,"model":"rm2","rows":1}` + "\n" +
			`{"at_ms":60000,"model":"rm2","rows":1}` + "\n",
		"long.jsonl": `{"at_ms":1e10,"model":"rm2","rows":1}`,
	})
	args := []string{
		"sim", "day", "--fleet", filepath.Join(dir, "fleet.yaml"), "--family",
		"rank=rm2:1,rm2-s:.98:rm2*.5", "--rate", "30", "--duration", "30m", "--warm-up", "20m",
		"--speed", "600", "--forms", "joint,fixed", "--curve", "flat",
	}
	drawn := filepath.Join(dir, "day.svg")
	text, _, err := execute(t, append(args, "--plot", drawn)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"joint: machines are rented", "hour", "fixed", "It took"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if svg, err := os.ReadFile(drawn); err != nil || !bytes.Contains(svg, []byte("<svg")) {
		t.Errorf("no SVG is drawn: %v", err)
	}
	// Recorded queries, one in each of two minutes, are a flat load, too.
	args = append(args, "--json", "--curve")
	if _, _, err := execute(t, append(args, filepath.Join(dir, "long.jsonl"))...); err == nil ||
		!strings.Contains(err.Error(), "want a record of at most 168h0m0s") {
		t.Errorf("a record of months: %v", err)
	}
	text, _, err = execute(t, append(args, filepath.Join(dir, "queries.jsonl"))...)
	if err != nil {
		t.Fatal(err)
	}
	var days []struct {
		Form    string
		Dollars float64
		InTime  float64 `json:"in_time"`
		Windows []any
	}
	if err := json.Unmarshal([]byte(text), &days); err != nil {
		t.Fatal(err)
	}
	if len(days) != 2 || days[0].Form != "joint" || !(days[0].Dollars > 0) ||
		len(days[0].Windows) != 3 || days[0].InTime < .9 {
		t.Errorf("got %+v", days)
	}
}

func TestSim(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "run.txt")
	stdout, _, err := execute(t, "sim", "--model", "rm2", "--pool", "g4dn.xlarge=1,r5n.large=4",
		"--policy", "kairos", "--rate", "30",
		"--queries", "500", "--seeds", "1", "--log", filepath.Join(dir, "log.csv"), "--record", run,
		"--json")
	if err != nil {
		t.Fatal(err)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"model", "policy", "pool", "qos_satisfaction", "latency_ms", "fluid_limit_qps", "per_seed",
	} {
		if report[key] == nil {
			t.Errorf("no %s in %s", key, stdout)
		}
	}
	if stdout, _, err = execute(t, "sim", "replay", run); err != nil ||
		!strings.Contains(stdout, "all as recorded") {
		t.Errorf("replay: %q, %v", stdout, err)
	}
	recording, err := os.ReadFile(run)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(recording), "\n")
	former := writeFiles(t, map[string]string{
		"same.txt":    leader.Header + "\n" + rest,
		"differs.txt": leader.Header + "\n" + strings.Replace(rest, "lane=0", "lane=99", 1),
	})
	says := fmt.Sprintf("recorded by decider 1, this is decider %d: decisions may differ\n",
		leader.DeciderVersion)
	for name, want := range map[string]string{
		"same.txt": ", all as recorded\n" + says, "differs.txt": ", not all as recorded\n" + says +
			"first difference: line ",
	} {
		if stdout, _, err = execute(t, "sim", "replay", filepath.Join(former, name)); err != nil ||
			!strings.Contains(stdout, want) {
			t.Errorf("replay %s: %q, %v; want %q and no error", name, stdout, err, want)
		}
	}

	stdout, _, err = execute(t, "sim", "throughput", "--model", "rm2", "--pool",
		"g4dn.xlarge=1,r5n.large=4", "--queries", "500", "--seeds", "2", "--json")
	if err != nil {
		t.Fatal(err)
	}
	report = nil
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"model", "policy", "pool", "qos_satisfaction", "latency_ms", "fluid_limit_qps",
		"allowable_throughput_qps", "standard_error_qps", "allowable_throughput_per_seed",
	} {
		if report[key] == nil {
			t.Errorf("no %s in %s", key, stdout)
		}
	}
}

func TestSimFaults(t *testing.T) {
	dir := writeFiles(t, map[string]string{"faults.txt": "# a leader's end\nkill-leader@3s\n"})
	args := []string{
		"sim", "faults", "--model", "dien", "--pool", "g4dn.xlarge=1,r5n.large=4", "--rate", "150",
		"--queries", "1500", "--seeds", "2", "--rtt-ms", "1",
		"--fault", filepath.Join(dir, "faults.txt"), "--fault", "freeze-r5n.large-1@6s+1s",
	}
	stdout, _, err := execute(t, args...)
	for _, want := range []string{
		"fault", "kill-leader@3s", "freeze-r5n.large-1@6s+1s", "late in 2s before", "after ",
		" ms, at most ", "of all 3000 queries ",
	} {
		if err != nil || !strings.Contains(stdout, want) {
			t.Fatalf("printed %s, %v, want %q", stdout, err, want)
		}
	}
	stdout, _, err = execute(t, append(args, "--json")...)
	if err != nil {
		t.Fatal(err)
	}
	type count struct{ Queries, Late, Lost int }
	var report struct {
		Faults []struct {
			Fault         string
			Before, After count
			Hit           int     `json:"hit_leader_runs"`
			Next          int     `json:"next_leader_runs"`
			Without       float64 `json:"without_leader_ms"`
		}
		Runs []struct {
			Faults []struct{ Fault, Agent string }
		} `json:"per_seed"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Faults) != 2 || len(report.Runs) != 2 || len(report.Runs[1].Faults) != 2 {
		t.Fatalf("printed %s", stdout)
	}
	if k := report.Faults[0]; k.Fault != "kill-leader@3s" || k.Hit != 2 || k.Next != 2 ||
		k.Without <= 0 || k.After.Queries < 500 || k.After.Lost != 0 {
		t.Errorf("of the kill: %+v", k)
	}
	if run := report.Runs[0].Faults; run[0].Agent != "r5n.large-4" ||
		run[1].Agent != "r5n.large-1" {
		t.Errorf("whom they hit: %+v", run)
	}
}

func TestSimCompare(t *testing.T) {
	skipSimulations(t)
	bars := filepath.Join(t.TempDir(), "bars.png")
	stdout, _, err := execute(t, "sim", "compare", "--model", "rm2", "--model", "wnd", "--budget",
		"0.8", "--policies", "kairos,fcfs", "--queries", "500", "--seeds", "2", "--plot", bars)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(stdout, "kairos") != 2 || strings.Count(stdout, "homogeneous") != 2 {
		t.Errorf("printed %s", stdout)
	}
	f, err := os.Open(bars)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
}
