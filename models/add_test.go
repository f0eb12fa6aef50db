package models_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
)

// TestAddFile: a file becomes the next version of a model, with its external data, and nothing is
// left behind where it cannot.
func TestAddFile(t *testing.T) {
	from, dir := t.TempDir(), filepath.Join(t.TempDir(), "repository")
	if _, err := zoo.Generate(t.Context(), from, "ncf", zoo.Options{Scale: zoo.Small}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(from, "ncf", "1", models.ModelFile)
	for want := int64(1); want <= 3; want++ {
		if want == 3 {
			want = 11 // after the largest, not the first that is free
			if err := os.Rename(filepath.Join(dir, "m", "2"),
				filepath.Join(dir, "m", "10")); err != nil {
				t.Fatal(err)
			}
		}
		number, err := models.AddFile(dir, "m", file)
		if err != nil || number != want {
			t.Fatalf("got version %d, %v, want %d", number, err, want)
		}
		if _, err := models.ReadVersion(dir, "m", number); err != nil {
			t.Error(err)
		}
	}
	text := filepath.Join(from, "model.pkl")
	if err := os.WriteFile(text, []byte("\x80\x05"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"m": text, "../m": file, ".m": file} {
		if _, err := models.AddFile(dir, name, path); err == nil ||
			!strings.Contains(err.Error(), "pickle") && !strings.Contains(err.Error(), "invalid name") {
			t.Errorf("%s as %s: %v", path, name, err)
		}
	}
	if err := os.Remove(file + ".data"); err != nil {
		t.Fatal(err)
	}
	if _, err := models.AddFile(dir, "other", file); err == nil {
		t.Error("added a model without its data")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", ".*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
