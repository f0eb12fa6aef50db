package kernels_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// DLRMs that PyTorch exported (testdata/export.py) are recognised, or the log says why not; and they
// give what they give without kernels.
func TestPyTorch(t *testing.T) {
	for name, want := range map[string]string{
		"sum-script":       "tables=3 operators=1 ",
		"sum-dynamo":       "tables=3 operators=1 ",
		"mean-dynamo":      "tables=3 operators=1 ",
		"single-script":    "tables=3 operators=1 ",
		"sum-apart-script": "tables=3 operators=1 ",
		"stack-script":     "tables=3 operators=3 ", // each has an Unsqueeze before the Concat
		"bag-sum-script":   "tables=3 operators=1 ",
		"bag-sum-dynamo":   "tables=3 operators=1 ",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".onnx")
			log := compare(t, path, modelInputs(t, path, 5), false)
			lines := regexp.MustCompile(`.*do the lookups.*`).FindAllString(log, -1)
			if len(lines) != 1 || !strings.Contains(lines[0], want) ||
				strings.Contains(lines[0], "WARN") {
				t.Errorf("logged %q, want one line with %q", lines, want)
			}
		})
	}
}

// modelInputs are random inputs of a model of testdata.
func modelInputs(t *testing.T, path string, batch int64) []tensor.Tensor {
	t.Helper()
	v, err := models.FileVersion(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 3))
	var all []tensor.Tensor
	for _, p := range v.Inputs {
		in := tensor.Tensor{Name: p.Name, DataType: p.DataType, Shape: append([]int64{batch},
			p.Shape[1:]...)}
		n, err := tensor.Elements(in.Shape)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if p.DataType == tensor.FP32 {
				in.Data = binary.LittleEndian.AppendUint32(in.Data,
					math.Float32bits(random.Float32()))
			} else {
				in.Data = binary.LittleEndian.AppendUint64(in.Data, uint64(random.Int64N(50)))
			}
		}
		all = append(all, in)
	}
	return all
}
