package cloudtest

import (
	"context"
	"errors"
	"testing"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// Contract checks what every provider must fulfil, with instances of kind, of which the provider has
// some. again returns another provider of the same fleet, as another leader has it.
func Contract(t *testing.T, kind rent.Kind, p, again cloud.Provider) {
	t.Helper()
	ctx := context.Background()
	find := func(p cloud.Provider, id string) *rent.Instance {
		t.Helper()
		list, err := p.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var found *rent.Instance
		for _, i := range list {
			if i.ID == id {
				if found != nil {
					t.Fatalf("%s is listed twice", id)
				}
				found = &i
			}
		}
		return found
	}
	offers, err := p.Offers(ctx, []profiles.InstanceType{kind.Type})
	if err != nil || len(offers) == 0 || !(offers[0].Price > 0) {
		t.Fatalf("offers of %s: %v, %v", kind, offers, err)
	}
	if offers, err := p.Offers(ctx, []profiles.InstanceType{"no.such"}); err != nil || len(offers) > 0 {
		t.Errorf("offers of a type that nobody has: %v, %v", offers, err)
	}
	slot, spec := rent.Slot{Kind: kind, Ordinal: 2}, cloud.Spec{By: "us", Version: 7}
	first, err := p.Launch(ctx, slot, spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]cloud.Provider{"the same": p, "another leader": again} {
		if same, err := from.Launch(ctx, slot, spec); err != nil || same.ID != first.ID {
			t.Errorf("%s asks for the slot again: %v, %v; want %s", name, same, err, first.ID)
		}
	}
	seen := find(again, first.ID)
	if seen == nil || seen.Slot != slot || seen.By != "us" || seen.Drained ||
		seen.State > rent.Running {
		t.Fatalf("listed as %+v", seen)
	}
	if err := p.Mark(ctx, first.ID); err != nil {
		t.Error(err)
	}
	if seen := find(again, first.ID); seen == nil || !seen.Drained {
		t.Errorf("marked, listed as %+v", seen)
	}
	for range 2 {
		if err := again.Return(ctx, first.ID, "p-unknown"); err != nil {
			t.Errorf("return: %v", err)
		}
	}
	if seen := find(p, first.ID); seen != nil && seen.State < rent.Stopping {
		t.Errorf("returned, listed as %+v", seen)
	}
	if i, err := p.Launch(ctx, slot, spec); !errors.Is(err, cloud.ErrSpent) &&
		(err != nil || i.State < rent.Stopping) {
		t.Errorf("a slot whose instance was returned gives %+v, %v; want ErrSpent", i, err)
	}
	slot.Generation++
	second, err := p.Launch(ctx, slot, spec)
	if err != nil || second.ID == first.ID {
		t.Errorf("the next generation is %+v, %v", second, err)
	}
	if err := p.Return(ctx, second.ID); err != nil {
		t.Error(err)
	}
}
