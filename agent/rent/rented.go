package rent

import (
	"strings"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/rent"
)

// ParseRented reads what a machine is to its provider, "INSTANCE SLOT ZONE"; nil if text has faults.
func ParseRented(text string) *control.Rented {
	words := strings.Fields(text)
	if len(words) != 3 {
		return nil
	}
	if _, err := rent.ParseSlotTag(words[1]); err != nil {
		return nil
	}
	return &control.Rented{Instance: words[0], Slot: words[1], Zone: words[2]}
}
