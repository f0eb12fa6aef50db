package bench

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/profiles/workload"
)

// words are strings as a tensor's data.
func words(values ...string) (data []byte) {
	for _, v := range values {
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(v))), v...)
	}
	return data
}

// TestRandomTypes: random inputs are made of every type that the protocol has, and are valid.
func TestRandomTypes(t *testing.T) {
	types := []tensor.DataType{
		tensor.Bool, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64, tensor.Int8,
		tensor.Int16, tensor.Int32, tensor.Int64, tensor.FP16, tensor.BF16, tensor.FP32,
		tensor.FP64,
		tensor.Bytes,
	}
	metadata := &inference.ModelMetadataResponse{Name: "m"}
	for _, d := range types {
		metadata.Inputs = append(metadata.Inputs, &inference.ModelMetadataResponse_TensorMetadata{
			Name: string(d), Datatype: string(d), Shape: []int64{-1, 3},
		})
	}
	for _, batch := range []int{1, 5} {
		query, _, err := RandomQuery(metadata, batch, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := query.Check(); err != nil {
			t.Errorf("batch size %d: %v", batch, err)
		}
		text := query.Inputs[len(types)-1].Data
		if want := words("abcdefgh"); len(text) != 3*batch*len(want) || string(text[:4]) != string(
			want[:4]) {
			t.Errorf("batch size %d: strings %q, want words of 8 letters", batch, text)
		}
		for _, in := range query.Inputs {
			if in.DataType != tensor.FP16 && in.DataType != tensor.BF16 {
				continue
			}
			for i := 0; i < len(in.Data); i += 2 {
				v := tensor.OfHalf(in.DataType, binary.LittleEndian.Uint16(in.Data[i:]))
				if v == 0 || math.Abs(v) > 6 {
					t.Errorf("%s: %v, want it from a standard normal distribution", in.DataType, v)
				}
			}
		}
	}
}

func mustOf(t *testing.T, name string, values []float32, shape ...int64) tensor.Tensor {
	t.Helper()
	x, err := tensor.Of(name, values, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestGivenRows: a query has consecutive rows of all inputs, strings of any length included.
func TestGivenRows(t *testing.T) {
	rows := []tensor.Tensor{
		mustOf(t, "x", []float32{0, 0, 1, 1, 2, 2}, 3, 2),
		{Name: "s", DataType: tensor.Bytes, Shape: []int64{3, 2},
			Data: words("a", "", "bb", "b", "", "cc")},
	}
	var sent []*oip.Request
	s := &fakeServer{properties: fakeProperties(),
		answer: func(_ context.Context, r *oip.Request) error {
			sent = append(sent, r)
			return nil
		}}
	m, err := NewTargetModel(t.Context(), s, "m", ModelOptions{
		LargestBatchSize: 64, Given: &Given{Rows: rows},
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.LargestBatchSize != 3 || m.hasBatch(4) || !m.hasBatch(3) || len(m.Notes) != 1 {
		t.Errorf("largest batch size %d, notes %q", m.LargestBatchSize, m.Notes)
	}
	r := rand.New(rand.NewPCG(1, 1))
	texts := [][]byte{words("a", ""), words("bb", "b"), words("", "cc")}
	seen := map[byte]bool{}
	for range 50 {
		q, _ := m.makeRequest(workload.Query{BatchSize: 2}, r)
		if err := q.Check(); err != nil || q.Model != "m" {
			t.Fatalf("query %+v: %v", q, err)
		}
		first := int(math.Float32frombits(binary.LittleEndian.Uint32(q.Inputs[0].Data)))
		seen[byte(first)] = true
		if want := string(texts[first]) + string(texts[first+1]); string(q.Inputs[1].Data) != want {
			t.Fatalf("from row %d: strings %q, want %q", first, q.Inputs[1].Data, want)
		}
	}
	if len(seen) != 2 {
		t.Errorf("queries begin with rows %v, want 0 and 1", seen)
	}
	if len(sent) != 1 || sent[0].Inputs[0].Shape[0] != 1 {
		t.Errorf("sent %v to check the inputs, want one query of one row", sent)
	}
}

// TestGivenQueries: a query is one of those given, of the batch size that is due.
func TestGivenQueries(t *testing.T) {
	given := &Given{Queries: []*oip.Request{
		{Inputs: []tensor.Tensor{mustOf(t, "x", []float32{1, 1}, 2, 1)}},
		{Inputs: []tensor.Tensor{mustOf(t, "x", []float32{2, 2}, 2, 1)}, Parameters: map[string]any{
			"p": true,
		}},
		{Inputs: []tensor.Tensor{mustOf(t, "x", []float32{3, 3, 3, 3}, 4, 1)}},
	}}
	sizes, err := given.BatchSizes("f", false)
	if err != nil {
		t.Fatal(err)
	}
	if pmf := sizes.PMF(); len(pmf) != 2 || pmf[0].BatchSize != 2 ||
		math.Abs(pmf[0].P-2./3) > 1e-9 {
		t.Errorf("batch sizes are %v", pmf)
	}
	s := &fakeServer{properties: fakeProperties(), answer: after(0)}
	m, err := NewTargetModel(t.Context(), s, "m", ModelOptions{LargestBatchSize: 64, Given: given})
	if err != nil {
		t.Fatal(err)
	}
	if m.hasBatch(1) || !m.hasBatch(2) || m.hasBatch(3) || !m.hasBatch(4) || m.hasBatch(5) {
		t.Error("it has queries of other batch sizes than 2 and 4")
	}
	seen := map[float32]int{}
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		q, _ := m.makeRequest(workload.Query{BatchSize: 2}, r)
		values, err := tensor.Values[float32](q.Inputs[0])
		if err != nil || len(values) != 2 || q.Model != "m" {
			t.Fatalf("query %+v: %v", q, err)
		}
		if (values[0] == 2) != (q.Parameters["p"] == true) {
			t.Errorf("query %v has parameters %v", values, q.Parameters)
		}
		seen[values[0]]++
	}
	if seen[1] < 30 || seen[2] < 30 || seen[1]+seen[2] != 100 {
		t.Errorf("sent %v, want about 50 of 1 and of 2", seen)
	}
}

func TestGivenErrors(t *testing.T) {
	x := mustOf(t, "x", []float32{1, 2}, 2, 1)
	s := &fakeServer{properties: fakeProperties(), answer: after(0)}
	for want, given := range map[string]*Given{
		"no inputs":            {},
		"shape [] has no rows": {Rows: []tensor.Tensor{{Name: "y", DataType: tensor.Bool}}},
		`input "y" has 1 rows`: {Rows: []tensor.Tensor{x, mustOf(t, "y", []float32{1}, 1, 1)}},
		"query 1: no inputs":   {Queries: []*oip.Request{{}}},
		"3 strings in 2 rows": {
			Rows: []tensor.Tensor{
				{Name: "s", DataType: tensor.Bytes, Shape: []int64{2}, Data: words("a", "b", "c")},
			},
		},
		"last string is cut": {
			Rows: []tensor.Tensor{
				{Name: "s", DataType: tensor.Bytes, Shape: []int64{1}, Data: []byte{1}},
			},
		},
		"0 strings in 1 rows": {
			Rows: []tensor.Tensor{{Name: "s", DataType: tensor.Bytes, Shape: []int64{1}}},
		},
		"shape [0] has no rows": {
			Queries: []*oip.Request{{Inputs: []tensor.Tensor{{Name: "x", Shape: []int64{0}}}}},
		},
	} {
		_, err := NewTargetModel(t.Context(), s, "m", ModelOptions{
			LargestBatchSize: 1000, QoSTarget: time.Second, Given: given,
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}
