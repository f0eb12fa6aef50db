package models

import (
	"io"
	"sync/atomic"
)

// A Loaded version serves queries. It stays loaded until every holder has
// released it.
type Loaded[M io.Closer] struct {
	Version *Version
	Model   M

	// uses counts the holders, of which the repository is one for as long as the version
	// serves. At 0 it is done and stays there.
	uses   atomic.Int64
	unused chan struct{} // closed when uses is 0
	closed chan struct{} // closed when Model is
}

func newLoaded[M io.Closer](v *Version, m M) *Loaded[M] {
	l := &Loaded[M]{Version: v, Model: m, unused: make(chan struct{}), closed: make(chan struct{})}
	l.uses.Store(1)
	return l
}

// acquire begins a use, unless all have ended.
func (l *Loaded[M]) acquire() bool {
	for {
		n := l.uses.Load()
		if n == 0 {
			return false
		}
		if l.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release ends one use of l, begun by Acquire. Call it exactly once.
func (l *Loaded[M]) Release() {
	if l.uses.Add(-1) == 0 {
		close(l.unused)
	}
}
