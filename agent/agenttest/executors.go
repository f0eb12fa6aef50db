package agenttest

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// A Site is a host of a chaos run, and the agent on it.
type Site struct {
	*Member
	Slower atomic.Int64 // each query takes so many times as long
	Change func(agent.Inside)
	Up     bool // chaos.mu guards it, and which agent it is
	Busy   bool // one thing happens to it, and no other may
}

// An emulator is an emulated executor whose speed a test sets, and whose answers follow from
// the queries.
type emulator struct{ runtime.Executor }

func (e emulator) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := e.Executor.Load(ctx, v)
	return answering{m}, err
}

type answering struct{ runtime.Model }

func (m answering) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	r, err := m.Model.Run(ctx, inputs)
	if err != nil {
		return nil, err
	}
	ids, scores := inputs[0].Data, r.Outputs[0].Data
	rows := len(ids) / 32
	for i := range rows {
		answer := int64(0)
		for k := 3; k >= 0; k-- {
			answer = 28*answer + int64(binary.LittleEndian.Uint64(ids[32*i+8*k:]))
		}
		binary.LittleEndian.PutUint32(scores[i*len(scores)/rows:],
			math.Float32bits(float32(answer)))
	}
	return r, nil
}

// OpenEmulator is how an agent on a site gets its executor.
func (s *Site) OpenEmulator(config agent.Config, _ *slog.Logger) (runtime.Executor, error) {
	library, typ := profiles.ShippedLibrary(), profiles.InstanceType(config.InstanceType)
	return emulator{runtime.NewEmulated(func(v *models.Version, batchSize int) time.Duration {
		table, err := library.Table(v.Model, typ)
		if err != nil {
			panic(err) // all models are the zoo's
		}
		return time.Duration(s.Slower.Load()) * table.Quantile(rand.Float64(), batchSize)
	})}, nil
}

// A Strange executor's models answer each item with the same element.
type Strange struct {
	runtime.Executor
	Answer *atomic.Pointer[tensor.Tensor] // the element, without its name and shape
}

func (s Strange) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := s.Executor.Load(ctx, v)
	return strangeModel{m, s}, err
}

type strangeModel struct {
	runtime.Model
	of Strange
}

func (m strangeModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	r, err := m.Model.Run(ctx, inputs)
	if err != nil {
		return nil, err
	}
	answer, n := m.of.Answer.Load(), inputs[0].Shape[0]
	for i := range r.Outputs {
		r.Outputs[i].DataType, r.Outputs[i].Shape = answer.DataType, []int64{n}
		r.Outputs[i].Data = []byte(strings.Repeat(string(answer.Data), int(n)))
	}
	return r, nil
}

// FP32 returns an element for a strange executor.
func FP32(v float32) *tensor.Tensor {
	return &tensor.Tensor{
		DataType: tensor.FP32, Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)),
	}
}
