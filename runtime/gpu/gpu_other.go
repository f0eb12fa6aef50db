//go:build !linux || !cgo

package gpu

import "context"

// handles are empty: without cgo there is no NVML.
type handles struct{}

// Open returns ErrNoDriver: NVIDIA's libraries are opened on Linux alone, and by C.
func Open(string, int) (*Card, error) { return nil, ErrNoDriver }

// Watch blocks until ctx ends: without [Open] there is no card.
func (c *Card) Watch(ctx context.Context, _ func(Status)) { <-ctx.Done() }
