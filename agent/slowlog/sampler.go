package slowlog

import (
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

// maxLinesPerSecond is how many queries of each cause the log has of a second, so that a frequent
// cause does not hide a rare one. Chosen: enough to find one of a user who calls, and at 500 bytes a
// line and 20 causes at most 100 kB a second.
const maxLinesPerSecond = 10

// A sampler chooses which queries are written. It is pure; the zero value has seen none.
type sampler struct {
	second  int64
	written map[lateness.Cause]int    // in that second
	leftOut map[lateness.Cause]uint64 // since the last one that was written
}

// choose reports whether a query of the cause, at the time now, is written, and how many of that
// cause were left out before it.
func (s *sampler) choose(cause lateness.Cause, now time.Time) (leftOut uint64, chosen bool) {
	if second := now.Unix(); s.written == nil || second != s.second {
		s.second, s.written = second, map[lateness.Cause]int{}
	}
	if s.written[cause] >= maxLinesPerSecond {
		s.leaveOut(cause, 1)
		return 0, false
	}
	s.written[cause]++
	leftOut = s.leftOut[cause]
	delete(s.leftOut, cause)
	return leftOut, true
}

// leaveOut counts queries of the cause that are not written.
func (s *sampler) leaveOut(cause lateness.Cause, n uint64) {
	if s.leftOut == nil {
		s.leftOut = map[lateness.Cause]uint64{}
	}
	s.leftOut[cause] += n
}
