package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

var kind = rent.Kind{Type: "r5n.large"}

// provider returns one whose instances do nothing until they are ended.
func provider(t *testing.T, dir, fleet string) *Provider {
	t.Helper()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Fleet: fleet, Dir: dir, Program: program, Models: dir,
		Join: "127.0.0.1:1", Catalogue: profiles.DefaultCatalogue(),
		Short: []profiles.InstanceType{"c5n.2xlarge"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // of this test only, by what it has written down
		list, err := p.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, i := range list {
			if r, err := p.load(i.ID); err == nil && r.isAlive() {
				_ = syscall.Kill(-r.PID, syscall.SIGKILL)
			}
		}
	})
	return p
}

func TestContract(t *testing.T) {
	dir := t.TempDir()
	cloudtest.Contract(t, kind, provider(t, dir, "demo"), provider(t, dir, "demo"))
}

// TestKeeperEnds: an instance whose launch was claimed and not carried out does not stay for ever,
// one that ends by itself is listed as gone, and another fleet's is left alone.
func TestKeeperEnds(t *testing.T) {
	dir := t.TempDir()
	p, other := provider(t, dir, "demo"), provider(t, dir, "other")
	ctx := context.Background()
	i, err := p.Launch(ctx, rent.Slot{Kind: kind}, cloud.Spec{By: "us"})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Return(ctx, i.ID); err == nil || !strings.Contains(err.Error(),
		`is of the fleet "demo", and not of "other"`) {
		t.Errorf("another fleet returns it: %v", err)
	}
	if list, err := other.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("another fleet lists %v, %v", list, err)
	}
	r, err := p.load(i.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.Start = "another process's" // as if the number had been given anew
	if err := p.save(r); err != nil {
		t.Fatal(err)
	}
	if list, err := p.List(ctx); err != nil || len(list) != 1 || list[0].State != rent.Gone {
		t.Errorf("its process is another's now: %v, %v", list, err)
	}
	_ = syscall.Kill(-r.PID, syscall.SIGKILL)
	claim := &record{ID: "p-claimed", Slot: rent.Slot{Kind: kind, Ordinal: 5}.String(),
		Fleet: "demo"} // long ago
	if err := p.save(claim); err != nil {
		t.Fatal(err)
	}
	list, err := p.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.ID == claim.ID && i.State != rent.Gone {
			t.Errorf("claimed and never started: %+v", i)
		}
	}
	var short *cloud.ErrShort
	if _, err := p.Launch(ctx, rent.Slot{Kind: rent.Kind{Type: "c5n.2xlarge"}},
		cloud.Spec{}); !errors.As(err, &short) {
		t.Errorf("a short type: %v", err)
	}
}

// TestEmptyRecord: the empty file of a launch that ended before it was written is no fault of
// others, and leaves the slot to a later launch.
func TestEmptyRecord(t *testing.T) {
	p, ctx := provider(t, t.TempDir(), "demo"), context.Background()
	slot := rent.Slot{Kind: kind}
	other, err := p.Launch(ctx, rent.Slot{Kind: kind, Ordinal: 1}, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	file := p.recordPath("p-" + cloud.Token("demo", slot)[:12])
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	list := func() {
		t.Helper()
		all, err := p.List(ctx)
		if err != nil || len(all) != 1 || all[0].ID != other.ID {
			t.Errorf("listed are %v, %v, want only %s", all, err, other.ID)
		}
	}
	list()
	if _, err := p.Launch(ctx, slot, cloud.Spec{}); !errors.Is(err, errEmpty) {
		t.Errorf("another launch, which may be under way: %v", err)
	}
	longAgo := time.Now().Add(-2 * claimed)
	if err := os.Chtimes(file, longAgo, longAgo); err != nil {
		t.Fatal(err)
	}
	list()
	if _, err := p.Launch(ctx, slot, cloud.Spec{}); err != nil {
		t.Errorf("the slot is asked for again: %v", err)
	}
}
