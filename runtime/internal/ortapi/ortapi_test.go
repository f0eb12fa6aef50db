package ortapi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPositions: calls.c has the positions that the whole header has, which comes with the
// binding.
func TestPositions(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/yalue/onnxruntime_go").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("calls.c")
	if err != nil {
		t.Fatal(err)
	}
	var c strings.Builder
	c.WriteString("#include <onnxruntime_c_api.h>\n#include <stddef.h>\n")
	functions := regexp.MustCompile(`(?m)^\t(\w+) = (\d+)`).FindAllSubmatch(text, -1)
	for _, f := range functions {
		if string(f[1]) == "VERSION" {
			fmt.Fprintf(&c, "_Static_assert(ORT_API_VERSION == %s, \"version\");\n", f[2])
			continue
		}
		fmt.Fprintf(&c, "_Static_assert(offsetof(OrtApi, %s) == %s * sizeof(void *), \"%s\");\n",
			f[1], f[2], f[1])
	}
	if len(functions) != 26 {
		t.Fatalf("found %d positions in calls.c, want 26", len(functions))
	}
	source := filepath.Join(t.TempDir(), "positions.c")
	if err := os.WriteFile(source, []byte(c.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	gcc := exec.Command("gcc", "-fsyntax-only", "-I", strings.TrimSpace(string(out)), source)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
