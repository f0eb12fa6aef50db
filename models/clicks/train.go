package clicks

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tensor/npz"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/evaluate"
	"github.com/muster-serve/muster/models/onnx"
)

// generator is the name of this package and the version of its output.
const generator = "muster clicks 1"

// FamilyName is the name of the family.
const FamilyName = "clicks"

// Options are the options of Train.
type Options struct {
	// Seed determines the teacher, the rows and the first weights.
	Seed uint64
	// Rows is how many rows each member is trained on, once; 0 means DefaultRows.
	Rows int
	// TestRows is how many other rows it is measured on; 0 means DefaultTestRows.
	TestRows int
	// Progress, if set, is called with the work that is done and its total, by one goroutine at a
	// time. The unit is a row for a member with one parameter.
	Progress func(done, total int64)
}

// Defaults of Options.
const (
	DefaultRows     = 4 << 20
	DefaultTestRows = 200_000
)

const (
	// checkpoints is how many points a learning curve has. Chosen: they show whether learning has
	// levelled off, and each costs a test.
	checkpoints = 8
	// curveRows is how many of the test rows its points are measured on.
	curveRows = 20_000
)

// A TrainedFamily is models that were trained to answer the same question.
type TrainedFamily struct {
	Members []TrainedModel
	// BestAUC is that of the teacher's own probabilities on the test rows: no model has a higher
	// one, but by chance.
	BestAUC float64
	options Options
	test    *rows
}

// A TrainedModel is a trained model.
type TrainedModel struct {
	// Model is its name, such as "clicks-l".
	Model string
	Size  Size
	// Parameters is how many numbers it has learnt.
	Parameters int
	// Curve is its learning curve.
	Curve []Point
	// Took is how long its training took.
	Took time.Duration
	net  *net
}

// A Point is a point of a learning curve: the AUC on 20,000 test rows after training on Rows rows.
type Point struct {
	Rows int
	AUC  float64
}

// Validate returns the fault of o, or nil.
func (o Options) Validate() error {
	rows, test := cmp.Or(o.Rows, DefaultRows), cmp.Or(o.TestRows, DefaultTestRows)
	if rows < checkpoints*miniBatch || test < 1000 {
		return fmt.Errorf("train %s: got %d rows to learn and %d to test, expected at least %d "+
			"and 1000", FamilyName, rows, test, checkpoints*miniBatch)
	}
	return nil
}

// Train trains the family. It blocks for a minute or more.
func Train(ctx context.Context, o Options) (*TrainedFamily, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Rows, o.TestRows = cmp.Or(o.Rows, DefaultRows), cmp.Or(o.TestRows, DefaultTestRows)
	return newTeacher(o.Seed).trainFamily(ctx, o)
}

// trainFamily trains the family on the teacher's rows. o has no zeros.
func (t *teacher) trainFamily(ctx context.Context, o Options) (*TrainedFamily, error) {
	f := &TrainedFamily{options: o, test: newRows(o.TestRows)}
	t.fill(f.test, toTest)
	var err error
	if f.BestAUC, err = evaluate.AUC(f.test.label, f.test.probability); err != nil {
		return nil, fmt.Errorf("train %s: %w", FamilyName, err)
	}
	test := f.test.slicePart(0, min(o.TestRows, curveRows))
	learn := newRows(o.Rows)
	t.fill(learn, toTrain)
	var total, done int64
	for _, size := range Sizes {
		n := newNet(size, o.Seed)
		f.Members = append(f.Members, TrainedModel{
			Model: FamilyName + "-" + size.Name, Size: size, Parameters: len(n.weights), net: n,
		})
		total += int64(len(n.weights)+fixedCost) * int64(o.Rows)
	}
	for i := range f.Members {
		m := &f.Members[i]
		start := time.Now()
		step := o.Rows / checkpoints
		for c := range checkpoints {
			part := learn.slicePart(c*step, step)
			err := m.net.trainPass(ctx, part, func(rows int) {
				if done += int64(rows) * int64(m.Parameters+fixedCost); o.Progress != nil {
					o.Progress(done, total)
				}
			})
			if err != nil {
				return nil, fmt.Errorf("train %s: %w", m.Model, err)
			}
			auc, err := evaluate.AUC(test.label, m.net.answerRows(test))
			if err != nil {
				return nil, fmt.Errorf("train %s: %w", m.Model, err)
			}
			m.Curve = append(m.Curve, Point{(c + 1) * step, auc})
		}
		m.Took = time.Since(start)
	}
	return f, nil
}

// fixedCost is the work on a row, but for the products with parameters, in the unit of progress.
const fixedCost = 500

// slicePart is n rows from first on.
func (r *rows) slicePart(first, n int) *rows {
	return &rows{
		ids: r.ids[first*features:][:n*features], dense: r.dense[first*dense:][:n*dense],
		label: r.label[first:][:n],
	}
}

// TestFile is the name of the file with the test rows.
const TestFile = "clicks-test.npz"

// Write installs the members in the repository dir, and writes the test rows to TestFile in it.
// written says of each member whether it was not there already; see models.Install.
func (f *TrainedFamily) Write(dir string, overwrite bool) (written []bool, err error) {
	for _, m := range f.Members {
		w, err := models.Install(dir, m.Model, f.options.provenanceOf(m.Size), overwrite,
			m.write(f))
		if err != nil {
			return written, fmt.Errorf("write model %s: %w", m.Model, err)
		}
		written = append(written, w)
	}
	file, err := os.Create(filepath.Join(dir, TestFile))
	if err != nil {
		return written, err
	}
	if err := npz.Write(file, f.test.asTensors()); err != nil {
		file.Close()
		return written, fmt.Errorf("write %s: %w", file.Name(), err)
	}
	return written, file.Close()
}

func (o Options) provenanceOf(s Size) models.Provenance {
	layers := strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Layers), "[]"), " ", "-")
	if layers == "" {
		layers = "none"
	}
	return models.Provenance{
		Generator:    generator,
		Architecture: fmt.Sprintf("embeddings of %d, layers %s, %d rows", s.Dim, layers, o.Rows),
		Seed:         o.Seed,
	}
}

const (
	denseInput = "dense"
	idsInput   = "ids"
	output     = "probability"
)

// asTensors are the rows as ReadFile of package evaluate takes them.
func (r *rows) asTensors() []tensor.Tensor {
	n := int64(len(r.label))
	all := []tensor.Tensor{
		{Name: denseInput, DataType: tensor.FP32, Shape: []int64{n, dense},
			Data: littleEndian(r.dense)},
		{Name: idsInput, DataType: tensor.Uint8, Shape: []int64{n, features}, Data: r.ids},
		{Name: "label", DataType: tensor.Uint8, Shape: []int64{n}},
	}
	for _, l := range r.label {
		b := byte(0)
		if l {
			b = 1
		}
		all[2].Data = append(all[2].Data, b)
	}
	return all
}

func littleEndian(values []float32) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// write returns the function that writes the member's folder.
func (m TrainedModel) write(f *TrainedFamily) func(folder string) error {
	return func(folder string) error {
		graph := m.net.toONNX(m.Model)
		c := models.DefaultConfig()
		c.QoSTarget = 5 * time.Millisecond
		c.Deadline = 10 * c.QoSTarget
		c.RowsIndependent = true
		c.WarmUp = []int{1, 512}
		c.Family = FamilyName
		p := f.options.provenanceOf(m.Size)
		c.Generated = &p
		for _, port := range graph.Inputs {
			in := models.TensorSpec{Name: port.Name, DataType: port.DataType, Shape: port.Shape}
			if port.Name == idsInput {
				in.IDBounds = []int64{ids}
			}
			c.Inputs = append(c.Inputs, in)
		}
		text, err := c.YAML()
		if err != nil {
			return err
		}
		head := "# Trained by muster. Change what you like; it is read again when it changes.\n"
		version := filepath.Join(folder, "1")
		if err := os.MkdirAll(version, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(version, models.ModelFile), graph.Marshal(),
			0o644); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, models.ConfigFile), append([]byte(head), text...),
			0o644)
	}
}

// toONNX returns the net as an ONNX model.
func (n *net) toONNX(name string) *onnx.Model {
	m := &onnx.Model{
		Name: name, Producer: "muster", ProducerVersion: generator,
		Inputs: []onnx.ValueDescription{
			{Name: denseInput, DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, dense}},
			{Name: idsInput, DataType: tensor.Int64, Shape: []int64{onnx.Dynamic, features}},
		},
		Outputs: []onnx.ValueDescription{
			{Name: output, DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 1}},
		},
	}
	node := func(op, result string, inputs []string, attributes ...onnx.Attribute) string {
		m.Nodes = append(m.Nodes, onnx.Node{
			Op: op, Name: result + "/" + op, Inputs: inputs, Outputs: []string{result},
			Attributes: attributes,
		})
		return result
	}
	weights := func(name string, values []float32, shape ...int64) string {
		m.Initializers = append(m.Initializers, onnx.Initializer{
			Name: name, DataType: tensor.FP32, Shape: shape, Data: littleEndian(values),
		})
		return name
	}
	integers := func(name string, values ...int64) string {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint64(data, uint64(v))
		}
		m.Initializers = append(m.Initializers, onnx.Initializer{
			Name: name, DataType: tensor.Int64, Shape: []int64{int64(len(values))}, Data: data,
		})
		return name
	}
	dim := int64(n.size.Dim)
	table := weights("embeddings", n.embeddingPart(n.weights), features*ids, dim)
	rows := node("Add", "rows", []string{idsInput, integers("offsets", 0, ids, 2*ids, 3*ids)})
	found := node("Gather", "found", []string{table, rows})
	flat := node("Reshape", "embedded", []string{found, integers("flat", 0, features*dim)})
	x := node("Concat", "joined", []string{flat, denseInput},
		onnx.Attribute{Name: "axis", Value: int64(1)})
	for l := range len(n.widths) - 1 {
		w, bias := n.layerPart(n.weights, l)
		layer := fmt.Sprintf("layer_%d", l)
		x = node("Gemm", layer, []string{
			x, weights(layer+".weight", w.Data, int64(w.Rows), int64(w.Cols)),
			weights(layer+".bias", slices.Clone(bias), int64(w.Cols)),
		})
		if l < len(n.widths)-2 {
			x = node("Relu", layer+"/relu", []string{x})
		}
	}
	node("Sigmoid", output, []string{x})
	return m
}
