package balancers

import (
	"math"
	"time"
)

// The defaults of gRPC's weighted round robin.
const (
	updatePeriod = time.Second      // between two updates of the weights
	blackout     = 10 * time.Second // from a server's first report until its weight counts
	expiration   = 3 * time.Minute  // from a server's last report until its weight counts no more
	errorPenalty = 1.0
)

// A Weighted is gRPC's weighted round robin in one client. Before two servers have weights it is
// round robin.
type Weighted struct {
	reported []serverReport
	scaled   []uint16 // weights; nil: round robin
	updated  time.Duration
	sequence uint32
}

// A serverReport is what a client knows of a server.
type serverReport struct {
	weight      float64 // 0: none
	first, last time.Duration
}

// NewWeighted returns the state of a client of the given number of servers, which begins with the
// server start.
func NewWeighted(servers, start int) *Weighted {
	return &Weighted{reported: make([]serverReport, servers), sequence: uint32(start)}
}

// Reported takes a server's report: its application utilization, queries and errors per second.
func (w *Weighted) Reported(now time.Duration, server int, utilization, qps, eps float64) {
	if utilization <= 0 || qps <= 0 {
		return
	}
	r := &w.reported[server]
	if r.weight == 0 {
		r.first = now
	}
	r.weight, r.last = qps/(utilization+eps/qps*errorPenalty), now
}

// Pick chooses the server of a query that arrives now.
func (w *Weighted) Pick(now time.Duration) int {
	if now-w.updated >= updatePeriod {
		w.updated = now
		w.update(now)
	}
	n := uint64(len(w.reported))
	for {
		sequence := uint64(w.sequence)
		w.sequence++
		i := sequence % n
		if w.scaled == nil {
			return int(i)
		}
		// A server is chosen weight times in most rounds, evenly spread.
		const most, offset = math.MaxUint16, math.MaxUint16 / 2
		weight, round := uint64(w.scaled[i]), sequence/n
		if (weight*round+i*offset)%most >= most-weight {
			return int(i)
		}
	}
}

// update takes the weights that count now. A server without one has the mean of the others.
func (w *Weighted) update(now time.Duration) {
	weights := make([]float64, len(w.reported))
	sum, most, known := 0.0, 0.0, 0
	for i := range w.reported {
		r := &w.reported[i]
		if r.weight > 0 && now-r.last >= expiration {
			r.weight = 0
		}
		if r.weight > 0 && now-r.first >= blackout {
			weights[i] = r.weight
			sum, most = sum+r.weight, max(most, r.weight)
			known++
		}
	}
	w.scaled = nil
	if known < 2 {
		return
	}
	for _, weight := range weights {
		if weight == 0 {
			weight = sum / float64(known)
		}
		w.scaled = append(w.scaled, uint16(math.Round(math.MaxUint16*weight/most)))
	}
}
