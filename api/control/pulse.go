package control

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"
)

// LaneFlags say what else is to be known of a lane.
type LaneFlags uint8

// The flags of a lane.
const (
	LaneOverdue  LaneFlags = 1 << iota // its answer is late
	LaneSlow                           // its agent's factor is above SlowFactor
	LaneDraining                       // it finishes what it holds
	LaneStarting                       // the leader has no link to it yet
	LaneSilent                         // it has been asked what it holds, and does not answer
)

// SlowFactor is the factor above which an agent's lanes are slow.
const SlowFactor = 1.1

// A LaneBeat is one lane in a Beat.
type LaneBeat struct {
	Free  time.Duration // until it is free; at most 6.5 s is sent
	Busy  float64       // share of its time in use; below 0: not known
	Model int           // index of the model that it runs; below 0: none
	Flags LaneFlags
}

// laneBytes is the size of a lane in Beat.lanes.
const laneBytes = 5

// AppendLane appends a lane to what Beat.lanes holds.
func AppendLane(b []byte, l LaneBeat) []byte {
	tenths := max(0, min(int64(l.Free/(100*time.Microsecond)), math.MaxUint16))
	b = binary.LittleEndian.AppendUint16(b, uint16(tenths))
	busy := byte(255)
	if l.Busy >= 0 {
		busy = byte(math.Round(200 * min(1, l.Busy)))
	}
	model := byte(255)
	if l.Model >= 0 && l.Model < 255 {
		model = byte(l.Model)
	}
	return append(b, busy, model, byte(l.Flags))
}

// LanesOf returns the lanes in a beat, or an error if they are not as many as f has.
func (b *Beat) LanesOf(f *Fleet) ([]LaneBeat, error) {
	if want := f.CountLanes(); len(b.GetLanes()) != want*laneBytes {
		return nil, fmt.Errorf("beat with %d bytes of lanes, want %d for %d lanes",
			len(b.GetLanes()), want*laneBytes, want)
	}
	lanes := make([]LaneBeat, 0, len(b.GetLanes())/laneBytes)
	for at := b.GetLanes(); len(at) > 0; at = at[laneBytes:] {
		l := LaneBeat{
			Free: time.Duration(binary.LittleEndian.Uint16(at)) * 100 * time.Microsecond,
			Busy: -1, Model: -1, Flags: LaneFlags(at[4]),
		}
		if at[2] <= 200 {
			l.Busy = float64(at[2]) / 200
		}
		if at[3] < 255 && int(at[3]) < len(f.GetModels()) {
			l.Model = int(at[3])
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

// MostFleetLanes is the most lanes of a fleet that a beat shows.
const MostFleetLanes = 1 << 16

// CountLanes returns how many lanes the agents have.
func (f *Fleet) CountLanes() (n int) {
	for _, a := range f.GetAgents() {
		n += int(a.GetLanes())
	}
	return n
}

// Check returns what is wrong with a fleet that another agent has sent.
func (f *Fleet) Check() error {
	lanes := uint64(0)
	for _, a := range f.GetAgents() {
		if int(a.GetType()) >= len(f.GetTypes()) {
			return fmt.Errorf("agent %.64q is of type %d of %d", a.GetName(), a.GetType(),
				len(f.GetTypes()))
		}
		for _, m := range a.GetModels() {
			if int(m) >= len(f.GetModels()) {
				return fmt.Errorf("agent %.64q holds model %d of %d", a.GetName(), m,
					len(f.GetModels()))
			}
		}
		if lanes += uint64(a.GetLanes()); lanes > MostFleetLanes {
			return fmt.Errorf("more than %d lanes", MostFleetLanes)
		}
	}
	return nil
}

// NewFleet returns the fleet of a view, without a revision. factors are the agents' latencies
// against their types' means; 0, or none, where that is not known. paid is what some agents' machines
// are rented at, $/hour; of others, or if it is nil, the price that they announce counts, which is the
// type's.
func NewFleet(v *View, factors, paid map[string]float64) *Fleet {
	f := &Fleet{Leadership: v.GetLeadership()}
	prices := map[string]float64{}
	models := map[string]*FleetModel{}
	lanes := uint32(0)
	price := func(m *Member) float64 { return cmp.Or(paid[m.GetName()], m.GetPriceUsdPerHour()) }
	for _, m := range v.GetMembers() {
		prices[m.GetInstanceType()] = max(prices[m.GetInstanceType()], price(m))
		for _, held := range m.GetModels() {
			if key := string(held.Key()); models[key] == nil {
				models[key] = &FleetModel{
					Name: held.GetName(), Version: held.GetVersion(),
					QosTargetNs: held.GetQosTargetNs(), QosPercentile: held.GetQosPercentile(),
					LargestBatchSize: held.GetLargestBatchSize(),
					Family:           held.GetFamily(), Accuracy: held.GetAccuracy(),
				}
			}
		}
	}
	types := map[string]uint32{}
	for name, price := range prices {
		f.Types = append(f.Types, &FleetType{Name: name, Price: price})
	}
	slices.SortFunc(f.Types, func(a, b *FleetType) int { return cmp.Compare(a.Name, b.Name) })
	for i, t := range f.Types {
		types[t.Name] = uint32(i)
	}
	for _, m := range models {
		f.Models = append(f.Models, m)
	}
	slices.SortFunc(f.Models, func(a, b *FleetModel) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	at := map[*FleetModel]uint32{}
	for i, m := range f.Models {
		at[m] = uint32(i)
	}
	for _, m := range v.GetMembers() {
		a := &FleetAgent{
			Name: m.GetName(), Type: types[m.GetInstanceType()], Address: m.GetAddress(),
			Lanes: min(m.GetLanes(), MostFleetLanes-lanes), Cores: m.GetCores(),
			Provider: m.GetProvider(), Executor: m.GetExecutor(), Software: m.GetSoftware(),
			Draining: m.GetDraining(), Factor: factors[m.GetName()],
			Price: price(m), DisplayName: m.GetDisplayName(),
		}
		lanes += a.Lanes
		for _, held := range m.GetModels() {
			a.Models = append(a.Models, at[models[string(held.Key())]])
		}
		f.Agents = append(f.Agents, a)
	}
	slices.SortFunc(f.Agents, func(a, b *FleetAgent) int { return cmp.Compare(a.Name, b.Name) })
	return f
}

// Price returns what all agents cost, $/hour; NaN if the price of one is not known.
func (f *Fleet) Price() (sum float64) {
	if len(f.GetAgents()) == 0 {
		return math.NaN()
	}
	for _, a := range f.GetAgents() {
		if !(a.GetPrice() > 0) {
			return math.NaN()
		}
		sum += a.GetPrice()
	}
	return sum
}
