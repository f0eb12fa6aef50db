package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
)

// One model is fitted anew, to show that the shipped profiles are what this program makes.
func TestShippedProfilesAreReproduced(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and starts no goroutine")
	}
	samples, err := published.Samples(published.KAIROS)
	if err != nil {
		t.Fatal(err)
	}
	library := profiles.ShippedLibrary()
	model, tables, err := fitModel(samples, "ncf")
	if err != nil {
		t.Fatal(err)
	}
	if shipped, err := library.Model("ncf"); err != nil || shipped != model {
		t.Errorf("shipped %+v (%v), fitted %+v", shipped, err, model)
	}
	if len(tables) != 4 {
		t.Errorf("%d profiles, want 4", len(tables))
	}
	for _, table := range tables {
		shipped, err := library.Table("ncf", table.Key().InstanceType)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(shipped)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("fitted %s\nshipped %s", got, want)
		}
	}
}

func TestRunErrors(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.json")
	const header = "model,instance_type,batch_size,sample_ms\n"
	for _, c := range []struct{ in, want string }{
		{header + "bert,t3.xlarge,10,1\n", "fit bert: its QoS target is not known"},
		{header + "ncf,z9.huge,10,1\n", "\"z9.huge\" is not in the catalogue"},
		{header + "ncf,t3.xlarge,10,x\n", "line 2, column sample_ms"},
	} {
		in := filepath.Join(dir, "in.csv")
		if err := os.WriteFile(in, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(in, out); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("from %q: %v, want %q", c.in, err, c.want)
		}
	}
	if err := run("", out); err == nil {
		t.Error("no samples, no error")
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("an error left an output")
	}
}
