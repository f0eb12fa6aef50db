package runtime_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// openWith returns an executor with or without kernels, and what it logs.
func openWith(t testing.TB, on bool, cores int) (*runtime.ONNX, *strings.Builder) {
	t.Helper()
	var log strings.Builder
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: cores, Kernels: on,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return x, &log
}

// outputs runs a model once.
func outputs(t testing.TB, x *runtime.ONNX, v *models.Version, inputs []tensor.Tensor) [][]float32 {
	t.Helper()
	m := load(t, x, v)
	r, err := m.Run(context.Background(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	var all [][]float32
	for _, out := range r.Outputs {
		all = append(all, slices.Clone(must(tensor.Values[float32](out))))
	}
	return all
}

func TestKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("long; no goroutine is ours")
	}
	for _, name := range zoo.Names() {
		t.Run(name, func(t *testing.T) {
			v := generate(t, name, zoo.Small)
			for _, cores := range []int{1, 2} {
				on, log := openWith(t, true, cores)
				off, silent := openWith(t, false, cores)
				for _, batch := range []int{1, 3, 100} {
					inputs := randomInputs(v, batch)
					ours, theirs := outputs(t, on, v, inputs), outputs(t, off, v, inputs)
					for i := range theirs {
						for j := range theirs[i] {
							x, y := float64(ours[i][j]), float64(theirs[i][j])
							if math.Abs(x-y) > 1e-5*max(1, math.Abs(y)) {
								t.Fatalf("batch size %d, output %d, element %d: got %v, ONNX "+
									"Runtime's operators %v", batch, i, j, x, y)
							}
						}
					}
				}
				if strings.Contains(silent.String(), "lookups") {
					t.Errorf("without kernels: logged %s", silent)
				}
				used := strings.Contains(log.String(), "Muster's operators do the lookups")
				if used != (name != "dien" && name != "ncf") { // see minJoined
					t.Errorf("with kernels: logged %s", log)
				}
			}
		})
	}
}

// BenchmarkKernels compares models with and without kernels, in turns, and prints the ratio of the
// medians by the clock, and of the lowest deciles of the CPU time, which a busy machine hardly
// disturbs. One lane has one core or all. Beside it stands what rows are read at, and what the machine reads at
// when it reads a table from its beginning to its end.
func BenchmarkKernels(b *testing.B) {
	for _, name := range zoo.Names() {
		v := generate(b, name, zoo.Default)
		other := linked(b, v)
		for _, cores := range []int{1, 2} {
			on, _ := openWith(b, true, cores)
			off, _ := openWith(b, false, cores)
			with, without := load(b, on, v), load(b, off, other)
			for _, batch := range []int{1, 64, 512} {
				b.Run(fmt.Sprintf("%s-%d-cores-%d", name, batch, cores), func(b *testing.B) {
					var inputs [][]tensor.Tensor // several, so that the caches do not hold all rows
					for i := range max(2, 64/batch) {
						inputs = append(inputs, seededInputs(v, batch, uint64(i)))
					}
					run := func(m runtime.Model, i int) {
						r, err := m.Run(context.Background(), inputs[i%len(inputs)])
						if err != nil {
							b.Fatal(err)
						}
						r.Release()
					}
					var ours, theirs timings
					rounds := max(1, 64/batch)
					for range b.N {
						for _, t := range []struct {
							*timings
							m runtime.Model
						}{{&theirs, without}, {&ours, with}} {
							t.add(func() {
								for i := range rounds {
									run(t.m, i)
								}
							})
						}
					}
					per := float64(rounds)
					before, after := quantile(theirs.wall, .5)/per, quantile(ours.wall, .5)/per
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(before, "stock-us")
					b.ReportMetric(after, "ours-us")
					b.ReportMetric(before/after, "x")
					b.ReportMetric(quantile(theirs.cpu, .1)/quantile(ours.cpu, .1), "x-cpu")
					bytes := 0.
					for _, t := range v.Config.Tables {
						bytes += float64(4 * t.Dim * t.Lookups * int64(batch))
					}
					b.ReportMetric(bytes/after/1e3, "GB/s-rows")
					b.ReportMetric(readingSpeed(cores), "GB/s-read")
				})
			}
		}
	}
}

// linked returns a version with the same files under another path, so that it has memory of its own.
func linked(b testing.TB, v *models.Version) *models.Version {
	b.Helper()
	dir := b.TempDir()
	err := filepath.WalkDir(filepath.Dir(filepath.Dir(v.Path)),
		func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			to := filepath.Join(dir, v.Model, must(filepath.Rel(
				filepath.Dir(filepath.Dir(v.Path)), path)))
			if e.IsDir() {
				return os.MkdirAll(to, 0o755)
			}
			return os.Link(path, to)
		})
	if err != nil {
		b.Fatal(err)
	}
	return must(models.ReadVersion(dir, v.Model, 1))
}

// readingSpeed returns how many GB a second the given number of cores read in memory.
func readingSpeed(cores int) float64 {
	memory := make([]uint64, 32<<20)
	for i := range memory {
		memory[i] = uint64(i)
	}
	var best float64
	for range 5 {
		start := time.Now()
		var wg sync.WaitGroup
		for c := range cores {
			wg.Go(func() {
				var sum uint64
				part := memory[c*len(memory)/cores : (c+1)*len(memory)/cores]
				for i := 0; i+8 <= len(part); i += 8 {
					sum += part[i] // one word of each line
				}
				sink.Store(sum)
			})
		}
		wg.Wait()
		best = max(best, float64(8*len(memory))/float64(time.Since(start)))
	}
	return best
}

var sink atomic.Uint64

// Copies of external data are in huge pages, where the system has some.
func TestHugePages(t *testing.T) {
	setting, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil || strings.Contains(string(setting), "[never]") {
		t.Skip("needs transparent huge pages")
	}
	huge := func() (kB int) {
		text := string(must(os.ReadFile("/proc/self/smaps_rollup")))
		_, after, _ := strings.Cut(text, "AnonHugePages:")
		if _, err := fmt.Sscan(after, &kB); err != nil {
			t.Fatal(err)
		}
		return kB
	}
	x, _ := openWith(t, true, 1)
	v := generate(t, "rm2", "1/20") // 32 tables of 6.4 MB
	before := huge()
	load(t, x, v)
	if got, want := huge()-before, 32*4<<10; got < want/8 { // fragmented memory has fewer
		t.Errorf("%d kB are in huge pages, want about %d", got, want)
	}
}
