package kernels_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// bagInputs are random inputs of a model of testdata with nn.EmbeddingBags, for so many bags, of which
// some are empty.
func bagInputs(t testing.TB, v *models.Version, random *rand.Rand, bags int64) (all []tensor.Tensor) {
	t.Helper()
	sizes := map[byte]int64{} // of the values, by the name's first letter
	for _, p := range v.Inputs {
		shape := []int64{bags}
		if len(p.Shape) == 2 {
			shape = append(shape, p.Shape[1])
		}
		in := tensor.Tensor{Name: p.Name, DataType: p.DataType, Shape: shape}
		number := func() int64 { return random.Int64N(100) - 50 } // of 50 rows or more
		switch _, kind, _ := strings.Cut(p.Name, "_"); kind {
		case "values":
			sizes[p.Name[0]] = random.Int64N(4 * (bags + 1))
			shape[0] = sizes[p.Name[0]]
		case "weights":
			if len(shape) == 1 {
				shape[0] = sizes[p.Name[0]]
			}
		case "offsets":
			end, at, next := sizes[p.Name[0]], int64(-1), int64(0)
			if hasLast(v) {
				shape[0]++
			}
			number = func() int64 {
				at++
				if next = min(end, next+random.Int64N(4)); at == 0 {
					next = 0
				} else if at == bags {
					next = end
				}
				return next
			}
		}
		n, err := tensor.Elements(shape)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if p.DataType == tensor.FP32 {
				in.Data = binary.LittleEndian.AppendUint32(in.Data, math.Float32bits(random.Float32()-.5))
			} else {
				in.Data = binary.LittleEndian.AppendUint64(in.Data, uint64(number()))
			}
		}
		all = append(all, in)
	}
	return all
}

// hasLast reports whether the model of a file has include_last_offset.
func hasLast(v *models.Version) bool {
	switch filepath.Base(v.Path) {
	case "bags-sum-weights-script.onnx", "bags-mean-script.onnx", "bags-sum-dynamo.onnx",
		"bags-mean-last-dynamo.onnx", "bags-max-dynamo.onnx":
		return true
	}
	return false
}

// TestEmbeddingBags: nn.EmbeddingBag as both of PyTorch's exporters write it is one operator for all
// tables, with the answers of the loop; one with a padding index stays.
func TestEmbeddingBags(t *testing.T) {
	paths, err := filepath.Glob("testdata/*s-*.onnx")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".onnx")
		if !strings.HasPrefix(name, "bags-") && !strings.HasPrefix(name, "rows-") {
			continue
		}
		tried++
		t.Run(name, func(t *testing.T) {
			v, err := models.FileVersion(path)
			if err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(5, 5))
			want := "tables=2 operators=1 "
			if strings.Contains(name, "padding") {
				want = "in a way that is not known"
			}
			for _, bags := range []int64{1, 40} {
				log := compare(t, path, bagInputs(t, v, random, bags), false)
				lines := regexp.MustCompile(`.*do the lookups.*`).FindAllString(log, -1)
				if len(lines) != 1 || !strings.Contains(lines[0], want) ||
					strings.Contains(lines[0], "WARN") {
					t.Fatalf("logged %q, want one line with %q", lines, want)
				}
			}
		})
	}
	if tried != 14 {
		t.Errorf("%d models, want 14", tried)
	}
}

// TestOtherLoops: a loop that differs in one number is not taken for what it is not.
func TestOtherLoops(t *testing.T) {
	number := regexp.MustCompile(`(?s)\x4a\x08.{8}`) // raw_data of one INT64
	rewritten, other := 0, 0
	for _, name := range []string{"bags-sum-weights-script", "bags-mean-dynamo", "rows-max-script"} {
		file, err := os.ReadFile(filepath.Join("testdata", name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		all := number.FindAllIndex(file, -1)
		if strings.HasSuffix(name, "-script") { // the second table is as the first
			all = all[:len(all)/2]
		}
		for _, at := range all {
			for _, by := range []int64{-1, 1} {
				changed := bytes.Clone(file)
				was := binary.LittleEndian.Uint64(changed[at[0]+2:])
				if was == math.MaxInt64 && by > 0 { // then ONNX Runtime itself joins bags with no bags
					continue
				}
				binary.LittleEndian.PutUint64(changed[at[0]+2:], was+uint64(by))
				// The name says which inputs it has.
				path := filepath.Join(t.TempDir(), name+".onnx")
				if err := os.WriteFile(path, changed, 0o600); err != nil {
					t.Fatal(err)
				}
				v, err := models.FileVersion(path)
				if err != nil {
					continue
				}
				var text strings.Builder
				with, without := executors(t, &text)
				m, err := without.Load(context.Background(), v)
				if err != nil {
					continue
				}
				m.Close()
				if m, err = with.Load(context.Background(), v); err != nil {
					t.Errorf("%s with %d in place of %d: %v", name, int64(was)+by, was, err)
					continue
				}
				m.Close()
				if strings.Contains(text.String(), "Muster's operators") {
					rewritten++
				} else {
					other++
				}
				random := rand.New(rand.NewPCG(6, 6))
				t.Run(fmt.Sprintf("%s/%d/%d", name, at[0], by), func(t *testing.T) {
					compareRuns(t, path, bagInputs(t, v, random, 6), false) // an error too is an answer
				})
			}
		}
	}
	if rewritten == 0 || other == 0 {
		t.Errorf("%d loops are operators, and %d are not, want some of both", rewritten, other)
	}
	t.Logf("%d loops are operators, %d are not", rewritten, other)
}

// BenchmarkEmbeddingBags: the processor time of a run with the loops of nn.EmbeddingBag, and of one with
// Muster's operator, in turns; medians of nine.
func BenchmarkEmbeddingBags(b *testing.B) {
	for _, name := range []string{
		"bags-sum-script", "bags-sum-weights-script", "bags-max-script", "bags-sum-dynamo",
		"bags-mean-dynamo", "rows-mean-dynamo", "rows-sum-weights-script",
	} {
		for _, bags := range []int64{1, 64, 512} {
			b.Run(fmt.Sprintf("%s/%d", name, bags), func(b *testing.B) {
				v, err := models.FileVersion(filepath.Join("testdata", name+".onnx"))
				if err != nil {
					b.Fatal(err)
				}
				inputs := bagInputs(b, v, rand.New(rand.NewPCG(5, 5)), bags)
				var log strings.Builder
				with, without := executors(b, &log)
				var times [2][]float64 // us a run
				var loaded []runtime.Model
				for _, x := range []*runtime.ONNX{with, without} {
					m, err := x.Load(context.Background(), v)
					if err != nil {
						b.Fatal(err)
					}
					defer m.Close()
					loaded = append(loaded, m)
				}
				const runs = 20
				for range 9 {
					for i, m := range loaded {
						before := processorTime(b)
						for range runs {
							r, err := m.Run(context.Background(), inputs)
							if err != nil {
								b.Fatal(err)
							}
							r.Release()
						}
						times[i] = append(times[i], float64((processorTime(b)-before).Microseconds())/runs)
					}
				}
				for i := range times {
					slices.Sort(times[i])
				}
				b.ReportMetric(times[0][4], "us-operator")
				b.ReportMetric(times[1][4], "us-loop")
				b.ReportMetric(times[1][4]/times[0][4], "times")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// processorTime is how long the process has run.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
