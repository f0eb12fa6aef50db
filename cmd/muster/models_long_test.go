package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/muster-serve/muster/models/zoo"
)

// TestModelsListLong: the inputs and outputs of a ranker stand below its row, with their roles, and
// the table's columns stay as they are without.
func TestModelsListLong(t *testing.T) {
	dir := t.TempDir()
	for _, model := range []string{"ncf", "ranker-din"} {
		if _, _, err := execute(t, "models", "generate", model, "--out", dir, "--scale",
			string(zoo.Small)); err != nil {
			t.Fatal(err)
		}
	}
	short, _, err := execute(t, "models", "list", "--dir", dir)
	if err != nil {
		t.Fatal(err)
	}
	long, _, err := execute(t, "models", "list", "--dir", dir, "--long")
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	for line := range strings.Lines(long) {
		if !strings.HasPrefix(line, "  ") {
			rows.WriteString(line)
		}
	}
	if rows.String() != short {
		t.Errorf("the rows are\n%s\nwant\n%s", &rows, short)
	}
	for _, want := range []string{"  input ids: INT64 [-1 4]\n", ", role user\n", ", role row\n"} {
		if !strings.Contains(long, want) {
			t.Errorf("no line has %q:\n%s", want, long)
		}
	}
	text, _, err := execute(t, "models", "list", "--dir", dir, "--long", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var list []listedModel
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 2 ||
		len(list[0].Inputs) != 1 || list[0].Inputs[0].Role != "" || len(list[1].Outputs) == 0 {
		t.Errorf("%v: %s", err, text)
	}
}
