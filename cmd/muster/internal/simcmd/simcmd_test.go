package simcmd

import (
	"errors"
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
		"--fits 0":                     "fits: 0, want 1 or more",
		"--place-headroom .5":          "place-headroom: 0.5, want 1..100",
		"--place-period-ms 0":          "place-period-ms: 0, want above 0 and up to an hour",
		"--load-time-ms -1":            "load-time-ms: -1, want above 0 and up to an hour",
		"--solve-time-ms NaN":          "solve-time-ms: NaN, want above 0 and up to an hour",
		"--timeline x.csv":             "timeline takes one run, not 3: give --seeds 1",
		"--swing 10m":                  `swing: "10m", want PERIOD:DEPTH`,
		"--swing 10m:1.5":              `swing: "10m:1.5", want PERIOD:DEPTH`,
		"--slower 0":                   `slower: "0", want FACTOR or TYPE=FACTOR`,
		"--slower y=2":                 `no instance of the pool x=3 is of type "y"`,
		"--swing 1m:.5":                "",
		"--slower 1.5 --slower x=2":    "",
		"--fits 1 --load-time-ms 5000": "",
	} {
		err := apply(t, config(), 3, strings.Fields(line)...)
		if want == "" && err != nil || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
	cfg := config()
	if err := apply(t, cfg, 1, "--slower", "1.5"); err != nil {
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

// apply sets what a command line says in cfg.
func apply(t *testing.T, cfg *sim.Config, seeds int, args ...string) error {
	t.Helper()
	var change Change
	var placement Placement
	set := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	change.Add(set)
	placement.Add(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return errors.Join(change.Apply(cfg), placement.Apply(cfg, seeds))
}
