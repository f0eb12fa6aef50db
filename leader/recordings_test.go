package leader

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
)

// TestRecordings: a leader decides as it did before it knew families of several variants, byte for
// byte. The recordings were made in November 2026 with
//
//	muster sim --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --rate 135 --load 1s:.9,1s:1.3 \
//	  --merge none --rtt-ms 0.5 --deadline-ms 900 --samples published --seeds 1 --queries 600 \
//	  --record rm2.txt
//
// and the like for the other four models. mixed is of three models, faults has a killed leader and
// a cut link, and rivals has a term for each other policy. A recording that a change of decisions
// makes wrong on purpose is made anew, and the commit says why.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/recordings/*.txt.gz")
	if err != nil || len(files) != 8 {
		t.Fatalf("%d recordings, %v; want 8", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			zipped, err := gzip.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			replayed, err := Replay(zipped)
			if err != nil {
				t.Fatal(err)
			}
			if replayed.Decisions < 400 {
				t.Errorf("replayed %+v, want 400 decisions or more", replayed)
			}
		})
	}
}
