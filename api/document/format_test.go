package document

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestSharedYAML(t *testing.T) {
	next := fmt.Sprint(Format + 1)
	for _, tt := range []struct {
		text     string
		requires uint64
		keys     string // that are left
		says     string
	}{
		{"a: 1\nb: 2\n", 0, "a b", ""},
		{"a: 1\nrequires: 1 # so far\nb: 2\n", 1, "a b", ""},
		{"requires: 1\n", 1, "", ""},
		{"# nothing\n", 0, "", ""},
		{"[requires, 7]\n", 0, "requires 7", ""},
		{"a: {requires: 7}\n", 0, "a", ""},
		{"unknown: 1\na: 2\nrequires: " + next + "\n", 0, "", "f.yaml:3: requires format " + next +
			fmt.Sprintf(", but this version of Muster knows formats up to %d: upgrade Muster here", Format)},
		{"requires: 18446744073709551615", 0, "", "requires format 18446744073709551615"},
		{"requires: 18446744073709551616", 0, "", `f.yaml:1: requires: got "18446744073709551616"`},
		{"requires: 0", 0, "", `requires: got "0", want the number of a format, 1 to ` + fmt.Sprint(Format)},
		{"requires: two", 0, "", `requires: got "two"`},
		{"requires: -1", 0, "", `requires: got "-1"`},
		{"requires:", 0, "", "requires: got nothing"},
		{"requires: [1]", 0, "", "requires: got a list"},
		{"requires: 1\na: 1\nrequires: 1\n", 0, "", `f.yaml:3: key "requires" is given twice`},
		{"requires: 1\nrequires: 2\n", 0, "", "given twice"},
		{"a: [", 0, "", "f.yaml: "},
	} {
		doc, requires, err := SharedYAML("f.yaml", []byte(tt.text))
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q: got %v, want %q", tt.text, err, tt.says)
			}
			var format *FormatError
			if got, want := errors.As(err, &format), strings.Contains(tt.says, "requires format"); got != want {
				t.Errorf("%q: is %v a FormatError: %v, want %v", tt.text, err, got, want)
			}
			continue
		}
		var keys []string
		if doc != nil {
			for i, n := range doc.Content[0].Content {
				if i%2 == 0 || strings.HasPrefix(tt.text, "[") {
					keys = append(keys, n.Value)
				}
			}
		}
		if err != nil || requires != tt.requires || strings.Join(keys, " ") != tt.keys {
			t.Errorf("%q: got %d, %q, %v, want %d, %q", tt.text, requires, keys, err, tt.requires,
				tt.keys)
		}
	}
}
