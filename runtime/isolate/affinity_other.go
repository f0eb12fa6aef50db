//go:build !linux

package isolate

import (
	"errors"
	"runtime"
)

// errPin says why nothing is pinned.
var errPin = errors.New("threads are pinned to processors on Linux alone, this is " + runtime.GOOS)

// A Pin keeps the thread of a goroutine on some processors, on Linux.
type Pin struct{}

// NewPin returns an error.
func NewPin([]int) (*Pin, error) { return nil, errPin }

// CPUs is never called: nothing makes a Pin.
func (p *Pin) CPUs() []int { return nil }

// Enter is never called.
func (p *Pin) Enter() error { return errPin }

// Leave is never called.
func (p *Pin) Leave() {}

// An Apart keeps threads on different processors, on Linux. Elsewhere the system does.
type Apart struct{}

// NewApart returns nil, which does nothing.
func NewApart() *Apart { return nil }

// Enter does nothing.
func (a *Apart) Enter() int { return 0 }

// Leave does nothing.
func (a *Apart) Leave(int) {}

// readAllowed returns an error: what the processors are is read of Linux's /sys.
func readAllowed() (func(cpu int) bool, error) { return nil, errPin }

// Open returns an Isolator that divides nothing, as on a Linux without resctrl.
func Open() Isolator { return undividedCache{"it is divided on Linux alone"} }
