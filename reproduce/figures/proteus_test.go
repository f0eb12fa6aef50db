package figures

import (
	"context"
	"strings"
	"testing"

	"github.com/muster-serve/muster/reproduce/scaling"
)

// TestProteusSetting: our own families make a fleet with queries and with all contenders, of which
// each runs.
func TestProteusSetting(t *testing.T) {
	l, err := newLab(Options{}, proteusPaper)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.setting(scaling.Twitter)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.fleet.Validate(); err != nil {
		t.Fatal(err)
	}
	s.queries = s.queries[:1500] // some twenty seconds
	all, err := s.contenders()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range all {
		seen[all[i].name] = true
		r, err := l.simulate(context.Background(), s, &all[i])
		if err != nil {
			t.Fatal(err)
		}
		if r.Total.Arrived != len(s.queries) {
			t.Errorf("%s: %d queries of %d", all[i].name, r.Total.Arrived, len(s.queries))
		}
		if all[i].name == "muster" && (r.Total.Violations() > 0.01 || r.Total.Accuracy() < 99) {
			t.Errorf("Muster has %.4f violations and accuracy %.2f where there is little load",
				r.Total.Violations(), r.Total.Accuracy())
		}
	}
	for _, name := range []string{
		"clipper-ha", "clipper-ht", "sommelier", "infaas-accuracy", "proteus", "slackfit", "muster",
	} {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestProteusWithoutData(t *testing.T) {
	_, err := Reproduce(context.Background(), "proteus-fig4", Options{Data: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "no copy of github.com/UMass-LIDS/Proteus") {
		t.Errorf("an empty folder: %v", err)
	}
}
