// Package suggest finds what a user meant by a mistyped name.
package suggest

import (
	"fmt"

	"github.com/agext/levenshtein"
)

// Near returns a suggestion to append to an error about name: `; did you mean "http"?` with the
// candidate that differs from name by the fewest characters, the first of several. It returns "" if
// none is near: a name of three characters may differ by one, one of up to fourteen by two, a
// longer one by a fifth.
func Near(name string, candidates []string) string {
	nearest, fewest := "", max(1, len(name)/5)
	if len(name) > 3 {
		fewest = max(2, fewest)
	}
	for _, c := range candidates {
		// A candidate that shares hardly a character with the word is no suggestion.
		if d := levenshtein.Distance(name, c, nil); d <= fewest && 2*d <= len(c) &&
			(nearest == "" || d < fewest) {
			nearest, fewest = c, d
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}
