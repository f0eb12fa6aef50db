package evaluate

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// A Subject is a loaded model.
type Subject struct {
	Version *models.Version
	// Run runs a batch and calls use with the outputs, which are valid until use returns. It is
	// called concurrently.
	Run func(ctx context.Context, inputs []tensor.Tensor,
		use func(outputs []tensor.Tensor) error) error
}

// Rows are inputs of models of one signature.
type Rows interface {
	// Count is how many rows there are.
	Count() int
	// Batch returns the rows [first, first+n) as inputs in the order of the version's.
	Batch(v *models.Version, first, n int) ([]tensor.Tensor, error)
}

// A Score is how well a model answers.
type Score struct {
	Model  string
	Metric models.Metric
	Value  float64
	// Error is the standard error of Value, for the choice of rows and labels.
	Error float64
	// Lost is the score of the model Beside, less Value, and LostError its standard error. As both
	// answered the same rows, it is less than the errors of the scores suggest.
	Lost, LostError float64
	// Beside is the teacher, or the model with the best score.
	Beside string
	Rows   int
}

// batch is how many rows run at a time. It is a multiple of items. Chosen: a run of so many is
// efficient, and below the largest batch size that models have by default.
const batch = 500

// answers are the answers of a model by output, in the order of the first subject's, and row: the
// last element of each row of an output. Of probabilities of two classes that is the second one,
// whose label is 1.
type answers [][]float32

// collectAnswers runs all rows through the subjects. progress, if not nil, is called with the rows
// that are done times subjects, and their total, by one goroutine at a time.
func collectAnswers(ctx context.Context, subjects []Subject, rows Rows,
	progress func(done, total int64)) ([]answers, error) {
	n := rows.Count()
	all := make([]answers, len(subjects))
	places := make([][]int, len(subjects))
	for s := range all {
		var err error
		if places[s], err = placesOf(subjects[s].Version, subjects[0].Version); err != nil {
			return nil, err
		}
		all[s] = make(answers, len(places[s]))
		for o := range all[s] {
			all[s][o] = make([]float32, n)
		}
	}
	var mu sync.Mutex
	var done int64
	g, running := errgroup.WithContext(ctx)
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for first := 0; first < n && running.Err() == nil; first += batch {
		g.Go(func() error {
			count := min(batch, n-first)
			for i, s := range subjects {
				inputs, err := rows.Batch(s.Version, first, count)
				if err != nil {
					return err
				}
				err = s.Run(running, inputs, func(outputs []tensor.Tensor) error {
					return all[i].copyAnswers(s.Version, outputs, places[i], first, count)
				})
				if err != nil {
					return fmt.Errorf("run %s on rows %d to %d: %w", s.Version, first,
						first+count-1,
						err)
				}
				if progress != nil {
					mu.Lock()
					done += int64(count)
					progress(done, int64(n)*int64(len(subjects)))
					mu.Unlock()
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return all, ctx.Err()
}

// placesOf returns, for each output of v, the index of the same output of first; outputs may be in
// any order.
func placesOf(v, first *models.Version) (places []int, err error) {
	if len(v.Outputs) != len(first.Outputs) {
		return nil, fmt.Errorf("%s has %d outputs, %s has %d", v, len(v.Outputs), first,
			len(first.Outputs))
	}
	for _, out := range v.Outputs {
		at := slices.IndexFunc(first.Outputs,
			func(p models.TensorSpec) bool { return p.Name == out.Name })
		if at < 0 {
			return nil, fmt.Errorf("%s has output %q, %s does not", v, out.Name, first)
		}
		places = append(places, at)
	}
	return places, nil
}

// copyAnswers copies the answers of the rows [first, first+n) from outputs, each to its place.
func (a answers) copyAnswers(v *models.Version, outputs []tensor.Tensor, places []int, first,
	n int) error {
	for o, out := range outputs {
		values, err := toFloats(out)
		if err != nil {
			return fmt.Errorf("output %q: %w", v.Outputs[o].Name, err)
		}
		if len(values) == 0 || len(values)%n != 0 {
			return fmt.Errorf("output %q: got %d values for %d rows", v.Outputs[o].Name,
				len(values),
				n)
		}
		width := len(values) / n
		for i := range n {
			x := values[i*width+width-1]
			if math.IsNaN(float64(x)) {
				return fmt.Errorf("output %q of row %d is NaN", v.Outputs[o].Name, first+i)
			}
			a[places[o]][first+i] = x
		}
	}
	return nil
}

func toFloats(t tensor.Tensor) ([]float32, error) {
	switch t.DataType {
	case tensor.FP32:
		return tensor.Values[float32](t)
	case tensor.FP64:
		values, err := tensor.Values[float64](t)
		narrow := make([]float32, len(values))
		for i, v := range values {
			narrow[i] = float32(v)
		}
		return narrow, err
	}
	return nil, fmt.Errorf("it holds %s, expected %s or %s", t.DataType, tensor.FP32, tensor.FP64)
}

// AgainstTeacher scores the subjects on rows that the first of them, the teacher, labels. If its
// answers are probabilities, a row's label is 1 with that probability, and the score is the AUC: of
// several outputs the mean. Otherwise the score is how many of the ten items of a hundred that the
// teacher rates highest are among the model's ten, as a share.
func AgainstTeacher(ctx context.Context, subjects []Subject, rows Rows, seed uint64,
	progress func(done, total int64)) ([]Score, error) {
	all, err := collectAnswers(ctx, subjects, rows, progress)
	if err != nil {
		return nil, err
	}
	teacher := all[0]
	if !teacher.areProbabilities() {
		if rows.Count() < items {
			return nil, fmt.Errorf("got %d rows, expected at least %d to rank", rows.Count(), items)
		}
		return makeScores(subjects, all, models.Top10, true, func(o int, a []float32) (components,
			error) {
			return topTenShare(teacher[o], a), nil
		})
	}
	labels := make([][]bool, len(teacher))
	for o, p := range teacher {
		random := rand.New(rand.NewPCG(seed, math.MaxUint64-uint64(o)))
		labels[o] = make([]bool, len(p))
		for i := range p {
			labels[o][i] = random.Float32() < p[i]
		}
	}
	return againstLabels(subjects, all, labels, true)
}

// AgainstLabels scores the subjects by their AUC on labelled rows: labels are by output and row.
func AgainstLabels(ctx context.Context, subjects []Subject, rows Rows, labels [][]bool,
	progress func(done, total int64)) ([]Score, error) {
	for _, s := range subjects {
		if len(labels) != len(s.Version.Outputs) {
			return nil, fmt.Errorf("got labels for %d outputs, %s has %d", len(labels), s.Version,
				len(s.Version.Outputs))
		}
	}
	all, err := collectAnswers(ctx, subjects, rows, progress)
	if err != nil {
		return nil, err
	}
	return againstLabels(subjects, all, labels, false)
}

func againstLabels(subjects []Subject, all []answers, labels [][]bool, taught bool) ([]Score,
	error) {
	return makeScores(subjects, all, models.AUC, taught, func(o int, a []float32) (components,
		error) {
		return aucComponents(labels[o], a)
	})
}

// makeScores makes the scores from what measure says of each output: the score is their mean.
// taught is whether the first subject is the teacher.
func makeScores(subjects []Subject, all []answers, metric models.Metric, taught bool,
	measure func(output int, a []float32) (components, error)) ([]Score, error) {
	parts := make([][]components, len(subjects)) // by subject and output
	list := make([]Score, len(subjects))
	beside := 0
	for i, s := range subjects {
		outputs := float64(len(all[i]))
		list[i] = Score{Model: s.Version.Model, Metric: metric, Rows: len(all[i][0])}
		for o, a := range all[i] {
			c, err := measure(o, a)
			if err != nil {
				return nil, fmt.Errorf("output %q: %w", subjects[0].Version.Outputs[o].Name, err)
			}
			parts[i] = append(parts[i], c)
			list[i].Value += c.value / outputs
			list[i].Error += c.scoreVariance() / (outputs * outputs)
		}
		list[i].Error = math.Sqrt(list[i].Error)
		if !taught && list[i].Value > list[beside].Value {
			beside = i
		}
	}
	for i := range list {
		s := &list[i]
		s.Beside, s.Lost = list[beside].Model, list[beside].Value-s.Value
		for o, c := range parts[i] {
			outputs := float64(len(parts[i]))
			s.LostError += parts[beside][o].subtract(c).scoreVariance() / (outputs * outputs)
		}
		s.LostError = math.Sqrt(s.LostError)
	}
	return list, nil
}

// areProbabilities reports whether all answers are in [0, 1].
func (a answers) areProbabilities() bool {
	for _, output := range a {
		if slices.ContainsFunc(output, func(v float32) bool { return !(v >= 0 && v <= 1) }) {
			return false
		}
	}
	return true
}

// Latencies returns the median time of runs of the given batch sizes, by subject and size. The runs
// of the subjects take turns, so that what else the machine does meets all of them. A size that a
// model refuses has the latency 0.
func Latencies(ctx context.Context, subjects []Subject, rows Rows, sizes []int) ([][]time.Duration,
	error) {
	medians := make([][]time.Duration, len(subjects))
	for _, size := range sizes {
		took := make([][]time.Duration, len(subjects))
		for round := range rounds {
			for i, s := range subjects {
				if size > s.Version.Config.LargestBatchSize {
					continue
				}
				first := round * size % max(1, rows.Count()-size+1)
				inputs, err := rows.Batch(s.Version, first, size)
				if err != nil {
					return nil, err
				}
				start := time.Now()
				err = s.Run(ctx, inputs, func([]tensor.Tensor) error {
					took[i] = append(took[i], time.Since(start))
					return nil
				})
				if err != nil {
					return nil, fmt.Errorf("run %s at batch size %d: %w", s.Version, size, err)
				}
			}
		}
		for i := range took {
			median := time.Duration(0)
			if len(took[i]) > 0 {
				slices.Sort(took[i])
				median = took[i][len(took[i])/2]
			}
			medians[i] = append(medians[i], median)
		}
	}
	return medians, nil
}

// rounds is how many runs Latencies takes the median of. Chosen, odd so that the median is one of
// them.
const rounds = 41
