package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	goruntime "runtime"
	"slices"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/sharing"
)

// measuredSlowdowns are the measured ones that Config.Sharing names, of the models that are on disk
// as they were measured. The log names those that are not. The error says why the file cannot be
// read.
func (a *Agent) measuredSlowdowns() (profiles.Slowdowns, error) {
	if a.config.Sharing == "" {
		return nil, nil
	}
	in, err := os.Open(a.config.Sharing)
	if err != nil {
		return nil, fmt.Errorf("measured slowdowns: %w", err)
	}
	defer in.Close()
	f, err := sharing.Read(a.config.Sharing, in)
	if err != nil {
		return nil, fmt.Errorf("measured slowdowns: %w", err)
	}
	fresh := map[string]bool{}
	for _, model := range slices.Sorted(maps.Keys(f.Models)) {
		if err := a.checkMeasured(f, model); err != nil {
			a.log.Warn("the agent ignores measured slowdowns", "file", a.config.Sharing, "model",
				model,
				"reason", err)
			continue
		}
		fresh[model] = true
	}
	all := profiles.Slowdowns{}
	for model, beside := range f.Slowdown {
		for other, by := range beside {
			if fresh[model] && fresh[other] {
				if all[model] == nil {
					all[model] = map[string]float64{}
				}
				all[model][other] = by
			}
		}
	}
	return all, nil
}

// checkMeasured returns nil if the file's measurements are of the newest version of a model on
// disk, and of a machine with as many cores.
func (a *Agent) checkMeasured(f *sharing.File, model string) error {
	v, err := models.ReadNewest(a.config.ModelDir, model)
	if err != nil {
		return err
	}
	sum, err := worker.Checksum(context.Background(), v)
	if err != nil {
		return err
	}
	return f.Check(model, v.Number, sum, goruntime.NumCPU())
}
