package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

// CheckLayout returns why agents cannot have a layout by their settings; nil if they can.
func CheckLayout(l place.Layout) error {
	if len(l.Partitions) == 0 {
		return errors.New("holds nothing")
	}
	var errs []error
	for _, p := range l.Partitions {
		if p.Lanes < 1 {
			errs = append(errs, fmt.Errorf("%s has no lanes, want :LANESxCORES behind the models",
				p.Models[0]))
		}
		for _, key := range p.Models {
			if _, version := key.Split(); version != 0 {
				errs = append(errs, fmt.Errorf("%s names a version, want the model only", key))
			}
		}
	}
	return errors.Join(errs...)
}

// checkMemory returns an error if the models of the agent's own layout take more than so many bytes
// of memory; 0: that is not known.
func (w *Worker) checkMemory(usable int64) error {
	if usable <= 0 || !w.config.InMemory {
		return nil
	}
	wanted := modelsOf(w.config.Layout)
	var all int64
	var each []string
	for _, d := range w.repository.OnDisk() {
		if slices.Contains(wanted, d.Version.Model) {
			all += d.Bytes
			each = append(each, fmt.Sprintf("%s %d MB", d.Version.Model, d.Bytes/1e6))
		}
	}
	if all <= usable {
		return nil
	}
	return fmt.Errorf(
		"layout %s does not fit: its models take %d MB (%s), and models of this agent may take %d MB: "+
			"leave some out, or load them with --model-data mapped", w.config.Layout, all/1e6,
		strings.Join(each, ", "), usable/1e6)
}

// LanesOf returns how many lanes and cores a layout has in all.
func LanesOf(l place.Layout) (lanes, cores int) {
	for _, p := range l.Partitions {
		lanes += p.Lanes
		cores += p.Lanes * p.Cores
	}
	return lanes, cores
}

// makePartitions makes the lanes of a layout, each on processors of its own, or those of the
// agent's own settings for all models wherever the system runs them. Of now, it keeps the
// partitions that stay as they are. What cannot be pinned runs unpinned, which the log says.
func (w *Worker) makePartitions(l place.Layout, now []runtime.Part) ([]runtime.Part, error) {
	config := &w.config
	lanes := runtime.LanesConfig{
		Estimator:       w.estimates,
		Lanes:           config.Lanes,
		MaxWaiting:      config.MaxWaitingQueries,
		MaxWaitingBytes: config.MaxWaitingBytes,
	}
	if lanesOf, _ := LanesOf(l); lanesOf == 0 {
		if len(now) == 1 && now[0].Models == nil {
			return now, nil
		}
		lanes.Cores = config.Cores / config.Lanes
		p, err := runtime.NewPartition(runtime.PartitionConfig{LanesConfig: lanes})
		return []runtime.Part{{Partition: p}}, err
	}
	assigned, err := w.isolateLanes(l)
	if err != nil {
		config.Log.Warn("the agent cannot pin lanes to processors", "layout", l.String(), "reason",
			err)
	}
	var parts []runtime.Part
	for i, of := range l.Partitions {
		cfg := runtime.PartitionConfig{LanesConfig: lanes}
		cfg.Lanes, cfg.Cores = of.Lanes, of.Cores
		cfg.Unpinned = func(lane int, err error) {
			config.Log.Warn("a lane is no longer pinned to its processors", "models",
				strings.Join(namesOf(of.Models), ","), "lane", lane, "reason", err)
		}
		if assigned != nil {
			cfg.CPUs = assigned[i]
		}
		part := runtime.Part{Models: namesOf(of.Models)}
		same := slices.IndexFunc(now, func(o runtime.Part) bool {
			return slices.Equal(o.Models, part.Models) && o.Size() == of.Lanes &&
				o.Cores() == of.Cores &&
				slices.EqualFunc(o.CPUs(), cfg.CPUs, slices.Equal[[]int])
		})
		if same >= 0 {
			parts = append(parts, now[same])
			continue
		}
		part.Partition, err = runtime.NewPartition(cfg)
		if err != nil { // a processor has just gone
			config.Log.Warn("the agent cannot pin lanes to processors", "partition", i, "reason",
				err)
			cfg.CPUs = nil
			if part.Partition, err = runtime.NewPartition(cfg); err != nil {
				return nil, err
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// arrangeLanes makes parts, which partitions has made of the layout, the agent's lanes, with
// sessions of all models that load or are loaded. Those that were the lanes before run what they
// hold; retire ends them. Whether or not it fails, the caller then calls abandon.
func (w *Worker) arrangeLanes(ctx context.Context, l place.Layout, parts []runtime.Part) error {
	w.arranging.Lock()
	defer w.arranging.Unlock()
	if err := w.placeSessions(ctx, parts); err != nil {
		return err
	}
	w.layout.Store(&l)
	if _, err := w.lanes.Arrange(parts...); err != nil {
		return err
	}
	w.estimates.noteRearranged()
	return nil
}

// abandonPartitions ends those of parts, which partitions has made, that have not become lanes.
func (w *Worker) abandonPartitions(ctx context.Context, parts []runtime.Part) {
	w.arranging.Lock()
	w.coming.Store(nil)
	w.arranging.Unlock()
	unused := slices.DeleteFunc(slices.Clone(parts), func(part runtime.Part) bool {
		return slices.ContainsFunc(w.lanes.Parts(), func(o runtime.Part) bool {
			return o.Partition == part.Partition
		})
	})
	w.retirePartitions(ctx, unused)
}

// retirePartitions ends former partitions. It returns when they have run what they held; when ctx
// ends, it cancels the rest.
func (w *Worker) retirePartitions(ctx context.Context, former []runtime.Part) {
	if err := w.lanes.Retire(ctx, former); err != nil {
		w.config.Log.Warn("the agent cancelled queries on lanes that it replaced", "error", err)
	}
	w.closeSessions(former)
}

// placeSessions makes sessions of the models that load or are loaded for the partitions that run
// them.
func (w *Worker) placeSessions(ctx context.Context, parts []runtime.Part) (err error) {
	w.spreads.Range(func(runs, model any) bool {
		for _, part := range parts {
			if !slices.Contains(part.Models, model.(string)) {
				continue
			}
			if err = runs.(*runtime.Spread).Place(ctx, part.Partition); err != nil {
				err = fmt.Errorf("sessions of %s for lanes of %d cores: %w", model, part.Cores(),
					err)
				return false
			}
		}
		return true
	})
	return err
}

// placeVersion returns the partition of a version's model, with sessions for it in runs.
func (w *Worker) placeVersion(ctx context.Context, v *models.Version,
	runs *runtime.Spread) (*runtime.Part, error) {
	w.arranging.RLock()
	defer w.arranging.RUnlock()
	part, err := w.partitionOf(v)
	if err == nil && part.Models != nil {
		err = runs.Place(ctx, part.Partition)
	}
	return part, err
}

// closeSessions closes the sessions of partitions that are no lanes any more.
func (w *Worker) closeSessions(parts []runtime.Part) {
	w.spreads.Range(func(runs, model any) bool {
		for _, part := range parts {
			if err := runs.(*runtime.Spread).Leave(part.Partition); err != nil {
				w.config.Log.Warn("cannot close the sessions of a model", "model", model, "error",
					err)
			}
		}
		return true
	})
}

// closeModel closes a model.
func (w *Worker) closeModel(runs *runtime.Spread) error {
	w.spreads.Delete(runs)
	return runs.Close()
}

// isolateLanes returns the processors of the layout's lanes, by partition, and parts the cache
// where the layout wants that. Without its own ways a layout has its processors all the same.
func (w *Worker) isolateLanes(l place.Layout) ([][][]int, error) {
	top, err := isolate.Read()
	if err != nil {
		return nil, err
	}
	var wants []isolate.Want
	var titles []string
	for _, p := range l.Partitions {
		wants = append(wants, isolate.Want{Lanes: p.Lanes, Cores: p.Cores, Ways: p.Ways})
		titles = append(titles, string(p.Models[0]))
	}
	assigned, err := top.Assign(wants)
	if err != nil {
		return nil, err
	}
	w.config.Log.Info("the agent pinned its lanes to processors", "processors",
		isolate.Describe(titles, assigned))
	var groups []isolate.Group
	parted := w.isolator != nil
	for i, want := range wants {
		g := isolate.Group{Name: titles[i], Ways: want.Ways}
		for _, cpus := range assigned[i] {
			g.CPUs = append(g.CPUs, cpus...)
		}
		groups = append(groups, g)
		parted = parted || want.Ways > 0
	}
	if parted {
		if w.isolator == nil {
			w.isolator = isolate.Open()
		}
		if err := w.isolator.Apply(context.Background(), groups); err != nil {
			w.config.Log.Warn("the agent cannot partition the cache; models share it", "reason",
				err)
		}
	}
	return assigned, nil
}

// partitionOf returns the partition that runs a version's model: of the layout to which the agent
// is changing, else of the present one. The error says that the layout has none.
func (w *Worker) partitionOf(v *models.Version) (*runtime.Part, error) {
	if coming := w.coming.Load(); coming != nil {
		for i := range *coming {
			if part := &(*coming)[i]; part.Models == nil ||
				slices.Contains(part.Models, v.Model) {
				return part, nil
			}
		}
	}
	if part := w.lanes.Of(v.Model); part != nil {
		return part, nil
	}
	return nil, fmt.Errorf("the layout %s has no lanes for model %q", w.layout.Load(), v.Model)
}

// describeParts returns which lanes hold which models; nil if all lanes hold all models.
func (w *Worker) describeParts() (parts []*control.Part) {
	first := 0
	for _, p := range w.layout.Load().Partitions {
		if p.Lanes == 0 {
			return nil
		}
		parts = append(parts, &control.Part{
			First: uint32(first), Lanes: uint32(p.Lanes), Cores: uint32(p.Cores),
			Ways: uint32(p.Ways), Models: namesOf(p.Models),
		})
		first += p.Lanes
	}
	return parts
}

// namesOf are the models' names without their versions.
func namesOf(keys []names.ModelKey) (all []string) {
	for _, key := range keys {
		model, _ := key.Split()
		all = append(all, model)
	}
	return all
}
