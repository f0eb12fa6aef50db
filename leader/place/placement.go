package place

import (
	"cmp"

	"github.com/muster-serve/muster/api/names"
)

// A Stamp orders what leaders want of agents: first by the leader's epoch, then by version. An
// agent acts on a layout only if its stamp is newer than that of the last it took.
type Stamp struct {
	Epoch   uint64 `json:"epoch"`
	Version uint64 `json:"version"`
}

// Compare orders stamps, the oldest first.
func (s Stamp) Compare(o Stamp) int {
	return cmp.Or(cmp.Compare(s.Epoch, o.Epoch), cmp.Compare(s.Version, o.Version))
}

// A Placement is what all agents of a fleet should hold. Versions go on over the leaders' terms.
type Placement struct {
	Version  uint64           `json:"version"`
	Agents   []AgentLayout    `json:"agents"`   // by name
	Families []FamilyForecast `json:"families"` // by name
	// Reason says why it was made: "periodic", "burst of ctr: 310 -> 540 queries/s", "agent lost".
	Reason string `json:"reason"`
}

// An AgentLayout is what an agent should hold, and the version that first said so.
type AgentLayout struct {
	Agent  names.AgentName `json:"agent"`
	Layout Layout          `json:"layout"`
	Since  uint64          `json:"since"`
}

// A FamilyForecast is what a placement expects of a family. A model that is in no family is one of
// its own, of the model's name.
type FamilyForecast struct {
	Family string `json:"family"`
	// Rate is what arrived when the placement was made, Demand what it is made for: both queries/s.
	Rate   float64 `json:"rate_qps"`
	Demand float64 `json:"demand_qps"`
	Served float64 `json:"served"` // the part of the demand that the agents can serve, in [0, 1]
	// Accuracy is the mean of what is served, in (0, 1]; 0 if nothing is.
	Accuracy float64        `json:"accuracy"`
	Shares   []VariantShare `json:"shares"` // by model
}

// A VariantShare is the part of a family's served queries that a variant is expected to answer. It
// is a forecast: whoever matches queries to agents chooses the variant.
type VariantShare struct {
	Model names.ModelKey `json:"model"`
	Share float64        `json:"share"`
}

// Layout is what the placement wants an agent to hold; ok is false if it says nothing of the agent.
func (p *Placement) Layout(agent names.AgentName) (layout Layout, ok bool) {
	for i := range p.Agents {
		if p.Agents[i].Agent == agent {
			return p.Agents[i].Layout, true
		}
	}
	return Layout{}, false
}
