package bench

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

// sums answers a query of the fake model with the sum of each row of its first input.
func sums(req *oip.Request) *oip.Response {
	x, err := tensor.Values[float32](req.Inputs[0])
	if err != nil {
		panic(err)
	}
	rows := int(req.Inputs[0].Shape[0])
	values := make([]float32, rows)
	for i, v := range x {
		values[i*rows/len(x)] += v
	}
	out, err := tensor.Of("sum", values, int64(rows), 1)
	if err != nil {
		panic(err)
	}
	return &oip.Response{Model: req.Model, Version: "1", Outputs: []tensor.Tensor{out}}
}

// A changedServer answers as sums does, changed by a function.
type changedServer struct {
	fakeServer
	change func(resp *oip.Response)
}

func (s *changedServer) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	if err := s.answer(ctx, req); err != nil {
		return nil, err
	}
	resp := sums(req)
	if s.change != nil {
		s.change(resp)
	}
	return resp, nil
}

// TestVerify: answers are compared with the reference's, whatever rows a query has. Rows in another
// order, other values and other outputs count as errors; what another order of additions changes
// does not.
func TestVerify(t *testing.T) {
	values := func(resp *oip.Response) []float32 {
		v, err := tensor.Values[float32](resp.Outputs[0])
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, tt := range map[string]struct {
		change func(*oip.Response)
		want   string // "": the answers are right
	}{
		"right":    {nil, ""},
		"little":   {func(resp *oip.Response) { values(resp)[3] *= 1 + 1e-6 }, ""},
		"reversed": {func(resp *oip.Response) { slices.Reverse(values(resp)) }, "row 0 of 8"},
		"one value": {
			func(resp *oip.Response) { values(resp)[3] += 1 }, "row 3 of 8, value 0 is",
		},
		"other name":   {func(resp *oip.Response) { resp.Outputs[0].Name = "x" }, `output "sum"`},
		"too few rows": {func(resp *oip.Response) { resp.Outputs[0].Shape[0]-- }, `FP32 [7 1]`},
		"other columns": {
			func(resp *oip.Response) { resp.Outputs[0].Shape = []int64{8} }, `FP32 [8]`,
		},
		"unknown version": {
			func(resp *oip.Response) { resp.Version = "9" }, "m/9 has answered, which there is nothing",
		},
		"other version": { // whose answers are 1 above
			func(resp *oip.Response) {
				resp.Version = "2"
				for i := range values(resp) {
					values(resp)[i]++
				}
			}, "",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			right := &changedServer{fakeServer: fakeServer{
				properties: fakeProperties(), answer: after(time.Millisecond),
			}}
			m, err := NewTargetModel(t.Context(), right, "m", ModelOptions{LargestBatchSize: 64,
				Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Verify(t.Context(), "m/1", right); err != nil {
				t.Fatal(err)
			}
			second := &changedServer{right.fakeServer, func(resp *oip.Response) {
				for i := range values(resp) {
					values(resp)[i]++
				}
			}}
			if err := m.Verify(t.Context(), "m/2", second); err != nil {
				t.Fatal(err)
			}
			server := &changedServer{right.fakeServer, tt.change}
			r, err := run(t.Context(), server, []*TargetModel{m}, Config{
				Queries: steady(t, 100, "m"), Duration: time.Second,
			}, sleepUntil)
			if err != nil {
				t.Fatal(err)
			}
			got := r.Models[0]
			err = r.Wrong()
			switch {
			case tt.want == "" && (err != nil || got.Verified != got.Queries || got.Failed != 0):
				t.Errorf("%s: got %v, %+v", name, err, got)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) ||
				got.Failed != got.Queries || got.Verified != 0):
				t.Errorf("%s: got %v, %d failed of %d; want all, with %q", name, err, got.Failed,
					got.Queries, tt.want)
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if said := strings.Contains(text.String(),
				"m: 99 answers agree"); said != (tt.want == "") {
				t.Errorf("%s: it reports\n%s", name, &text)
			}
		})
	}
}

// TestDiffersHalves: numbers of 16 bits may differ by one in the last place, which is more than
// 0.01 % of them, and there are two zeros.
func TestDiffersHalves(t *testing.T) {
	half := func(d tensor.DataType, v float64) []byte {
		h, ok := tensor.HalfOf(d, v)
		if !ok {
			t.Fatalf("%v is beyond %s", v, d)
		}
		return binary.LittleEndian.AppendUint16(nil, h)
	}
	after := func(h []byte, n uint16) []byte { // n places after h, away from 0
		return binary.LittleEndian.AppendUint16(nil, binary.LittleEndian.Uint16(h)+n)
	}
	for _, d := range []tensor.DataType{tensor.FP16, tensor.BF16} {
		zero, negative := half(d, 0), half(d, math.Copysign(0, -1))
		if firstDifference(d, zero, negative) >= 0 {
			t.Errorf("%s: 0 and -0 differ", d)
		}
		for _, v := range []float64{0, 1e-6, 0.02, 0.5, -0.02, 1, 300} {
			x := half(d, v)
			if firstDifference(d, x, after(x, 1)) >= 0 || firstDifference(d, after(x, 1), x) >= 0 {
				t.Errorf("%s: %v and the number beside it differ", d, v)
			}
			if firstDifference(d, x, after(x, 2)) < 0 {
				t.Errorf("%s: %v and the second number after it do not differ", d, v)
			}
		}
		if firstDifference(d, half(d, 1e-6), half(d, -1e-6)) < 0 || firstDifference(d, half(d, 1),
			half(d, -1)) < 0 {
			t.Errorf("%s: the sign makes no difference", d)
		}
		nan := half(d, math.NaN())
		if firstDifference(d, nan, nan) >= 0 || firstDifference(d, nan, half(d, math.Inf(1))) < 0 {
			t.Errorf("%s: NaN is not like itself alone", d)
		}
	}
}

// TestVerifyNothing: a reference whose answers cannot tell rows apart is refused.
func TestVerifyNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*oip.Response)
		want   string
	}{
		"all alike": {func(resp *oip.Response) { clear(resp.Outputs[0].Data) },
			"rows the same answer"},
		"words": {func(resp *oip.Response) {
			out := &resp.Outputs[0]
			out.DataType = tensor.Bytes
			clear(out.Data) // empty strings
		}, `output "sum" is BYTES, want numbers`},
		"not of rows": {func(resp *oip.Response) {
			resp.Outputs[0].Shape = []int64{1, resp.Outputs[0].Shape[0]}
		}, `model "m" answers 64 rows with output "sum" of shape [1 64]`},
	} {
		s := &changedServer{fakeServer{properties: fakeProperties(),
			answer: func(context.Context, *oip.Request) error { return nil }}, tt.change}
		m, err := NewTargetModel(t.Context(), s, "m", ModelOptions{LargestBatchSize: 64, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Verify(t.Context(), "m/1", s); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}
