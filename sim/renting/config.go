// Package renting lets the machines of a simulated fleet be rented and returned in virtual time, by
// the code that decides it in production: packages leader/rent and leader/rent/choose. It is the
// provider: it boots machines, takes spot machines back, and keeps the bill.
package renting

import (
	"errors"
	"fmt"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim/fleet"
)

// A Config says how machines are rented. Its times, and those of its policies, are those of the day
// that is simulated, of which Speed seconds pass in each second of the run.
type Config struct {
	// Rent and Choose bound what is rented, as fleet.yaml says it. Prices are those of the kinds
	// that may be rented, in $/hr.
	Rent   rent.Policy
	Choose choose.Config
	Prices map[rent.Kind]float64
	// Fixed, if not nil, is what is rented all the time: nothing is chosen.
	Fixed map[rent.Kind]int
	// Tracking, if not nil, says what is rented in place of a plan. It starts with Fixed.
	Tracking *Tracking
	// Speed is how many seconds of the day pass in a second of the run, at least 1. Queries take as
	// long as they do, so that a run has a sample of the day's queries.
	Speed float64
	// WarmUp is how long the fleet serves before what counts, and Length how long that lasts.
	WarmUp, Length time.Duration
	// Boot is how long a machine takes from its launch until its agent serves.
	Boot time.Duration
	// Fits is how many variants a machine has memory for, as it is planned with; 0: for all.
	Fits int
	// SpotLosses is how often the provider takes all spot machines of a type, in 1/hr. It says so
	// Notice before.
	SpotLosses float64
	Notice     time.Duration
	// Load is the rate at which queries of a family arrive at a time of the day, in queries/s. The
	// leader counts all queries of the day, of which the run has a sample.
	Load func(family int, at time.Duration) float64
	Seed uint64
	// Progress, if not nil, is called with how much of the day has passed.
	Progress func(at time.Duration)
}

// Window is the length of the parts of the day of which a result tells.
const Window = 10 * time.Minute

// Validate reports all that is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("renting: "+format, args...))
	}
	if !(c.Speed >= 1 && c.Speed <= 1e4) {
		bad("a second of the run is %v of the day, want 1..10000", c.Speed)
	}
	if c.Length < Window || c.Length > maxLength {
		bad("the day has %v, want %v..%v", c.Length, Window, maxLength)
	}
	for name, d := range map[string]time.Duration{
		"warm-up": c.WarmUp, "boot": c.Boot, "notice": c.Notice,
	} {
		if d < 0 || d > maxLength {
			bad("%s is %v, want 0..%v", name, d, maxLength)
		}
	}
	if !(c.SpotLosses >= 0 && c.SpotLosses <= 60) {
		bad("spot machines are taken %v times an hour, want 0..60", c.SpotLosses)
	}
	if len(c.Prices) == 0 {
		bad("no prices of what may be rented")
	}
	return errors.Join(errs...)
}

// maxLength bounds the times of a Config.
const maxLength = 7 * 24 * time.Hour

// A Family is what queries ask for, as the leader plans for it.
type Family struct {
	Name      string
	QoSTarget time.Duration
	Share     float64 // of the queries, that should be in time
	Sizes     profiles.Distribution
	// Latencies are those that machines are planned with, by type: those of its best variant.
	Latencies map[profiles.InstanceType]plan.Latencies
	// TargetAccuracy is the mean accuracy for which machines are planned, by the Variants; 0: that of
	// the best one.
	TargetAccuracy float64
	Variants       []Variant
}

// A Variant may answer for a family.
type Variant struct {
	Name      string
	Accuracy  float64
	Latencies map[profiles.InstanceType]plan.Latencies
}

// A MachineSlot is a machine, or a place where one may be rented.
type MachineSlot struct {
	Agent names.AgentName
	Type  profiles.InstanceType
	// Kept: the machine is there from the start, and is not rented. Its agent may lead.
	Kept bool
}

// A RentalControl is the simulated fleet. Lanes are those that New got, by their indices.
type RentalControl interface {
	Leader() uint64
	Agent(lane int) fleet.AgentState
	Start(lane int)
	Drain(lane int)
	Kill(lane int)
	// BusySoFar is for how long a lane has run queries, in the time of the run.
	BusySoFar(lane int) time.Duration
}
