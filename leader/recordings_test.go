package leader

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// goldenDecisions is the SHA-256 of the golden recordings, and goldenDecider the version of the
// decider that made them. They change together: whoever writes another hash here raises
// [DeciderVersion], unless nobody has that version yet.
const (
	goldenDecider   = 2
	goldenDecisions = "9625d123ae21cf74625482518edf64659f55ca60ae76ca601e802d0eb058f47e"
)

// TestRecordings: a leader decides as it did when the golden recordings were made, byte for byte.
// scripts/tools/record.sh makes them: of each of five models below and above its limit, of three
// models (mixed), with a killed leader and a cut link (faults), and with a term for each other
// policy (policies).
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/recordings/*.txt.gz")
	if err != nil || len(files) != 8 {
		t.Fatalf("%d recordings, %v; want 8", len(files), err)
	}
	hash := sha256.New()
	for _, name := range files {
		recording := readRecording(t, name)
		fmt.Fprintf(hash, "%s %d\n", filepath.Base(name), len(recording))
		hash.Write(recording)
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			replayed, err := Replay(bytes.NewReader(recording))
			if err != nil {
				t.Fatal(err)
			}
			if replayed.Decider != DeciderVersion || replayed.Decisions < 200 {
				t.Errorf("replayed %+v, want 200 decisions or more of decider %d", replayed,
					DeciderVersion)
			}
		})
	}
	if got := fmt.Sprintf("%x", hash.Sum(nil)); got != goldenDecisions ||
		goldenDecider != DeciderVersion {
		t.Errorf("the golden decisions of decider %d have the hash\n%s, want\n%s of decider %d.\n"+
			"If decisions changed on purpose, raise DeciderVersion and write both here",
			DeciderVersion, got, goldenDecisions, goldenDecider)
	}
}

func readRecording(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	recording, err := io.ReadAll(zipped)
	if err != nil {
		t.Fatal(err)
	}
	return recording
}
