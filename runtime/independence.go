package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

const (
	// checkedRows is how many rows CheckRows runs together: enough for three parts of different sizes.
	checkedRows = 6
	// checkDraws is how many draws of inputs must show that rows mix. An index of the largest score,
	// or a threshold, may go either way where sums are in another order; it does not do so for inputs
	// drawn anew.
	checkDraws = 2
)

// CheckRows runs random rows of a loaded version together, in parts, and beside other rows, of which
// one is not a number, and says which of that changes answers by more than [tensor.Tolerance]; "" if
// nothing does. It runs background queries, as [Warm] does. A run that fails shows nothing: the
// shapes or numbers may be of no use to the model.
func CheckRows(ctx context.Context, l *Lanes, m Model, v *models.Version) (why string, err error) {
	c := rowCheck{lanes: l, model: m, version: v, roles: v.Roles, random: newRandom(v)}
	if c.roles == nil {
		var names []string
		var shapes [][]int64
		for i := range v.Inputs {
			names, shapes = append(names, v.Inputs[i].Name), append(shapes, nil)
			if v.Inputs[i].HasRows() {
				shapes[i] = v.Inputs[i].Shape
			}
		}
		c.roles = roles.OfShapes(names, shapes)
	}
	n := min(checkedRows, v.Config.LargestBatchSize)
	if n < 2 || v.Batchless || !c.roles.CanSplit() {
		return "", nil
	}
	for range checkDraws {
		why, err = c.compare(ctx, n)
		if why == "" || err != nil {
			break
		}
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrDraining) && !errors.Is(err, ErrClosed) {
		return "", nil
	}
	return why, err
}

// A rowCheck compares rows that run together with rows that run apart.
type rowCheck struct {
	lanes   *Lanes
	model   Model
	version *models.Version
	roles   *roles.Roles
	random  *rand.Rand
}

// compare is CheckRows for one draw of n rows.
func (c *rowCheck) compare(ctx context.Context, n int) (why string, err error) {
	inputs, err := RandomInputs(c.random, c.version, n)
	if err != nil {
		return "", err
	}
	whole, err := c.run(ctx, inputs, n)
	if err != nil {
		return "", err
	}
	sizes := []int{1, n - 1}
	if n >= 4 {
		sizes = []int{1, n / 2, n - 1 - n/2}
	}
	parts, err := c.roles.Split(inputs, sizes)
	if err != nil {
		return "", err
	}
	for i, part := range parts {
		alone, err := c.run(ctx, part, sizes[i])
		if err != nil {
			return "", err
		}
		if name := c.differs(whole, alone, sizes, i); name != "" {
			return fmt.Sprintf("output %q of %d rows changes when they run with %d others", name,
				sizes[i], n-sizes[i]), nil
		}
	}
	others, err := RandomInputs(c.random, c.version, n)
	if err != nil {
		return "", err
	}
	poison(others)
	strangers, err := c.roles.Split(others, []int{1, n - 1})
	if err != nil {
		return "", err
	}
	// The first row comes last, behind rows of another draw.
	mixed, err := c.roles.Join([][]tensor.Tensor{strangers[1], parts[0]})
	if err != nil {
		return "", err
	}
	beside, err := c.run(ctx, mixed, n)
	if err != nil {
		return "", err
	}
	alone, err := c.run(ctx, parts[0], 1)
	if err != nil {
		return "", err
	}
	if name := c.differs(beside, alone, []int{n - 1, 1}, 1); name != "" {
		return fmt.Sprintf("output %q of a row changes with the rows beside it", name), nil
	}
	return "", nil
}

// differs returns the name of an output with a row for each row that is not, in part i of whole, as
// the run of that part alone has it; "" if there is none.
func (c *rowCheck) differs(whole, alone []tensor.Tensor, sizes []int, i int) string {
	for k := range whole {
		if c.roles.RoleOfOutput(whole[k].Name) != roles.Row {
			continue
		}
		parts, err := tensor.Split(whole[k], sizes)
		if err != nil || !agreesBeside(parts[i], alone[k], whole[k]) {
			return whole[k].Name
		}
	}
	return ""
}

// agreesBeside reports whether two answers to the same rows agree, by the tolerance of the largest
// value of whole, the answer of which one is a part.
func agreesBeside(part, alone, whole tensor.Tensor) bool {
	if tensor.Agree(part, alone, tensor.Kernels) {
		return true
	}
	if len(part.Data) != len(alone.Data) || len(part.Data) > len(whole.Data) {
		return false
	}
	// The same beside the rest of whole, whose values agree with themselves.
	n := len(whole.Data) - len(part.Data)
	rest := whole.Data[:n:n]
	join := func(data []byte) tensor.Tensor {
		return tensor.Tensor{DataType: whole.DataType, Data: append(rest, data...)}
	}
	return tensor.Agree(join(part.Data), join(alone.Data), tensor.Kernels)
}

// run runs inputs in the background and returns copies of the outputs.
func (c *rowCheck) run(ctx context.Context, inputs []tensor.Tensor, n int) ([]tensor.Tensor, error) {
	result, err := c.lanes.Do(ctx, Query{
		Model: c.model, Inputs: inputs, BatchSize: n, Background: true,
	})
	if err != nil {
		return nil, err
	}
	defer result.Release()
	outputs := make([]tensor.Tensor, len(result.Outputs))
	for i, out := range result.Outputs {
		outputs[i] = out
		outputs[i].Data = append([]byte(nil), out.Data...)
		outputs[i].Shape = append([]int64(nil), out.Shape...)
		if len(out.Shape) == 0 {
			return nil, fmt.Errorf("output %q is a scalar", out.Name)
		}
	}
	return outputs, nil
}

// poison makes the last element of each input of floats no number.
func poison(inputs []tensor.Tensor) {
	for i := range inputs {
		if t := &inputs[i]; t.DataType == tensor.FP32 && len(t.Data) >= 4 {
			nan := math.Float32bits(float32(math.NaN()))
			binary.LittleEndian.PutUint32(t.Data[len(t.Data)-4:], nan)
		}
	}
}
