package dynlib

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// build compiles libraries into a folder, each needing those that are listed after it.
func build(t *testing.T, libraries ...[]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, l := range libraries {
		// Without --no-as-needed the linker leaves out what is not called.
		args := []string{"-shared", "-x", "c", "/dev/null", "-o", filepath.Join(dir, l[0]),
			"-Wl,-soname," + l[0], "-Wl,--no-as-needed", "-x", "none"}
		for _, needed := range l[1:] {
			args = append(args, filepath.Join(dir, needed))
		}
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

func TestFolder(t *testing.T) {
	dir := build(t, []string{"libz.so.1"}, []string{"libgone.so"}, []string{"libm2.so", "libz.so.1"},
		[]string{"liba.so", "libm2.so", "libgone.so"})
	if err := os.Remove(filepath.Join(dir, "libgone.so")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, path := range f.Order() {
		order = append(order, filepath.Base(path))
		if filepath.Dir(path) != dir {
			t.Errorf("got %s, want a path in %s", path, dir)
		}
	}
	if want := []string{"libz.so.1", "libm2.so", "liba.so"}; !slices.Equal(order, want) {
		t.Errorf("got the order %v, want %v", order, want)
	}
	system := func(name string) bool { return name == "libc.so.6" }
	if got, want := f.Missing(system), []string{"liba.so needs libgone.so"}; !slices.Equal(got,
		want) {
		t.Errorf("got missing %v, want %v", got, want)
	}
}

func TestReadNoLibrary(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "libx.so.1")
	if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got error %v, want one that names %s", err, path)
	}
}
