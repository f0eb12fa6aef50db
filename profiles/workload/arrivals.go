package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// Arrivals is an arrival process of a given mean rate. It is safe for
// concurrent use.
type Arrivals interface {
	// Gap returns the time from one arrival to the next, >= 0.
	Gap(r *rand.Rand) time.Duration
	// Rate is the mean number of arrivals a second.
	Rate() float64
	// String returns the process in the form of [ParseArrivals], without its rate.
	String() string
}

// The slowest and fastest rates that a user may ask for, in queries/s.
const minRate, maxRate = 1e-6, 1e6

// arrivalsForms are the forms that ParseArrivals accepts.
var arrivalsForms = []string{"poisson", "constant", "gamma:SHAPE", "artifact"}

// ParseArrivals makes a process of a mean rate in queries/s: "poisson",
// "constant", "gamma:SHAPE" (gamma distributed gaps: shape 1 is Poisson, below 1
// comes in bursts, above 1 is more regular) or "artifact" (gaps that are whole
// milliseconds, Poisson distributed, as in the papers' published simulators: several
// queries may arrive at once).
func ParseArrivals(s string, rate float64) (Arrivals, error) {
	if !(rate >= minRate && rate <= maxRate) {
		return nil, fmt.Errorf("rate %v queries/s, want %v to %v", rate, minRate, maxRate)
	}
	kind, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "poisson":
		return poisson{rate}, nil
	case s == "constant":
		return constant{rate}, nil
	case kind == "gamma":
		shape, err := strconv.ParseFloat(rest, 64)
		if err != nil || !(shape >= 0.01 && shape <= 1000) {
			return nil, fmt.Errorf("arrivals %q: want gamma:SHAPE with a shape in 0.01..1000", s)
		}
		return gamma{rate, shape}, nil
	case s == "artifact":
		return artifact{rate}, nil
	}
	return nil, fmt.Errorf("arrivals %q: want %s", s, list(arrivalsForms))
}

func secondsToDuration(x float64) time.Duration { return time.Duration(math.Round(x * 1e9)) }

type poisson struct{ rate float64 }

func (p poisson) Gap(r *rand.Rand) time.Duration {
	return secondsToDuration(r.ExpFloat64() / p.rate)
}
func (p poisson) Rate() float64  { return p.rate }
func (p poisson) String() string { return "poisson" }

type constant struct{ rate float64 }

func (c constant) Gap(*rand.Rand) time.Duration { return secondsToDuration(1 / c.rate) }
func (c constant) Rate() float64                { return c.rate }
func (c constant) String() string               { return "constant" }

type gamma struct{ rate, shape float64 }

func (g gamma) Gap(r *rand.Rand) time.Duration {
	return secondsToDuration(distuv.Gamma{Alpha: g.shape, Beta: g.shape, Src: r}.Rand() / g.rate)
}
func (g gamma) Rate() float64  { return g.rate }
func (g gamma) String() string { return fmt.Sprintf("gamma:%g", g.shape) }

type artifact struct{ rate float64 }

func (a artifact) Gap(r *rand.Rand) time.Duration {
	return time.Duration(distuv.Poisson{Lambda: 1000 / a.rate, Src: r}.Rand()) * time.Millisecond
}
func (a artifact) Rate() float64  { return a.rate }
func (a artifact) String() string { return "artifact" }
