package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// emulation is an executor that emulates an instance type: it runs no model, and waits for as long
// as a query would take by the model's latency profile on that type, with the profile's variation.
type emulation struct {
	*runtime.Emulated
	typ     profiles.InstanceType
	library *profiles.Library
	slowBy  func() float64 // nil: nothing slows it
}

// SlowBy has each run take so many times as long as slowBy says when it begins. It must be called
// before models are loaded.
func (e *emulation) SlowBy(slowBy func() float64) { e.slowBy = slowBy }

// ShippedProfile is the value of profile that makes [Emulate] use the profiles that come with the
// program.
const ShippedProfile = "shipped"

// Emulate returns an executor that emulates the instance type typ: it runs no model, and waits for
// as long as the latency profiles say. profile is the path of a file of profiles, or
// ShippedProfile. The error says why the file cannot be read.
func Emulate(typ profiles.InstanceType, profile string) (runtime.Executor, error) {
	e := &emulation{typ: typ, library: profiles.ShippedLibrary()}
	if profile != ShippedProfile {
		f, err := os.Open(profile)
		if err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
		defer f.Close()
		if e.library, err = profiles.ReadLibrary(profile, f); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
	}
	e.Emulated = runtime.NewEmulated(nil) // Load has an executor of each version
	return e, nil
}

// Load implements [runtime.Executor]. A version is emulated by a profile of its own, such as that of
// "ncf/3", else by that of its model. Without either on the instance type it fails.
func (e *emulation) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	table, err := e.library.Table(string(names.NewModelKey(v.Model, v.Number)), e.typ)
	if err != nil {
		table, err = e.library.Table(v.Model, e.typ)
	}
	if err != nil {
		return nil, fmt.Errorf("emulate %s on %s: %w", v, e.typ, err)
	}
	return runtime.NewEmulated(func(_ *models.Version, batchSize int) time.Duration {
		took := table.Quantile(rand.Float64(), batchSize) // drawn from the profile's distribution
		if e.slowBy != nil {
			took = time.Duration(e.slowBy() * float64(took))
		}
		return took
	}).Load(ctx, v)
}
