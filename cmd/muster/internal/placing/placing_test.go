package placing

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
)

func config() *sim.Config {
	m := sim.Model{Name: "f", QoSTarget: time.Second}
	m.SetVariants([]sim.Variant{
		{Name: "a", Accuracy: 1, Latencies: map[string]match.Latencies{"x": latency.Fixed{}}},
		{Name: "b", Accuracy: .9, Latencies: map[string]match.Latencies{"x": latency.Fixed{}}},
	})
	return &sim.Config{Models: []sim.Model{m}, Pool: sim.Pool{{Type: "x", Count: 3}}}
}

func TestFlags(t *testing.T) {
	for line, want := range map[string]string{
		"--fits 1":                    "fits: it means nothing without --place",
		"--timeline x.csv":            "timeline: it means nothing without --place",
		"--place --fits 0":            "fits: 0, want 1 or more",
		"--place --place-headroom .5": "place-headroom: 0.5, want 1..100",
		"--place --place-period-ms 0": "place-period-ms: 0, want above 0 and up to an hour",
		"--place --load-time-ms -1":   "load-time-ms: -1, want above 0 and up to an hour",
		"--place --solve-time-ms NaN": "solve-time-ms: NaN, want above 0 and up to an hour",
		"--place --timeline x.csv": "timeline: it is of one run, and there are 3; " +
			"give --seeds 1",
		"--swing 10m":                          `swing: "10m", want PERIOD:DEPTH`,
		"--swing 10m:1.5":                      `swing: "10m:1.5", want PERIOD:DEPTH`,
		"--slower 0":                           `slower: "0", want FACTOR or TYPE=FACTOR`,
		"--slower y=2":                         `no instance of the pool x=3 is of type "y"`,
		"--place --swing 1m:.5":                "",
		"--slower 1.5 --slower x=2":            "",
		"--place --fits 1 --load-time-ms 5000": "",
	} {
		var f Flags
		set := pflag.NewFlagSet("sim", pflag.ContinueOnError)
		f.Add(set)
		if err := set.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		cfg := config()
		err := f.Apply(cfg, 3)
		if want == "" && err != nil || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
	var f Flags
	set := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	f.Add(set)
	if err := set.Parse([]string{"--place", "--slower", "1.5"}); err != nil {
		t.Fatal(err)
	}
	cfg := config()
	if err := f.Apply(cfg, 1); err != nil {
		t.Fatal(err)
	}
	if v := cfg.Models[0].Variants[1]; v.Known == nil || cfg.Models[0].Variants[0].Known == nil {
		t.Errorf("the leader knows how slow variants are: %+v", v)
	}
	var held []string
	for _, h := range cfg.Holds {
		held = append(held, h.Models...)
	}
	if got := strings.Join(held, " "); got != "a b a" {
		t.Errorf("the instances hold %s, want a b a", got)
	}
}
