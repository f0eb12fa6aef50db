package rent

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// A Market is how an instance is paid for.
type Market uint8

const (
	OnDemand Market = iota // stays until it is returned
	Spot                   // cheaper; the provider takes it back when it likes
)

func (m Market) String() string {
	if m == Spot {
		return "spot"
	}
	return "on-demand"
}

// ParseMarket reads what String writes.
func ParseMarket(s string) (Market, error) {
	switch s {
	case "on-demand":
		return OnDemand, nil
	case "spot":
		return Spot, nil
	}
	return 0, fmt.Errorf("market %q: want on-demand or spot", s)
}

// A Kind is what counts are given for: an instance type and how it is paid for. Its text is that of
// the type, with "@spot" after it.
type Kind struct {
	Type   profiles.InstanceType
	Market Market
}

func (k Kind) String() string {
	if k.Market == Spot {
		return string(k.Type) + "@spot"
	}
	return string(k.Type)
}

// ParseKind reads what String writes.
func ParseKind(s string) (Kind, error) {
	name, spot := strings.CutSuffix(s, "@spot")
	if name == "" || strings.ContainsAny(name, "/@ ") {
		return Kind{}, fmt.Errorf("instance type %q: want a name, or a name and @spot", s)
	}
	if spot {
		return Kind{profiles.InstanceType(name), Spot}, nil
	}
	return Kind{profiles.InstanceType(name), OnDemand}, nil
}

// Compare orders kinds by type, then market.
func (k Kind) Compare(o Kind) int {
	return cmp.Or(cmp.Compare(k.Type, o.Type), cmp.Compare(k.Market, o.Market))
}

// A Slot is a place in the fleet. A provider gives one instance for a slot, whoever asks
// and however often; an instance that replaces one that has ended has the next generation.
// Both count from 0.
type Slot struct {
	Kind
	Ordinal, Generation int
}

// String is the slot as a provider's tag holds it: "r5n.large/spot/3/0".
func (s Slot) String() string {
	return fmt.Sprintf("%s/%s/%d/%d", s.Type, s.Market, s.Ordinal, s.Generation)
}

// ParseSlotTag reads what String writes.
func ParseSlotTag(text string) (Slot, error) {
	parts := strings.Split(text, "/")
	fault := fmt.Errorf("slot %q: want type/market/ordinal/generation", text)
	if len(parts) != 4 || parts[0] == "" {
		return Slot{}, fault
	}
	market, err := ParseMarket(parts[1])
	if err != nil {
		return Slot{}, fmt.Errorf("slot %q: %w", text, err)
	}
	ordinal, oerr := strconv.ParseUint(parts[2], 10, 31)
	generation, gerr := strconv.ParseUint(parts[3], 10, 31)
	if oerr != nil || gerr != nil {
		return Slot{}, fault
	}
	kind := Kind{profiles.InstanceType(parts[0]), market}
	return Slot{kind, int(ordinal), int(generation)}, nil
}

// An InstanceState is what a provider says of an instance.
type InstanceState uint8

const (
	Pending  InstanceState = iota // paid for, and starts
	Running                       // paid for
	Stopping                      // will be gone; not paid for any more
	// ended; listed for a while, so that the slot's next generation is known
	Gone
)

func (s InstanceState) String() string {
	switch s {
	case Pending:
		return "pending"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// An Instance is what a provider lists.
type Instance struct {
	ID    string // the provider's name of it
	Slot  Slot
	Zone  string
	State InstanceState
	// Age is the time since it was launched, as of the answer that it came with; clocks of two
	// machines are never compared.
	Age time.Duration
	// By is the identity of the fleet that launched it: two fleets of one name differ in it.
	By string
	// Drained says that the machine was marked to be returned as soon as its agent has left.
	Drained  bool
	Template string  // the template that the machine was launched from, and its version
	Price    float64 // $/hr now; 0: unknown
}
