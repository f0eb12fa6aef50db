package plan

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// always is a latency of all batch sizes.
type always time.Duration

func (l always) Mean(int) time.Duration { return time.Duration(l) }

// TestBlocked: a plan for models with targets far apart says what is left while an instance stays
// free of long runs, and expects no more.
func TestBlocked(t *testing.T) {
	sizes := profiles.Distribution{{BatchSize: 1, Share: 1}}
	model := func(name string, target, latency time.Duration) ModelDemand {
		return ModelDemand{Name: name, QoSTarget: target, BatchSizes: sizes,
			Latencies: []Latencies{always(latency)}}
	}
	for _, tt := range []struct {
		long  time.Duration
		count int
		says  bool
		want  float64
	}{
		{305 * time.Millisecond, 2, true, 2 * 1010. / 300 / .99},
		{305 * time.Millisecond, 1, true, 2 * 10. / 300 / .99},
		{4 * time.Millisecond, 1, false, 0.7 * 2000. / 5 / .99},
		{305 * time.Millisecond, 200, false, (1 - 0.3/math.Sqrt(200)) * 400_000. / 306 / .99},
	} {
		p := &Problem{
			Types: []Type{{Name: "x", Price: 1}}, Budget: 200, Target: 0.99,
			Models: []ModelDemand{
				model("short", 5*time.Millisecond, time.Millisecond),
				model("long", 2*time.Second, tt.long),
			},
		}
		a, err := Analyse(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.DescribeConfiguration(Configuration{tt.count}, "")
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(got.Predicted/tt.want-1) > 1e-6 {
			t.Errorf("%v on %d: %v queries/s are expected, want %v", tt.long, tt.count,
				got.Predicted, tt.want)
		}
		if says := strings.Contains(got.Binding, "runs block short"); says != tt.says {
			t.Errorf("%v on %d: it says %q", tt.long, tt.count, got.Binding)
		}
	}
}
