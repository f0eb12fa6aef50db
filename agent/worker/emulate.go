package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// emulation is the executor of an agent that plays an instance type: it runs nothing, and
// takes as long as the profile of the model on that type says, noise included.
type emulation struct {
	*runtime.Emulated
	typ     profiles.InstanceType
	library *profiles.Library
}

// ShippedProfile is the profile of [Emulate] that means those which come with the program.
const ShippedProfile = "shipped"

// Emulate returns the executor of an agent that plays an instance type: it runs nothing, and takes
// as long as the latency profiles say that profile, a file or ShippedProfile, has.
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
	e.Emulated = runtime.NewEmulated(e.latency)
	return e, nil
}

// Load fails for a model without a profile on the type.
func (e *emulation) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	if _, err := e.library.Table(v.Model, e.typ); err != nil {
		return nil, fmt.Errorf("emulate %s on %s: %w", v, e.typ, err)
	}
	return e.Emulated.Load(ctx, v)
}

// latency draws how long a query takes.
func (e *emulation) latency(v *models.Version, batchSize int) time.Duration {
	table, err := e.library.Table(v.Model, e.typ)
	if err != nil {
		return 0 // Load has found it
	}
	return table.Quantile(rand.Float64(), batchSize)
}
