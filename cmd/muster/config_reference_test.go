package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/models"
)

// TestReferenceIsCurrent: docs/configuration.md is what the code says of itself.
func TestReferenceIsCurrent(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "") // it is the default of a setting
	var got bytes.Buffer
	if err := writeReference(&got, newRoot()); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("docs/configuration.md is not what the code says: run make reference")
	}
}

// TestReferenceIsWhole: each flag and each key says what it means, and each key which values it has.
func TestReferenceIsWhole(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing", cmd.CommandPath(), f.Name)
			}
		})
		for _, child := range cmd.Commands() {
			check(child)
		}
	}
	check(newRoot())
	count := 0
	var checkKeys func(where string, keys []document.Key)
	checkKeys = func(where string, keys []document.Key) {
		known := map[string]bool{}
		for _, k := range keys {
			count++
			if k.Type == "" || k.Meaning == "" || known[k.Name] ||
				k.Read == nil && k.Name != document.Requires {
				t.Errorf("%s: the key %q has no type, meaning or reader, or is there twice", where,
					k.Name)
			}
			known[k.Name] = true
			checkKeys(where+" "+k.Name, k.Keys)
		}
	}
	checkKeys("model.yaml", models.ConfigKeys())
	checkKeys("fleet.yaml", policy.Keys())
	checkKeys("access file", secure.AccessKeys())
	if count < 80 {
		t.Errorf("%d keys, want more: are they described in another way now?", count)
	}
}

// TestReferenceHasVariables: the reference has each environment variable that the product reads.
func TestReferenceHasVariables(t *testing.T) {
	read := regexp.MustCompile(`(?:Getenv|LookupEnv)\("([A-Z_]+)"\)`)
	known := map[string]bool{}
	for _, v := range otherVariables {
		known[v[0]] = true
	}
	found := 0
	for _, folder := range []string{
		"agent", "api", "client", "cloud", "cmd", "gossip", "leader", "models", "profiles", "runtime",
	} {
		err := filepath.WalkDir("../../"+folder, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") ||
				strings.HasSuffix(path, "_test.go") || strings.Contains(path, "runtimetest") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range read.FindAllStringSubmatch(string(text), -1) {
				found++
				if !known[m[1]] {
					t.Errorf("%s reads %s, which otherVariables does not have", path, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 10 {
		t.Errorf("found %d variables, want more: are they read in another way now?", found)
	}
}
