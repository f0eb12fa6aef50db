package oip_test

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/oip"
)

func TestTimeout(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		asked    time.Duration
		given    bool
		deadline time.Duration
		want     time.Duration
	}{
		{0, false, s, s},
		{0, true, s, 60 * s},
		{5 * s, false, s, 5 * s},
		{1e15 * time.Microsecond, false, s, 60 * s},
		{1e15 * time.Microsecond, true, 300 * s, 300 * s},
		{0, false, 0, 0},
	} {
		if got := oip.Timeout(c.asked, c.given, c.deadline); got != c.want {
			t.Errorf("asked %v, given %v, deadline %v: got %v, want %v", c.asked, c.given,
				c.deadline, got, c.want)
		}
	}
}
