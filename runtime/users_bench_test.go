package runtime_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
)

// threadTime is the processor time that this thread has taken.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// timeQueries returns the processor time of a query, on one core. The runs are the caller's: a
// session of one thread starts none.
func timeQueries(b *testing.B, m runtime.Model, inputs []tensor.Tensor,
	least time.Duration) float64 {
	b.Helper()
	start, n := threadTime(b), 0
	for threadTime(b)-start < least {
		r, err := m.Run(context.Background(), inputs)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
		n++
	}
	return (threadTime(b) - start).Seconds() / float64(n)
}

// BenchmarkUserOnce: queries/s a core of one user and its candidates, by the graph that is cut,
// beside those of the whole graph that gets the user's inputs for each candidate. Both are measured
// in turns, nine times for at least .1 s of processor time each; the medians count.
func BenchmarkUserOnce(b *testing.B) {
	for _, name := range zoo.Rankers() {
		cut, whole, v := loadRanker(b, name, "1/10")
		for _, rows := range []int{100, 270, 2048} {
			b.Run(fmt.Sprintf("%s/%d", name, rows), func(b *testing.B) {
				goruntime.LockOSThread()
				defer goruntime.UnlockOSThread()
				once, repeated := rankerQuery(b, rand.New(rand.NewPCG(1, 1)), v, rows)
				for range b.N {
					var times [2][]float64
					for range 9 {
						times[0] = append(times[0], timeQueries(b, cut, once, time.Second/10))
						times[1] = append(times[1], timeQueries(b, whole, repeated, time.Second/10))
					}
					for i := range times {
						slices.Sort(times[i])
					}
					b.ReportMetric(1/times[0][4], "once/s")
					b.ReportMetric(1/times[1][4], "repeated/s")
					b.ReportMetric(times[1][4]/times[0][4], "times")
				}
			})
		}
	}
}
