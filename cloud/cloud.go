// Package cloud rents and returns instances from a provider: what a fleet's leader needs of one,
// and nothing of what to rent, which leader/rent decides.
//
// cloud/ec2 rents from AWS, cloud/process starts emulated agents on this machine, and
// cloud/cloudtest fails as EC2 does, in virtual time.
package cloud

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// A Provider rents the instances of one fleet, whose name it was made with. It may be called
// concurrently. Each call ends with its context, and errors wrap one of those below where that
// applies.
type Provider interface {
	// Offers are the prices of the types, one for each zone and market in which they are offered. A
	// type that is offered nowhere has none. The provider keeps prices for a while: on demand a
	// day, spot 5 min.
	Offers(ctx context.Context, types []profiles.InstanceType) ([]Offer, error)
	// List is all of this fleet's instances, those that ended lately included: whole, or an error.
	// One that was launched just now may be missing for some seconds.
	List(ctx context.Context) ([]rent.Instance, error)
	// Launch gives the slot's instance, the same one each time. An error that wraps none of those
	// below leaves open whether it was launched: the same call, or a later List, tells.
	Launch(ctx context.Context, slot rent.Slot, spec Spec) (rent.Instance, error)
	// Mark says with the instances that their agents are being drained: a leader that knows nothing
	// else returns them as soon as these have left.
	Mark(ctx context.Context, ids ...string) error
	// Return ends instances. Those that have ended, or that nobody knows, are no error; one that is
	// not of this fleet is, and none is ended then.
	Return(ctx context.Context, ids ...string) error
	// Check tries what renting needs without renting: rights, template, subnets, quotas.
	Check(ctx context.Context) []Fault
}

// A Spec is what else a launch is told.
type Spec struct {
	// Zones in the order in which they are preferred; empty: any. Those left out are not used.
	Zones []string
	// By is the fleet's identity, kept with the instance, see rent.Instance.
	By string
	// Version is that of the desired state which asks for the instance, for people.
	Version uint64
}

// An Offer is the price of a type in a zone, in $/hr.
type Offer struct {
	rent.Kind
	Zone  string
	Price float64
}

// A Fault is what Check found.
type Fault struct {
	What string // what was tried: "ec2:CreateFleet", "launch template muster-worker"
	Why  string // what is wrong, and what to do about it
}

func (f Fault) String() string { return f.What + ": " + f.Why }

// What a launch, or another call, may end with. Nothing was launched.
var (
	// ErrQuota: the account may have no more of these; its text names the quota to raise.
	ErrQuota = errors.New("quota reached")
	// ErrDenied: no rights, expired credentials, or a template that is gone. A person has to act.
	ErrDenied = errors.New("refused")
	// ErrThrottled: too many calls; the provider has already tried again.
	ErrThrottled = errors.New("throttled")
	// ErrSpent: the slot's instance has ended; the next generation is to be asked for.
	ErrSpent = errors.New("the slot's instance has ended")
)

// ErrShort says that a provider has none of a kind now, and where.
type ErrShort struct {
	Kind  rent.Kind
	Zones []string // those asked
	Why   string   // the provider's words
}

func (e *ErrShort) Error() string {
	return fmt.Sprintf("%s is short in %s: %s", e.Kind, strings.Join(e.Zones, ", "), e.Why)
}

// Token is the idempotency token of a fleet's slot, 32 characters. It does not depend on how the
// instance is launched: where that has changed in between, a provider refuses the token, and the
// instance that it brought is listed.
func Token(fleet string, slot rent.Slot) string {
	sum := sha256.Sum256([]byte(fleet + "\x00" + slot.String()))
	return hex.EncodeToString(sum[:16])
}
