package members

import (
	"sync/atomic"

	"github.com/muster-serve/muster/api/control"
)

// A LeadershipWatch holds the leadership that this agent follows. It is made before the parts of an
// agent that read it, and package lead, which is made after them, publishes to it. The zero value has
// no leader. The methods may be called concurrently and do not block.
type LeadershipWatch struct {
	current atomic.Pointer[control.Leadership] // nil: none was published
	news    Broadcast                          // announces changes of current
}

// noLeadership is the leadership before any was published. It is one message, so that views made of
// it compare as unchanged.
var noLeadership = &control.Leadership{}

// Leadership returns the leader that this agent follows, which may be this agent itself, with the
// epoch and the successor. It is never nil; its Leader is "" if there is none. The caller must not
// change it.
func (w *LeadershipWatch) Leadership() *control.Leadership {
	if l := w.current.Load(); l != nil {
		return l
	}
	return noLeadership
}

// Changed returns a channel that is closed at the next change of leadership.
func (w *LeadershipWatch) Changed() <-chan struct{} { return w.news.Next() }

// Publish replaces the leadership, which nobody may change afterwards, and announces it.
func (w *LeadershipWatch) Publish(l *control.Leadership) {
	w.current.Store(l)
	w.news.Tell()
}
