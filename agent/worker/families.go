package worker

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/models"
)

// A gateway names the variant that is to answer. The gateway of an agent that is alone passes on
// the name that its client gave, and this agent chooses among the variants that it holds.

// An versionRequest is what a gateway asks of this agent.
type versionRequest struct {
	model, version string // of a model, or of a family without a version
	minAccuracy    float64
	batchSize      int // at least 1
	waited         time.Duration
}

// acquireVersion returns the version that is to run, and its accuracy if the gateway named a
// family, else 0. Of a family's variants that this agent holds it takes the most accurate that
// would be in time, else the fastest. The caller must release the version. The error is that of
// Acquire.
func (w *Worker) acquireVersion(a versionRequest) (*LoadedVersion, float64, error) {
	loaded, err := w.Acquire(a.model, a.version)
	if err == nil || !errors.Is(err, models.ErrNotFound) {
		return loaded, 0, err
	}
	family := control.Families([]*control.Member{w.config.Fleet.Own()})[a.model]
	if family == nil {
		return nil, 0, err
	}
	if why, invalid := family.Refuses(a.version, a.minAccuracy); invalid {
		return nil, 0, outcome.Invalid("%s", why)
	} else if why != "" {
		return nil, 0, fmt.Errorf("%w: %s", models.ErrNotFound, why)
	}
	v := w.chooseVariant(family, a)
	loaded, err = w.Acquire(v.GetName(), strconv.FormatInt(v.GetVersion(), 10))
	return loaded, v.KnownAccuracy(), err
}

// chooseVariant returns the variant that acquire takes.
func (w *Worker) chooseVariant(family *control.Family, a versionRequest) (best control.Variant) {
	fastest := time.Duration(0)
	for _, v := range family.Variants { // the most accurate first
		if v.KnownAccuracy() < a.minAccuracy {
			break
		}
		takes := w.lanes.Estimate(v.Key(), min(a.batchSize, int(v.GetLargestBatchSize())))
		if a.waited+w.lanes.Remaining(v.GetName())+takes <= time.Duration(v.GetQosTargetNs()) {
			return v
		}
		if best.Model == nil || takes < fastest {
			best, fastest = v, takes
		}
	}
	return best
}
