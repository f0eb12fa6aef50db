package clicks

import (
	"math"
	"math/rand/v2"
	"slices"
)

// The rows: features of ids, each with as many ids, and dense features. Chosen: a model of seconds
// of training learns them, and errs enough for variants to differ.
const (
	features = 4
	ids      = 50
	dense    = 6
)

const (
	teacherDim    = 2
	teacherWidth  = 24
	teacherInputs = features*teacherDim + dense
	zipfExponent  = 1.05
	// logitSpread is the standard deviation of the teacher's logits, and logitMean their mean.
	// Chosen: nearly half of the rows are clicks, and the teacher's own AUC is below 1.
	logitSpread = 3.5
	logitMean   = -.5
)

// A teacher draws rows and their labels.
type teacher struct {
	seed        uint64
	cumulative  [ids]float64
	tables      [features][ids][teacherDim]float64
	first       [teacherWidth][teacherInputs]float64
	second      [teacherWidth][teacherWidth]float64
	last        [teacherWidth]float64
	mean, scale float64 // of the logits before they are scaled
}

func newTeacher(seed uint64) *teacher {
	t := &teacher{seed: seed, scale: 1}
	random := rand.New(rand.NewPCG(seed, 1))
	total := 0.0
	for i := range t.cumulative {
		total += math.Pow(float64(i+1), -zipfExponent)
		t.cumulative[i] = total
	}
	for i := range t.cumulative {
		t.cumulative[i] /= total
	}
	for f := range t.tables {
		for i := range t.tables[f] {
			for d := range t.tables[f][i] {
				t.tables[f][i][d] = random.NormFloat64()
			}
		}
	}
	for o := range t.first {
		for i := range t.first[o] {
			t.first[o][i] = random.NormFloat64() * 1.3 / math.Sqrt(teacherInputs)
		}
		for i := range t.second[o] {
			t.second[o][i] = random.NormFloat64() * 1.8 / math.Sqrt(teacherWidth)
		}
		t.last[o] = random.NormFloat64()
	}
	// Scale the logits by those of some rows.
	random = rand.New(rand.NewPCG(seed, 2))
	sum, squares := 0.0, 0.0
	const sample = 16 * block
	for range sample {
		_, x := t.draw(random)
		z := t.logitOf(&x)
		sum += z
		squares += z * z
	}
	t.mean = sum / sample
	t.scale = logitSpread / math.Sqrt(squares/sample-t.mean*t.mean)
	return t
}

// Rows to train on and rows to test with are drawn from different parts of the random numbers.
const (
	toTrain uint64 = (iota + 1) << 40
	toTest
)

// block is how many rows are drawn with one source of random numbers.
const block = 4096

// rows are labelled rows.
type rows struct {
	ids         []uint8   // features a row
	dense       []float32 // dense a row
	label       []bool
	probability []float32 // the teacher's
}

func newRows(n int) *rows {
	return &rows{
		ids: make([]uint8, n*features), dense: make([]float32, n*dense), label: make([]bool, n),
		probability: make([]float32, n),
	}
}

// draw draws the ids of a row, and the teacher's inputs.
func (t *teacher) draw(random *rand.Rand) (chosen [features]uint8, x [teacherInputs]float64) {
	for f := range features {
		id, _ := slices.BinarySearch(t.cumulative[:], random.Float64())
		id = min(id, ids-1)
		chosen[f] = uint8(id)
		copy(x[f*teacherDim:], t.tables[f][id][:])
	}
	for d := range dense {
		x[features*teacherDim+d] = float64(float32(random.NormFloat64()))
	}
	return chosen, x
}

// fill draws all rows of r, of the given purpose, on all cores.
func (t *teacher) fill(r *rows, purpose uint64) {
	n := len(r.label)
	runParallel((n+block-1)/block, func(b int) {
		random := rand.New(rand.NewPCG(t.seed, purpose+uint64(b)))
		for i := b * block; i < min(n, (b+1)*block); i++ {
			chosen, x := t.draw(random)
			copy(r.ids[i*features:], chosen[:])
			for d := range dense {
				r.dense[i*dense+d] = float32(x[features*teacherDim+d])
			}
			p := sigmoid((t.logitOf(&x)-t.mean)*t.scale + logitMean)
			r.probability[i] = float32(p)
			r.label[i] = random.Float64() < p
		}
	})
}

func (t *teacher) logitOf(x *[teacherInputs]float64) float64 {
	var h, g [teacherWidth]float64
	for o := range h {
		sum := 0.0
		for i, v := range x {
			sum += t.first[o][i] * v
		}
		h[o] = math.Tanh(sum)
	}
	z := 0.0
	for o := range g {
		sum := 0.0
		for i, v := range h {
			sum += t.second[o][i] * v
		}
		z += t.last[o] * math.Tanh(sum)
	}
	return z
}

func sigmoid(z float64) float64 { return 1 / (1 + math.Exp(-z)) }
