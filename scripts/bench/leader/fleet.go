package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

// A size is what a fleet has: gateways, lanes, and models, of which an agent holds maxHeld.
type size struct{ gateways, lanes, models int }

func (s size) String() string {
	return fmt.Sprintf("%5d gateways, %5d lanes, %3d models", s.gateways, s.lanes, s.models)
}

const (
	// Agents hold maxHeld models each, in modelSets ways, and are of laneTypes types.
	maxHeld, modelSets, laneTypes = 10, 400, 4
	maxBatch                      = 100
	// share of the fluid limit at which queries come, and how far runs depart from their means.
	loadShare, runNoise = 0.8, 0.05
)

// A fleet is lanes of unlike types, an agent each, that hold models.
type fleet struct {
	size
	base time.Duration // of a run of the mean batch size on the mean type
	held [][]int       // by agent, the models
	// rate is how many queries/s are loadShare of what the lanes serve.
	rate float64
}

// newFleet makes a fleet that is offered rate queries/s at loadShare of what its lanes serve.
func newFleet(of size, rate float64) *fleet {
	f := &fleet{size: of, rate: rate}
	f.base = time.Duration(loadShare * float64(of.lanes) / rate * 1e9 * f.meanSpeed())
	for i := range of.lanes {
		held := rand.New(rand.NewPCG(uint64(i%modelSets), 3)).Perm(of.models)
		held = held[:min(maxHeld, of.models)]
		slices.Sort(held)
		f.held = append(f.held, held)
	}
	return f
}

// speedOf is how fast the lanes of a type are beside the mean's.
func speedOf(typ int) float64 { return []float64{0.7, 0.9, 1.1, 1.3}[typ] }

func (f *fleet) meanSpeed() (sum float64) {
	for typ := range laneTypes {
		sum += speedOf(typ) / laneTypes
	}
	return sum
}

// target is the QoS target of all models: ten runs of the mean batch size.
func (f *fleet) target() time.Duration { return 10 * f.base }

func (f *fleet) typeOf(agent int) int { return agent / 7 % laneTypes }

func nameOf(agent int) names.AgentName { return names.AgentName(fmt.Sprintf("agent%05d", agent)) }

func typeName(typ int) names.LaneType {
	return names.LaneType(fmt.Sprintf("type%d/cpu/1", typ))
}

func modelID(i int) leader.ModelID {
	return leader.ModelID{Name: fmt.Sprintf("model%03d", i), Version: 1}
}

// A latency is that of a batch size: half of it is fixed.
type latency struct{ base time.Duration }

func (l latency) Mean(batch int) time.Duration {
	return time.Duration(float64(l.base) * (0.5 + float64(batch)/maxBatch))
}

func (l latency) Quantile(p float64, batch int) time.Duration {
	return time.Duration(float64(l.Mean(batch)) * (1 + 2*runNoise*(p-0.5)))
}

// latencyOf is how long the queries of a model take on a type. Models differ by up to a fifth.
func (f *fleet) latencyOf(model, typ int) latency {
	by := 0.9
	if f.models > 1 {
		by += 0.2 * float64(model) / float64(f.models-1)
	} else {
		by = 1
	}
	return latency{time.Duration(by * float64(f.base) / speedOf(typ))}
}

func (f *fleet) member(agent int) *leader.Member {
	typ := typeName(f.typeOf(agent))
	m := &leader.Member{
		Name: nameOf(agent), Type: typ, Lanes: 1,
		OwnType: typ + "@" + names.LaneType(nameOf(agent)),
	}
	for _, k := range f.held[agent] {
		m.Models = append(m.Models, leader.HeldModel{
			ModelID: modelID(k), QoSTarget: f.target(), Share: .99, Largest: maxBatch,
		})
	}
	return m
}

func (f *fleet) advice() (*leader.Advice, error) {
	a := &leader.Advice{}
	for typ := range laneTypes {
		mean := f.latencyOf(f.models/2, typ).Mean(maxBatch / 2)
		a.Prices = append(a.Prices, fluid.Price{
			Type: typeName(typ), PerMs: 1e6 / float64(mean), Service: mean,
		})
	}
	for model := range f.models {
		for typ := range laneTypes {
			table, err := match.NewTable(f.latencyOf(model, typ), maxBatch)
			if err != nil {
				return nil, err
			}
			a.Latencies = append(a.Latencies, &leader.Latency{
				TableKey: names.TableKey{Model: modelID(model).Key(), Type: typeName(typ)},
				Table:    table,
			})
		}
	}
	return a, nil
}
