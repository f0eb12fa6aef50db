// Package shadow compares the answers of a model's canary with those of the current version. When
// the canary has answered a query, the agent on which it ran may send the same query, as a shadow,
// to an idle agent that holds the current version, and compare the two answers. A shadow is no
// client's query: no count has it, a worker refuses it unless a lane is idle, and an agent sends at
// most perSecond.
package shadow

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

const (
	// perSecond bounds the shadows that an agent sends.
	perSecond = 20
	// maxAtOnce bounds those under way, and maxBytes the inputs of each.
	maxAtOnce, maxBytes = 4, 4 << 20
	// patience is how long a shadow may take.
	patience = 2 * time.Second
)

// A Config holds what a [Comparer] needs of its agent. The functions must not block.
type Config struct {
	// Compares reports whether a model has a canary that answers queries, and whose answers are to
	// be compared; it is asked of each query.
	Compares  func(model string) bool
	View      func() *control.View
	Loads     func() []*control.LaneLoad
	Transport client.Transport
	// Tell takes what was compared, to be sent to the leader.
	Tell func(*control.AnswersCompared)
}

// A Comparer compares answers. It has a goroutine for each shadow under way; Close waits for them.
// Its methods may be called concurrently.
type Comparer struct {
	config  Config
	limit   *rate.Limiter
	gateway uint64 // the shadows' own
	ctx     context.Context
	cancel  context.CancelFunc

	mu       sync.Mutex
	closed   bool
	underWay int
	sequence uint64
	running  sync.WaitGroup
}

// New returns a Comparer. The caller closes it.
func New(config Config) *Comparer {
	c := &Comparer{
		config: config, limit: rate.NewLimiter(perSecond, perSecond),
		gateway: 1 + rand.Uint64N(math.MaxUint64),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the shadows under way.
func (c *Comparer) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// Wants reports whether an answer to the query may be one to compare. It is cheap.
func (c *Comparer) Wants(req *oip.Request) bool {
	return c.config.Compares(req.Model)
}

// release is that of a model with a canary on trial whose answers are compared, nil if there is
// none.
func (c *Comparer) release(model string) *control.Release {
	for _, r := range c.config.View().GetReleases() {
		if r.GetModel() == model && r.GetShare() > 0 {
			if _, compared := r.ComparedWithin(); compared {
				return r
			}
		}
	}
	return nil
}

// Answered takes a query and its answer, which it does not keep. If the canary has answered and
// there is room, it begins to compare.
func (c *Comparer) Answered(req *oip.Request, resp *oip.Response) {
	r := c.release(req.Model)
	if r == nil || resp.Version != strconv.FormatInt(r.GetCanary(), 10) || resp.Variant != "" ||
		req.Bytes() > maxBytes || resp.Bytes() > maxBytes {
		return
	}
	to := c.idleHolder(names.NewModelKey(r.GetModel(), r.GetCurrent()))
	if to == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.underWay >= maxAtOnce || !c.limit.Allow() {
		return
	}
	c.underWay++
	c.sequence += control.Numbering
	attempt := &client.Attempt{
		Attempt: control.Attempt{
			Gateway: c.gateway, Sequence: c.sequence, Attempt: 1, Shadow: true,
		},
		Arrival: time.Now(),
	}
	again := &oip.Request{
		Model: req.Model, Version: strconv.FormatInt(r.GetCurrent(), 10),
		Inputs: copyTensors(req.Inputs), Outputs: slices.Clone(req.Outputs),
	}
	answer := copyTensors(resp.Outputs)
	c.running.Go(func() {
		c.compareAnswers(r, to, attempt, again, answer)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.underWay--
	})
}

// idleHolder is a member that holds a version and has a free lane, as gossip says; nil if there is
// none.
func (c *Comparer) idleHolder(key names.ModelKey) *control.Member {
	busy := map[string]bool{}
	for _, l := range c.config.Loads() {
		busy[l.GetAgent()] = l.GetWaiting() > 0 ||
			len(l.GetRemainingNs()) > 0 && slices.Min(l.GetRemainingNs()) > l.GetAgeNs()
	}
	var all []*control.Member
	for _, m := range c.config.View().GetMembers() {
		if !m.GetDraining() && !busy[m.GetName()] &&
			slices.ContainsFunc(m.GetModels(),
				func(held *control.Model) bool { return held.Key() == key }) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[rand.IntN(len(all))]
}

func copyTensors(tensors []tensor.Tensor) []tensor.Tensor {
	all := slices.Clone(tensors)
	for i := range all {
		all[i].Data, all[i].Shape = slices.Clone(all[i].Data), slices.Clone(all[i].Shape)
	}
	return all
}

// compareAnswers has the current version answer the query too, and tells how the answers differ. A
// shadow that is refused, or fails, tells nothing.
func (c *Comparer) compareAnswers(r *control.Release, to *control.Member, attempt *client.Attempt,
	req *oip.Request, answer []tensor.Tensor) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	resp, err := c.config.Transport.Infer(ctx, to, req, attempt)
	if err != nil {
		return
	}
	defer resp.Release()
	top := maxDifference(answer, resp.Outputs)
	told := &control.AnswersCompared{
		Model: r.GetModel(), Canary: r.GetCanary(), Current: r.GetCurrent(), Compared: 1,
	}
	if within, _ := r.ComparedWithin(); top > within {
		told.Wrong = 1
	}
	told.Sum = min(top, math.MaxFloat32) // JSON has no infinity
	told.Most = told.Sum
	c.config.Tell(told)
}

// maxDifference is the largest difference between the scores of two answers, relative to scores
// above 1; +Inf if they differ in form, in values that are no floating-point numbers, or in whether
// one is a number at all.
func maxDifference(a, b []tensor.Tensor) (most float64) {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Name != y.Name || x.DataType != y.DataType || !slices.Equal(x.Shape, y.Shape) ||
			len(x.Data) != len(y.Data) {
			return math.Inf(1)
		}
		size := x.DataType.Size()
		number := numbers[x.DataType]
		if number == nil {
			if !bytes.Equal(x.Data, y.Data) {
				return math.Inf(1)
			}
			continue
		}
		for at := 0; at+size <= len(x.Data); at += size {
			v, w := number(x.Data[at:]), number(y.Data[at:])
			switch d := math.Abs(v-w) / max(1, math.Abs(w)); {
			case v == w || math.IsNaN(v) && math.IsNaN(w):
			case math.IsNaN(d):
				return math.Inf(1)
			default:
				most = max(most, d)
			}
		}
	}
	return most
}

// numbers read the first element of little-endian data, of each floating-point type.
var numbers = map[tensor.DataType]func([]byte) float64{
	tensor.FP64: func(b []byte) float64 {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	},
	tensor.FP32: func(b []byte) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	},
	tensor.FP16: func(b []byte) float64 {
		return tensor.OfHalf(tensor.FP16, binary.LittleEndian.Uint16(b))
	},
	tensor.BF16: func(b []byte) float64 {
		return tensor.OfHalf(tensor.BF16, binary.LittleEndian.Uint16(b))
	},
}
