package profiles

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/names"
)

// learnerFormat is the version of the JSON form. Version 1, which can still be read, has no
// checksums.
const learnerFormat = 2

type learnerJSON struct {
	Format   int         `json:"format"`
	Key      Key         `json:"key"`
	Prior    *Table      `json:"prior,omitempty"`
	Observed uint64      `json:"observed"`
	Changes  int         `json:"changes"`
	Updated  time.Time   `json:"updated"`
	Bins     []binJSON   `json:"bins"`
	Agents   []agentJSON `json:"agents"`
	Shape    []float64   `json:"shape"`
}

// binJSON is a bin with means instead of sums.
type binJSON struct {
	Batch   float64 `json:"batch_size"`
	Weight  float64 `json:"queries"`
	Latency float64 `json:"latency_ms"`
	Noise   float64 `json:"noise"`
}

type agentJSON struct {
	Name     names.AgentName `json:"name"`
	Factor   float64         `json:"factor"`
	Variance float64         `json:"variance"`
	Queries  float64         `json:"queries"`
	Seen     time.Time       `json:"seen"`
}

// Bounds of what is read. What is beyond them is written as the bound itself: one model with
// latencies out of all proportion must not make the file of all models damaged.
const (
	minLatency                      = 1e-9 // ms, the mean of a bin
	maxNoise                        = 1e3
	minFactor, maxFactor, maxSpread = 1e-9, 1e9, 1e6
)

// MarshalJSON writes all evidence but the cumulative sums of the agents and, because older versions
// reject keys that they do not know, their factors by size and the tail. These are learned anew, or
// inherited from the profiles that a former leader has told.
func (l *Learner) MarshalJSON() ([]byte, error) {
	centered := *l // the part that is left out is 0 on average
	centered.agents = slices.Clone(l.agents)
	centered.centerSizes()
	l = &centered
	j := learnerJSON{
		Format: learnerFormat, Key: l.key, Prior: l.prior, Observed: l.observed, Changes: l.changes,
		Updated: l.updated,
		Shape:   l.shape[:],
	}
	for _, b := range l.bins {
		if b.weight > 0 {
			j.Bins = append(j.Bins, binJSON{
				b.batch / b.weight, b.weight,
				min(max(b.latency/b.weight/1e6, minLatency), toMs(longest)),
				min(math.Sqrt(b.square/b.weight), maxNoise),
			})
		}
	}
	for _, a := range l.agents {
		j.Agents = append(j.Agents, agentJSON{a.name, min(max(a.factor, minFactor), maxFactor),
			min(a.variance, maxSpread), a.queries, a.seen})
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the form that MarshalJSON writes. If it is damaged or of an unknown format,
// the error says where, and the learner stays as it was.
func (l *Learner) UnmarshalJSON(data []byte) error {
	read, err := readLearner(data)
	if err != nil {
		return fmt.Errorf("read learned profile: %w", err)
	}
	*l = *read
	return nil
}

// checkFormat returns an error for a format that cannot be read.
func checkFormat(format int) error {
	if format < 1 || format > learnerFormat {
		return fmt.Errorf("format is %d, want 1 to %d", format, learnerFormat)
	}
	return nil
}

func readLearner(data []byte) (*Learner, error) {
	var j learnerJSON
	if err := document.JSON(data, &j); err != nil {
		return nil, err
	}
	if err := checkFormat(j.Format); err != nil {
		return nil, err
	}
	l := NewLearner(j.Key, nil)
	if l.prior = j.Prior; l.prior != nil {
		l.prior.key = j.Key // a table is written without its checksum
	}
	l.observed, l.changes, l.updated = j.Observed, j.Changes, j.Updated
	if j.Changes < 0 {
		return nil, fmt.Errorf("%s: changes is %d", j.Key, j.Changes)
	}
	if (j.Observed == 0) != (len(j.Bins) == 0) {
		return nil, fmt.Errorf("%s: %d queries observed, but %d bins", j.Key, j.Observed,
			len(j.Bins))
	}
	for n, b := range j.Bins {
		if !(b.Batch >= 1 && b.Batch <= MaxBatchSize) {
			return nil, fmt.Errorf("%s: bin %d: batch size %v is not within 1..%d", j.Key, n,
				b.Batch, MaxBatchSize)
		}
		fault := func(what string, value float64, want string) error {
			return fmt.Errorf("%s: bin of batch size %v: %s is %v, want %s", j.Key, b.Batch, what,
				value, want)
		}
		i := binOf(int(math.Round(b.Batch)))
		switch {
		case l.bins[i].weight > 0:
			return nil, fmt.Errorf("%s: the bin of batch size %v occurs twice", j.Key, b.Batch)
		case !(b.Weight > 0 && b.Weight <= binMemory+1):
			return nil, fault("queries", b.Weight, fmt.Sprintf("above 0 and at most %d", binMemory))
		case !(b.Latency >= minLatency && b.Latency <= toMs(longest)):
			return nil, fault("latency_ms", b.Latency,
				fmt.Sprintf("%v to %v", minLatency, toMs(longest)))
		case !(b.Noise >= 0 && b.Noise <= maxNoise):
			return nil, fault("noise", b.Noise, fmt.Sprintf("0 to %v", maxNoise))
		}
		b.Weight = max(b.Weight, minEvidence) // earlier versions wrote less
		l.bins[i] = bin{
			b.Weight, b.Weight * b.Batch, b.Weight * b.Latency * 1e6, b.Weight * b.Noise * b.Noise,
		}
		l.top = max(l.top, i)
	}
	for n, a := range j.Agents {
		switch {
		case n > 0 && j.Agents[n-1].Name >= a.Name:
			return nil, fmt.Errorf("%s: agent %q stands after %q, want ascending names", j.Key,
				a.Name, j.Agents[n-1].Name)
		case !(a.Factor >= minFactor && a.Factor <= maxFactor):
			return nil, fmt.Errorf("%s: agent %q: factor is %v, want 1e-9 to 1e9", j.Key, a.Name,
				a.Factor)
		case !(a.Variance >= 0 && a.Variance <= maxSpread):
			return nil, fmt.Errorf("%s: agent %q: variance is %v, want 0 to 1e6", j.Key, a.Name,
				a.Variance)
		case !(a.Queries >= 0 && a.Queries <= agentMemory+1):
			return nil, fmt.Errorf("%s: agent %q: queries is %v, want 0 to %d", j.Key, a.Name,
				a.Queries, agentMemory)
		}
		l.agents = append(l.agents, agent{
			name: a.Name, factor: a.Factor, variance: a.Variance, queries: a.Queries, seen: a.Seen,
		})
	}
	if len(j.Shape) != shapeCount {
		return nil, fmt.Errorf("%s: shape has %d values, want %d", j.Key, len(j.Shape), shapeCount)
	}
	var total float64
	for i, w := range j.Shape {
		if !(w >= 0 && w <= 1e9) {
			return nil, fmt.Errorf("%s: shape value %d is %v, want a number from 0", j.Key, i, w)
		}
		total += w
	}
	if total < 1 {
		return nil, fmt.Errorf("%s: shape values add up to %v, want at least 1", j.Key, total)
	}
	copy(l.shape[:], j.Shape)
	l.refitModel()
	return l, nil
}
