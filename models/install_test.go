package models

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestInstallKeepsOld: a model that cannot be put in its place leaves the one that was there,
// whatever its name is.
func TestInstallKeepsOld(t *testing.T) {
	for _, model := range []string{"ncf", "old"} {
		t.Run(model, func(t *testing.T) { installOver(t, model) })
	}
}

func installOver(t *testing.T, model string) {
	dir := t.TempDir()
	install := func(seed uint64, files map[string]string) error {
		made := Provenance{Generator: "zoo", Seed: seed}
		_, err := Install(dir, model, made, true, func(folder string) error {
			for name, text := range files {
				if err := os.MkdirAll(folder, 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		})
		return err
	}
	var text string
	for seed := range uint64(2) { // the second in the first one's place
		text = fmt.Sprintf("generated: {generator: zoo, seed: %d}\n", seed)
		if err := install(seed, map[string]string{ConfigFile: text}); err != nil {
			t.Fatal(err)
		}
	}
	if err := install(2, nil); err == nil { // there is no folder to put in its place
		t.Fatal("no error")
	}
	got, err := os.ReadFile(filepath.Join(dir, model, ConfigFile))
	if err != nil || string(got) != text {
		t.Errorf("the model that was there: %q, %v", got, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the repository: %v, %v", entries, err)
	}
}
