package fleet

import (
	"testing"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// TestVersioned: a leader knows the models of a class by their version, which gateways do not.
func TestVersioned(t *testing.T) {
	of := func(models ...names.ModelKey) match.Price {
		return match.Price{Type: "x", PerMs: 1, Classes: []match.ClassPrice{
			{Models: models, PerMs: 2}, {},
		}}
	}
	given, want := []match.Price{of("m", "n"), {Type: "y"}}, of("m/1", "n/1")
	told := Versioned(given)
	if len(told) != 2 || !told[0].Equal(want) || told[1].Classes != nil {
		t.Errorf("got %v, want %v", told, want)
	}
	if again := withoutVersions(told); len(again) != 2 || !again[0].Equal(of("m", "n")) {
		t.Errorf("back again: got %v", again)
	}
	if !given[0].Equal(of("m", "n")) || !told[0].Equal(want) {
		t.Error("what was given has changed")
	}
}
