package beat

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// Bins is the number of bins of batch sizes: bin 0 has sizes up to 8, the last one those above
// 1,000, and those between have bins 12 % wide. Chosen: a curve of so many points looks smooth, and
// a second of a model takes 176 bytes.
const Bins = 44

const minBin, maxBin = 8, 1000

// binOf is the bin of each batch size up to maxBin.
var binOf = func() (bins [maxBin + 1]uint8) {
	for size := range bins {
		if size > minBin {
			// rounding must not put the greatest size into the bin of still greater ones
			at := math.Log(float64(size)/minBin) / math.Log(maxBin/minBin) * (Bins - 2)
			bins[size] = uint8(min(math.Ceil(at-1e-9), Bins-2))
		}
	}
	return bins
}()

// BinOf returns the bin of a batch size, in [0, Bins).
func BinOf(size int) int {
	if size > maxBin {
		return Bins - 1
	}
	return int(binOf[max(size, 0)])
}

// MostShots is how many decisions of a second are kept as a sample.
const MostShots = 60

// A Shot is a decision.
type Shot struct {
	Batch int
	Type  string // of the agent's instance
	Model leader.ModelID
	Late  bool // by the prediction
}

// A Cell is where decisions are counted by bins of batch sizes.
type Cell struct {
	Type  string // of instances
	Model leader.ModelID
}

// Counts are what happened in one second. Make them by [NewCounts]. They are not safe for
// concurrent use.
type Counts struct {
	Decisions int // assignments
	Heat      map[Cell]*[Bins]uint32
	Shots     []Shot // a sample of the decisions
	Latency   map[leader.ModelID]*Histogram
	Busy      map[names.AgentName][]time.Duration // time in use by lane, of attempts that ended

	every int // each which decision is a shot
}

// NewCounts returns empty counts. former are those of the second before, by which the sample is
// drawn; nil: there are none.
func NewCounts(former *Counts) *Counts {
	c := &Counts{
		Heat: map[Cell]*[Bins]uint32{}, Latency: map[leader.ModelID]*Histogram{}, every: 1,
		Busy: map[names.AgentName][]time.Duration{},
	}
	if former != nil {
		c.every = max(1, (former.Decisions+MostShots-1)/MostShots)
	}
	return c
}

// Weight is how many decisions each of the shots stands for.
func (c *Counts) Weight() int {
	if len(c.Shots) == 0 {
		return 1
	}
	return max(1, int(math.Round(float64(c.Decisions)/float64(len(c.Shots)))))
}

// Decided counts that a query of a model goes to an instance of a type.
func (c *Counts) Decided(typ string, model leader.ModelID, batch int, late bool) {
	cell := Cell{typ, model}
	bins := c.Heat[cell]
	if bins == nil {
		bins = new([Bins]uint32)
		c.Heat[cell] = bins
	}
	bins[BinOf(batch)]++
	if c.Decisions%c.every == 0 && len(c.Shots) < MostShots {
		c.Shots = append(c.Shots, Shot{batch, typ, model, late})
	}
	c.Decisions++
}

// maxLanes bounds the lanes of an agent that are counted: numbers come from other machines.
const maxLanes = 1 << 12

// Answered counts that a lane has run a query: for how long, and how long its client has waited.
func (c *Counts) Answered(agent names.AgentName, lane int, model leader.ModelID,
	execution, latency time.Duration) {
	l := c.Latency[model]
	if l == nil {
		l = new(Histogram)
		c.Latency[model] = l
	}
	l.Add(latency)
	if lane < 0 || lane >= maxLanes {
		return
	}
	lanes := c.Busy[agent]
	for len(lanes) <= lane {
		lanes = append(lanes, 0)
	}
	lanes[lane] += execution
	c.Busy[agent] = lanes
}
