package models

import (
	"io"
	"sync/atomic"
)

// A LoadedVersion is a version that is loaded and can run queries. It stays loaded until every
// holder has released it. It may be used concurrently.
type LoadedVersion[M io.Closer] struct {
	Version *Version
	Model   M

	// uses counts the holders. The repository is one of them while the version serves. Once uses is
	// 0, it stays 0.
	uses   atomic.Int64
	unused chan struct{} // closed when uses becomes 0
	closed chan struct{} // closed when Model has been closed
}

func newLoadedVersion[M io.Closer](v *Version, m M) *LoadedVersion[M] {
	l := &LoadedVersion[M]{Version: v, Model: m, unused: make(chan struct{}),
		closed: make(chan struct{})}
	l.uses.Store(1)
	return l
}

// addHolder adds a holder. It returns false if there is none left and the version is being closed.
func (l *LoadedVersion[M]) addHolder() bool {
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

// Release ends the use of l that a call of [Repository.Acquire] began. Call it exactly
// once for each Acquire.
func (l *LoadedVersion[M]) Release() {
	if l.uses.Add(-1) == 0 {
		close(l.unused)
	}
}
