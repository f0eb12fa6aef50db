package bench

import (
	"bytes"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	p := Progress{
		Elapsed: 3 * time.Second, Duration: 20 * time.Second, Late: 7, Failed: 1, Rate: 412.3,
		P99: []ModelLatency{
			{"ncf", 910 * time.Microsecond}, {"wnd", 12100 * time.Microsecond}, {"rm2", 0},
		},
	}
	var out bytes.Buffer
	show, done := NewProgress(&out)
	show(p)
	done()
	if want := "  3 s of 20  412/s  ncf p99 0.910 ms  wnd p99 12.1 ms  late 7  errors " +
		"1\n"; out.String() != want {
		t.Errorf("got  %q\nwant %q", &out, want)
	}
	if got, want := p.progressBar(), "[###.................] "; got != want {
		t.Errorf("bar %q, want %q", got, want)
	}
	p.Duration = 0
	if got := p.progressBar(); got != "" {
		t.Errorf("bar %q of a run without a known end, want none", got)
	}
}
