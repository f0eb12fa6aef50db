package sim

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/baselines"
)

// others is a policy from outside.
var others = []Policy{{
	Name:       "round-robin",
	NewChooser: func(*Config) match.Chooser { return baselines.New("round-robin")() },
}}

// testedPolicies are all with which a Config that has others can be run.
func testedPolicies() []string {
	return append(match.Policies(), Priced, Prequal, ORCA, others[0].Name)
}

// TestUnknownPolicy: the error lists what there is, and says where a former policy went.
func TestUnknownPolicy(t *testing.T) {
	for policy, want := range map[string]string{
		"best": `policy "best" is unknown, there are: fcfs, horizon, kairos, priced`,
		"drs":  "reproduce/",
	} {
		cfg := reference(t, "rm2")
		if cfg.Policy = policy; cfg.Validate() == nil ||
			!strings.Contains(cfg.Validate().Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", policy, cfg.Validate(), want)
		}
	}
	cfg := reference(t, "rm2")
	cfg.Others = others
	if cfg.Policy = "round-robin"; cfg.Validate() != nil {
		t.Errorf("a policy of Others: %v", cfg.Validate())
	}
	if cfg.Policy = "best"; !strings.Contains(cfg.Validate().Error(), "round-robin") {
		t.Errorf("got %v, want that the policies of Others are listed", cfg.Validate())
	}
}

// TestTune: the threshold of a policy that has one is searched where none is given.
func TestTune(t *testing.T) {
	cfg := reference(t, "rm2")
	cfg.Queries, cfg.Policy = 500, "slower"
	var tried []int
	cfg.Others = []Policy{{
		Name:       "slower",
		NewChooser: func(*Config) match.Chooser { return baselines.New("clockwork-earliest")() },
		Tune: func(largest int, throughput func(int) (float64, error)) (int, float64, error) {
			tried = append(tried, largest)
			rate, err := throughput(7)
			return 7, rate, err
		},
	}}
	found, err := FindThroughput(t.Context(), cfg, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(tried) != 1 || tried[0] != 999 || found.Threshold != 7 || found.Rate <= 0 {
		t.Errorf("searched up to %v, found %+v", tried, found)
	}
	cfg.Threshold = 9
	if found, err = FindThroughput(t.Context(), cfg, 1, nil); err != nil || len(tried) != 1 ||
		found.Threshold != 9 {
		t.Errorf("a threshold that is given: searched %v, found %+v, %v", tried, found, err)
	}
}
