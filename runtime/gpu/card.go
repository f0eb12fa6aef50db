package gpu

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrNoDriver is wrapped if the machine has no NVIDIA driver.
var ErrNoDriver = errors.New("no NVIDIA driver")

// A Card is the GPU, or the MIG slice of one, that this process uses. Its methods may be called
// concurrently.
type Card struct {
	// UUID is NVIDIA's name of it, GPU-... or MIG-...; "" if the card cannot be watched.
	UUID string
	// Name is the product's. Index is the card's place in the machine, by PCI bus, of a slice that
	// of its card.
	Name  string
	Index int
	// Driver is the driver's version; "" if it is not known.
	Driver string
	// Memory is the bytes of memory that the card or the slice has.
	Memory uint64
	// Others is how many more cards and slices the machine has.
	Others int
	// Unwatched is why the card is used and not watched; nil: it can be watched.
	Unwatched error

	handles
	broken atomic.Pointer[error] // of Fail; nil: it was not called
}

// Fail has Watch end with err, as if the driver had told of a fault: whoever uses the card has
// found that this process can do so no more. Only the first call counts.
func (c *Card) Fail(err error) { c.broken.CompareAndSwap(nil, &err) }

func (c *Card) String() string {
	if c.UUID == "" {
		return "GPU"
	}
	return fmt.Sprintf("GPU %d (%s, %s)", c.Index, c.Name, c.UUID)
}

// A Status is what is known of a card at one moment. Of a slice the memory is its own, and the rest
// that of its card.
type Status struct {
	Memory, Used uint64 // bytes
	// Utilization is the share of time in which the card computed, in [0, 1]. It, Temperature and
	// Power are -1 if the card does not say.
	Utilization float64
	Temperature int     // degrees Celsius
	Power       float64 // W
	// Slowed lists, of SlowedBy, why the card's clocks are lower than they could be.
	Slowed []string
	// Corrected and Uncorrected are how many errors of its memory the card has counted since the
	// driver was loaded; 0 of a card without ECC.
	Corrected, Uncorrected uint64
	// Xids is how many faults the driver has told of since the watch began, and Xid the number of
	// the last; 0: there was none.
	Xids, Xid uint64
	// Failed is why this process can use the card no more; nil: it can.
	Failed error
}

// What slows a card down. PowerCap is usual under load; the others are not.
const (
	PowerCap   = "power_cap"   // the card draws what it may
	Heat       = "heat"        // the card is too hot
	PowerBrake = "power_brake" // the machine tells it to draw less
	Hardware   = "hardware"    // the card has another reason
)

// SlowedBy lists the values of Status.Slowed.
func SlowedBy() []string { return []string{PowerCap, Heat, PowerBrake, Hardware} }
