package runtime

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime/internal/cuda"
)

func TestGraphSizes(t *testing.T) {
	if got, want := graphSizes(40), []int{1, 2, 4, 6, 8, 12, 16, 24, 32, 40}; !slices.Equal(got,
		want) {
		t.Errorf("up to 40: %v, want %v", got, want)
	}
	for largest := 1; largest < 3000; largest++ {
		sizes := graphSizes(largest)
		if sizes[0] != 1 || sizes[len(sizes)-1] != largest {
			t.Fatalf("up to %d: %v", largest, sizes)
		}
		for i := 1; i < len(sizes); i++ {
			// A query just above a size has a third of its graph's rows idle at most; of few rows
			// more.
			low, high := sizes[i-1], sizes[i]
			if high <= low || low >= 4 && 3*(high-low-1) > high {
				t.Fatalf("up to %d: %v, from %d to %d", largest, sizes, low, high)
			}
		}
	}
}

func TestAgrees(t *testing.T) {
	floats := func(values ...float32) (data []byte) {
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		return data
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		of        tensor.DataType
		got, want []byte
		agrees    bool
	}{
		{tensor.FP32, floats(1, 100), floats(1.1, 100), true}, // of the largest value
		{tensor.FP32, floats(1, 100), floats(1.3, 100), false},
		{tensor.FP32, floats(0, 0), floats(0, 0), true},
		{tensor.FP32, floats(1e-9, 0), floats(0, 0), false},
		{tensor.FP32, floats(nan, 1), floats(nan, 1.00001), true},
		{tensor.FP32, floats(nan, 1), floats(1, 1), false},
		{tensor.FP32, floats(1, 1), floats(nan, 1), false},
		{tensor.FP32, floats(inf, 1), floats(inf, 1.00001), true},
		{tensor.FP32, floats(inf, 5), floats(inf, 1), false},
		{tensor.FP32, floats(5, 1), floats(inf, 1), false},
		{tensor.Int64, []byte{1, 0, 0, 0, 0, 0, 0, 0}, []byte{1, 0, 0, 0, 0, 0, 0, 0}, true},
		{tensor.Int64, []byte{1, 0, 0, 0, 0, 0, 0, 0}, []byte{2, 0, 0, 0, 0, 0, 0, 0}, false},
	} {
		if got := isEqualOutput(c.of, c.got, c.want); got != c.agrees {
			t.Errorf("%s: % x and % x agree: %v", c.of, c.got, c.want, got)
		}
	}
}

// TestStage: whatever rows of however many queries, each input's lie one behind the other.
func TestStage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	ports := []models.TensorSpec{
		{Name: "a", DataType: tensor.Int64, Shape: []int64{-1, 3}},
		{Name: "b", DataType: tensor.FP32, Shape: []int64{-1, 700}},
	}
	g := &graphs{s: &session{inputs: ports, threads: threads{count: 4}}}
	for i := range ports {
		g.in = append(g.in, &cuda.Buffer{Host: make([]byte, 1000*g.s.inputRow(i))})
	}
	noise := make([]byte, 1<<20)
	for k := range noise {
		noise[k] = byte(random.Uint32())
	}
	for range 300 {
		var queries [][]tensor.Tensor
		all := make([][]byte, len(ports))
		batch := 0
		for range 1 + random.IntN(4) {
			rows := random.IntN(250)
			batch += rows
			var query []tensor.Tensor
			for i := range ports {
				n := rows * g.s.inputRow(i)
				from := random.IntN(len(noise) - n)
				data := noise[from : from+n]
				all[i] = append(all[i], data...)
				query = append(query, tensor.Tensor{Data: data})
			}
			queries = append(queries, query)
		}
		row := random.IntN(batch + 1)
		rows := random.IntN(batch - row + 1)
		if err := g.stageRows(queries, row, rows, false); err != nil {
			t.Fatal(err)
		}
		for i, b := range g.in {
			n := g.s.inputRow(i)
			if !bytes.Equal(b.Host[:rows*n], all[i][row*n:(row+rows)*n]) {
				t.Fatalf("rows [%d, %d) of %d in %d queries: input %d is not theirs", row, row+rows,
					batch, len(queries), i)
			}
		}
	}
}
