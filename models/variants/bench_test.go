package variants_test

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/models/variants"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// BenchmarkInt8 runs WND of the default size and its variant int8 in turns, with one thread, and
// reports the medians and their ratio.
func BenchmarkInt8(b *testing.B) {
	ort, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(b), Provider: runtime.CPU, Cores: 1,
	})
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	if _, err := zoo.Generate(b.Context(), dir, "wnd", zoo.Options{Seed: 1}); err != nil {
		b.Fatal(err)
	}
	if _, err := variants.Make(b.Context(), dir, "wnd", "int8",
		variants.Options{Family: "all"}); err != nil {
		b.Fatal(err)
	}
	var loaded [2]runtime.Model
	for i, name := range []string{"wnd", "wnd-int8"} {
		if loaded[i], err = ort.Load(b.Context(), newest(b, dir, name)); err != nil {
			b.Fatal(err)
		}
		defer loaded[i].Close()
	}
	for name, size := range map[string]int{"1": 1, "64": 64, "256": 256, "512": 512} {
		b.Run(name, func(b *testing.B) {
			inputs := draw(b, newest(b, dir, "wnd"), size)
			var took [2][]time.Duration
			for b.Loop() {
				for i, m := range loaded {
					start := time.Now()
					r, err := m.Run(b.Context(), inputs)
					if err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(start))
					r.Release()
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			fp32, int8 := took[0][len(took[0])/2], took[1][len(took[1])/2]
			b.ReportMetric(fp32.Seconds()*1e3, "fp32-ms")
			b.ReportMetric(int8.Seconds()*1e3, "int8-ms")
			b.ReportMetric(float64(fp32)/float64(int8), "ratio")
		})
	}
}
