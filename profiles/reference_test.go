package profiles_test

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/muster-serve/muster/profiles"
)

// reference returns the path of a file of the measurements published with the papers. They
// lie beside the project and are no part of it, so a clone elsewhere skips what needs them; CI must not.
func reference(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join("..", "..", "shared", "reference", name)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("reference data are missing in CI: %v", err)
		}
		t.Skipf("needs the papers' reference data: %v", err)
	}
	return path
}

var openKairos = sync.OnceValues(func() (*profiles.Samples, error) {
	return profiles.OpenSamples(filepath.Join("..", "..", "shared", "reference", "kairos", "samples.csv.gz"))
})

func kairosSamples(t testing.TB) *profiles.Samples {
	t.Helper()
	reference(t, "kairos/samples.csv.gz")
	s, err := openKairos()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A measured row of latency.csv, in ms.
type measured struct {
	model          string
	instanceType   profiles.InstanceType
	batch          int
	mean, p50, p99 float64
}

func kairosLatency(t testing.TB) []measured {
	t.Helper()
	f, err := os.Open(reference(t, "kairos/latency.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var all []measured
	for _, row := range rows[1:] {
		number := func(i int) float64 {
			v, err := strconv.ParseFloat(row[i], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		all = append(all, measured{row[0], profiles.InstanceType(row[1]), int(number(2)), number(3), number(4), number(5)})
	}
	return all
}
