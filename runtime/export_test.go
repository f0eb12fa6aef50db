package runtime

import (
	"context"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/lane"
)

// Observe has a function be called with each event of lanes before it is handled, and then with
// what is to be done; nil ends that.
func (l *Lanes) Observe(f func(now time.Duration, e *lane.Event, actions []lane.Action)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe = f
}

// Divisible returns a model that runs as whole, and as single on one core of a lane.
func Divisible(whole, single Model) Model { return both{whole, single} }

type both struct {
	Model
	single Model
}

func (b both) onOneCore() Model { return b.single }

// OnOneCore returns the session of one thread that a model has beside its own.
func OnOneCore(m Model) Model { return m.(divisible).onOneCore() }

// GuardFiles is guardFiles.
func GuardFiles(files map[string]bool) (end func() error) { return guardFiles(files) }

// Without is without of mappings, each by its ends and its offset in the file.
func Without(all, others [][3]uintptr) (left [][3]uintptr) {
	mappings := func(all [][3]uintptr) (m []mappedFile) {
		for _, a := range all {
			m = append(m, mappedFile{from: a[0], to: a[1], offset: a[2]})
		}
		return m
	}
	for _, m := range subtractMappings(mappings(all), mappings(others)) {
		left = append(left, [3]uintptr{m.from, m.to, m.offset})
	}
	return left
}

// GraphTimes returns how long the graphs of a model on the card take, by batch size.
func GraphTimes(m Model) map[int]time.Duration {
	times := map[int]time.Duration{}
	for _, size := range m.(*session).graphs.sizes {
		times[size.rows] = size.took
	}
	return times
}

// RunJoined runs queries as one.
func RunJoined(ctx context.Context, m Model, queries [][]tensor.Tensor) (*Result, error) {
	return m.(joiningModel).runJoined(ctx, queries)
}

// IsCut reports whether what depends on users runs once for each of them.
func IsCut(m Model) bool { return m.(*session).cut != nil }
