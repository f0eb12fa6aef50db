package serve_test

import (
	"bufio"
	"io"
	"iter"
	"testing"
)

func linesOf(t testing.TB, r io.Reader) iter.Seq[string] {
	return func(yield func(string) bool) {
		scanner := bufio.NewScanner(r)
		for scanner.Scan() {
			if !yield(scanner.Text()) {
				return
			}
		}
		if err := scanner.Err(); err != nil {
			t.Error(err)
		}
	}
}
