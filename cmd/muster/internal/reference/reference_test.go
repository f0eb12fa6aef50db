package reference

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// A server answers with ONNX Runtime, by parts of the given size or whole; in place of a fleet.
type server struct {
	localModel
	parts    int  // rows of a part; 0: queries are whole
	backward bool // it joins parts in the wrong order
}

func (s server) ModelMetadata(context.Context, string,
	string) (*inference.ModelMetadataResponse, error) {
	bounds := map[string][]int64{}
	for _, p := range s.version.Inputs {
		if len(p.IDBounds) > 0 {
			bounds[p.Name] = p.IDBounds
		}
	}
	m := &inference.ModelMetadataResponse{Name: s.version.Model, Versions: []string{"1"},
		Properties: oip.Properties{
			QoSTarget: s.version.Config.QoSTarget, LargestBatchSize: s.version.Config.LargestBatchSize,
			IDBounds: bounds, Deadline: time.Hour, // however busy the machine
		}.Map()}
	for _, p := range s.version.Inputs {
		m.Inputs = append(m.Inputs, &inference.ModelMetadataResponse_TensorMetadata{
			Name: p.Name, Datatype: string(p.DataType), Shape: p.Shape,
		})
	}
	return m, nil
}

func (s server) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	rows := int(req.Inputs[0].Shape[0])
	if s.parts == 0 || rows <= s.parts {
		return s.localModel.Infer(ctx, req)
	}
	sizes := []int{s.parts, rows - s.parts}
	queries, err := req.Split(sizes)
	if err != nil {
		return nil, err
	}
	var answers []*oip.Response
	for _, q := range queries {
		resp, err := s.Infer(ctx, q)
		if err != nil {
			return nil, err
		}
		answers = append(answers, resp)
	}
	if s.backward {
		slices.Reverse(answers)
		slices.Reverse(sizes)
	}
	return oip.Join(answers, sizes)
}

// TestVerify: what ONNX Runtime answers to a query in parts agrees with what it answers to the
// whole; rows in the wrong order are found out.
func TestVerify(t *testing.T) {
	executor := runtimetest.Open(t)
	dir := t.TempDir()
	for _, name := range []string{"ncf", "wnd"} {
		if _, err := zoo.Generate(t.Context(), dir, name,
			zoo.Options{Scale: zoo.Small}); err != nil {
			t.Fatal(err)
		}
		v, err := models.ReadNewest(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := executor.Load(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			parts    int
			backward bool
		}{{0, false}, {7, false}, {100, false}, {7, true}} {
			s := server{localModel{v, loaded}, tt.parts, tt.backward}
			m, err := bench.NewTargetModel(t.Context(), s, name, bench.ModelOptions{
				LargestBatchSize: 300, Seed: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := verify(t.Context(), s, executor, dir, []*bench.TargetModel{m}); err != nil {
				t.Fatal(err)
			}
			report, err := bench.Run(t.Context(), s, []*bench.TargetModel{m}, bench.Config{
				Queries: sizes(name, 300, 1, 8, 33, 250, 299),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := report.Wrong(); (err != nil) != tt.backward {
				t.Errorf("%s by parts of %d rows, backward %v: %v", name, tt.parts, tt.backward,
					err)
			} else if got := report.Models[0]; !tt.backward && got.Verified != 6 {
				t.Errorf("%s by parts of %d rows: %+v", name, tt.parts, got)
			}
		}
		if err := loaded.Close(); err != nil {
			t.Error(err)
		}
	}
}

// sizes yields queries of these batch sizes.
func sizes(model string, all ...int) iter.Seq[workload.Query] {
	return func(yield func(workload.Query) bool) {
		for _, n := range all {
			if !yield(workload.Query{Model: model, BatchSize: n}) {
				return
			}
		}
	}
}

// TestVerifyRefuses: a model whose rows are not independent, or whose inputs are others, is
// refused.
func TestVerifyRefuses(t *testing.T) {
	v := &models.Version{Model: "ncf", Number: 1, Inputs: []models.TensorSpec{{Name: "ids"}}}
	req := &oip.Request{Inputs: []tensor.Tensor{{Name: "dense"}}}
	if _, err := (localModel{version: v}).Infer(t.Context(), req); err == nil ||
		!strings.Contains(fmt.Sprint(err), `takes an input "ids"`) {
		t.Errorf("got %v, want an error that names the input", err)
	}
}
