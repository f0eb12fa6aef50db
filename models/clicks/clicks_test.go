package clicks

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/evaluate"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// small is enough to learn something, in some seconds; tiny is not.
var (
	small = Options{Seed: 3, Rows: 32_768, TestRows: 20_000}
	tiny  = Options{Seed: 3, Rows: 8 * miniBatch, TestRows: 1000}
)

// ours is the teacher of their seed. Most of the time of a small training is a teacher's start.
var ours = sync.OnceValue(func() *teacher { return newTeacher(small.Seed) })

func train(t *testing.T, o Options) *TrainedFamily {
	t.Helper()
	f, err := ours().trainFamily(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The same seed trains the same bytes on any number of cores, another seed others.
func TestTrainIsDeterministic(t *testing.T) {
	files := func(f *TrainedFamily) (all []byte) {
		for _, m := range f.Members {
			all = append(all, m.net.toONNX(m.Model).Marshal()...)
		}
		return all
	}
	o := tiny
	first := train(t, o)
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(5))
	second := train(t, o)
	if !bytes.Equal(files(first), files(second)) {
		t.Error("the same seed trains other bytes on another number of cores")
	}
	for i, m := range first.Members {
		if diff := cmp.Diff(m.Curve, second.Members[i].Curve); diff != "" {
			t.Errorf("%s: other learning curve: %s", m.Model, diff)
		}
	}
	o.Seed++
	other, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(files(first), files(other)) {
		t.Error("another seed trains the same bytes")
	}
}

// Members learn: each is far better than chance, none is better than the teacher, and a larger one
// is better than the smallest.
func TestTrainLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("it trains for seconds")
	}
	done, total := int64(0), int64(0)
	o := small
	o.Progress = func(d, all int64) {
		if d < done || d > all {
			t.Errorf("progress %d of %d after %d", d, all, done)
		}
		done, total = d, all
	}
	f := train(t, o)
	if done != total || done == 0 {
		t.Errorf("progress ended at %d of %d", done, total)
	}
	var last []float64
	for _, m := range f.Members {
		if len(m.Curve) != checkpoints || m.Curve[checkpoints-1].Rows != o.Rows {
			t.Errorf("%s: got learning curve %v", m.Model, m.Curve)
		}
		auc := m.Curve[checkpoints-1].AUC
		if auc < .8 || auc > f.BestAUC {
			t.Errorf("%s: got AUC %v, want .8 to the teacher's %v", m.Model, auc, f.BestAUC)
		}
		last = append(last, auc)
	}
	if last[len(last)-1] < last[0]+.01 { // so few rows do not separate the others
		t.Errorf("got AUCs %v, want the last above the first by at least .01", last)
	}
}

// The gradients are those that small changes of parameters show.
func TestGradients(t *testing.T) {
	r := newRows(piece)
	ours().fill(r, toTrain)
	n := newNet(Size{"", 3, []int{5, 4}}, 1)
	s := n.newScratch()
	loss := func() float64 {
		n.computeLogits(s, r, 0, piece)
		total := 0.0
		for i, z := range s.values[len(s.values)-1].Data {
			if r.label[i] {
				z = -z
			}
			total += math.Log1p(math.Exp(float64(z))) / miniBatch
		}
		return total
	}
	loss()
	n.computeGradients(s, r, 0, piece)
	gradients := slices.Clone(s.gradients)
	checked, wrong := 0, 0
	for i := range n.weights {
		const h = 2e-3
		before := n.weights[i]
		n.weights[i] = before + h
		up := loss()
		n.weights[i] = before - h
		down := loss()
		n.weights[i] = before
		want := (up - down) / (2 * h)
		if got := float64(gradients[i]); math.Abs(got-want) > 2e-4+.05*math.Abs(want) {
			t.Logf("parameter %d: got %v, want %v", i, got, want)
			wrong++
		}
		if want != 0 {
			checked++
		}
	}
	if wrong > len(n.weights)/50 { // a few changes move a ReLU across 0
		t.Errorf("%d of %d parameters have a wrong gradient", wrong, len(n.weights))
	}
	if checked < len(n.weights)/4 {
		t.Errorf("only %d of %d parameters have a gradient", checked, len(n.weights))
	}
}

// ONNX Runtime answers as the nets do, and the written test rows are those of the learning curve.
func TestWrite(t *testing.T) {
	ort := runtimetest.Open(t)
	f := train(t, tiny)
	dir := t.TempDir()
	written, err := f.Write(dir, false)
	if err != nil || slices.Contains(written, false) {
		t.Fatalf("got %v, %v, want all written", written, err)
	}
	var subjects []evaluate.Subject
	var versions []*models.Version
	for _, m := range f.Members {
		v, err := models.ReadNewest(dir, m.Model)
		if err != nil {
			t.Fatal(err)
		}
		if v.Config.QoSTarget.Milliseconds() != 5 || v.Config.Family != FamilyName {
			t.Errorf("got configuration %+v", v.Config)
		}
		loaded, err := ort.Load(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		defer loaded.Close()
		versions = append(versions, v)
		subjects = append(subjects, evaluate.Subject{Version: v, Run: func(ctx context.Context,
			inputs []tensor.Tensor, use func([]tensor.Tensor) error) error {
			r, err := loaded.Run(ctx, inputs)
			if err != nil {
				return err
			}
			defer r.Release()
			return use(r.Outputs)
		}})
	}
	if families, apart := models.Families(versions); len(families) != 1 || len(apart) != 0 {
		t.Errorf("got families %v, apart %v, want one", families, apart)
	}
	rows, labels, err := evaluate.ReadFile(filepath.Join(dir, TestFile), versions[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := evaluate.AgainstLabels(t.Context(), subjects, rows, labels, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range scores {
		want := f.Members[i].Curve[checkpoints-1].AUC
		if math.Abs(s.Value-want) > 1e-5 {
			t.Errorf("%s: got AUC %v with ONNX Runtime, want %v", s.Model, s.Value, want)
		}
	}

	if written, err = f.Write(dir, false); err != nil || slices.Contains(written, true) {
		t.Errorf("a second time: got %v, %v, want all there already", written, err)
	}
	f.options.Seed++
	if _, err := f.Write(dir, false); !errors.Is(err, models.ErrExists) {
		t.Errorf("another seed: got error %v, want %v", err, models.ErrExists)
	}
	if _, err := f.Write(dir, true); err != nil {
		t.Errorf("another seed, overwriting: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, TestFile)); err != nil {
		t.Error(err)
	}
}

func TestTrainFaults(t *testing.T) {
	_, err := Train(t.Context(), Options{Rows: 10})
	if err == nil || !strings.Contains(err.Error(), "got 10 rows to learn") {
		t.Errorf("few rows: got error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ours().trainFamily(ctx, tiny); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
}
