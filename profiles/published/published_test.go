package published_test

import (
	"io/fs"
	"slices"
	"testing"

	"github.com/muster-serve/muster/profiles/published"
)

// TestFiles: what is embedded is whole, and has its licence beside it.
func TestFiles(t *testing.T) {
	for paper, want := range map[string][]string{
		published.KAIROS: {"LICENSE", "latency.csv", "price.csv", "samples.csv.gz"},
		published.RIBBON: {"LICENSE", "dien.json", "mtwnd.json", "samples.csv.gz"},
	} {
		got, err := fs.Glob(published.Files(paper), "*")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", paper, got, err, want)
		}
		if samples, err := published.Samples(paper); err != nil || len(samples.Models()) < 2 {
			t.Errorf("%s: %v", paper, err)
		}
	}
}
