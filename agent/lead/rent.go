package lead

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
)

// rentTerm is what package rent needs of the term.
func (t *term) rentTerm() rent.Term {
	l := t.leader
	return rent.Term{
		Self: string(l.fleet.Self()), Epoch: t.claim.Epoch, View: l.fleet.View,
		Changed: l.fleet.Changed,
		Status: func() *control.FleetStatus {
			return askLoop(t, func() *control.FleetStatus {
				s := &control.FleetStatus{}
				t.fillStatus(s)
				return s
			})
		},
		Demand: t.rentDemand,
		Drain: func(ctx context.Context, agent string) error {
			conn, err := l.fleet.Dial(names.AgentName(agent))
			if err != nil {
				return err
			}
			_, err = control.NewControlClient(conn).Drain(members.LocalOnly(ctx),
				&control.DrainRequest{})
			return err
		},
		Tell: t.tellDesired,
	}
}

// tellDesired sends all members what is desired of the fleet. It does not block.
func (t *term) tellDesired(d *control.DesiredFleet) {
	t.leader.links.addToAll(t, func(m *control.LeaderMessage) { m.Fleet = d })
}

// noteDesired takes over what a member says is desired of the fleet. If it is newer than what this
// agent knows, it is of a leader that this agent has not followed, and noteDesired tells all
// members.
func (t *term) noteDesired(member names.AgentName, d *control.DesiredFleet) {
	if r := t.leader.config.Rent; r != nil && r.Said(t.claim.Epoch, string(member), d) {
		t.tellDesired(d)
	}
}

// rentDemand is the demand with the types that all models with demand have a profile on, and the
// memory for models.
func (t *term) rentDemand() (*choose.Fleet, error) {
	l := t.leader
	d := t.demand()
	if d == nil {
		return nil, errors.New("the term has ended")
	}
	problem, _, err := problemOf(d, l.config.Catalogue, l.config.Library)
	if err != nil {
		return nil, err
	}
	f := &choose.Fleet{
		Problem: problem, Families: familiesOf(d, problem, l.config.Library),
		Memory: askLoop(t, t.memoryByType), Sizes: sizesOf(d),
	}
	t.addClasses(f, askLoop(t, func() []leader.FamilyCount { return t.state.FamilyCounts() }))
	return f, nil
}

// addClasses adds the queries of clients that demand an accuracy and may have models loaded for it.
// As in what is placed for them, of a class no more counts than its share of the agents: the rest is
// answered by what is held.
func (t *term) addClasses(f *choose.Fleet, counts []leader.FamilyCount) {
	for i := range f.Families {
		family := &f.Families[i]
		at := slices.IndexFunc(counts, func(c leader.FamilyCount) bool {
			return c.Name == family.Name
		})
		if at < 0 {
			continue
		}
		for _, of := range counts[at].Classes {
			class, key := choose.Class{}, family.Name
			for _, id := range of.Models {
				class.Models = append(class.Models, id.Key())
				key += " " + string(id.Key())
			}
			class.Share = min(of.Share,
				t.rentClasses.Share(time.Now(), key, of.Arrived, counts[at].Arrived))
			family.Classes = append(family.Classes, class)
		}
	}
}

// memoryByType is what agents for which the leader decides what they hold have for models, in
// bytes, by instance type: the least of those that know it. The term's loop calls it.
func (t *term) memoryByType() map[profiles.InstanceType]float64 {
	all := map[profiles.InstanceType]float64{}
	for name, state := range t.layouts {
		m := t.described[name]
		bytes := float64(state.GetMemoryBytes())
		if m == nil || !state.GetAutomatic() || bytes == 0 {
			continue
		}
		of := profiles.InstanceType(m.GetInstanceType())
		if known := all[of]; known == 0 || bytes < known {
			all[of] = bytes
		}
	}
	return all
}

// sizesOf is what models take of an agent's memory, in bytes, by their keys.
func sizesOf(d *control.FleetDemand) map[string]float64 {
	sizes := map[string]float64{}
	for _, m := range d.GetMembers() {
		for _, held := range [][]*control.Model{m.GetModels(), m.GetLoadable()} {
			for _, v := range held {
				key := string(names.NewModelKey(v.GetName(), v.GetVersion()))
				sizes[key] = max(sizes[key], float64(v.GetBytes()))
			}
		}
	}
	return sizes
}

// familiesOf are the families of which an accuracy is stated and a model is asked for, with the
// variants that have a profile on all types of the problem. The mean accuracy aimed at is the
// stated target, else the stated floor. Queries for a model by its own name count as those for its
// family: the leader does not tell them apart in what it plans for.
func familiesOf(d *control.FleetDemand, problem *plan.Problem,
	library *profiles.Library) (all []choose.Family) {
	best, targets := control.BestVariants(d.GetMembers()), map[string]float64{}
	aim := func(family string, target float64) { targets[family] = max(targets[family], target) }
	variants := map[names.ModelKey]*control.Model{}
	for _, m := range d.GetMembers() {
		for _, a := range m.GetAccuracies() {
			aim(a.GetFamily(), a.GetTargetAccuracy())
		}
		for _, held := range [][]*control.Model{m.GetModels(), m.GetLoadable()} {
			for _, v := range held {
				aim(v.GetStatesFor(), v.GetTargetAccuracy())
				if v.GetFamily() != "" && v.GetNewest() &&
					!best.Excludes(v.GetFamily(), v.GetAccuracy()) {
					variants[names.NewModelKey(v.GetName(), v.GetVersion())] = v
				}
			}
		}
	}
	known := TablesOf(d)
	for i := range problem.Models {
		m := variants[names.ModelKey(problem.Models[i].Name)]
		if m == nil {
			continue
		}
		family := choose.Family{Name: m.GetFamily(), Model: i,
			TargetAccuracy: cmp.Or(targets[m.GetFamily()], best[m.GetFamily()].Stated)}
		if family.TargetAccuracy == 0 {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(variants)) {
			v := variants[key]
			if v.GetFamily() != family.Name || v.KnownAccuracy() > m.KnownAccuracy() {
				continue
			}
			of := &control.ModelDemand{Model: v.GetName(), Version: v.GetVersion()}
			variant := choose.Variant{Name: string(key), Accuracy: v.KnownAccuracy()}
			for _, t := range problem.Types {
				table, _ := known.Table(of, string(t.Name), library)
				if table == nil {
					break
				}
				variant.Latencies = append(variant.Latencies, table)
			}
			if len(variant.Latencies) == len(problem.Types) {
				family.Variants = append(family.Variants, variant)
			}
		}
		all = append(all, family)
	}
	return all
}
