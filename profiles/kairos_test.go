package profiles_test

import (
	"encoding/csv"
	"strconv"
	"sync"
	"testing"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
)

var openKairos = sync.OnceValues(func() (*profiles.Samples, error) {
	return published.Samples(published.KAIROS)
})

func kairosSamples(t testing.TB) *profiles.Samples {
	t.Helper()
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
	f, err := published.Files(published.KAIROS).Open("latency.csv")
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
		all = append(all, measured{
			row[0], profiles.InstanceType(row[1]), int(number(2)), number(3), number(4), number(5),
		})
	}
	return all
}
