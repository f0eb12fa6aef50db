package plugin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/provider"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

func (f Fleet) toMessage() *provider.Fleet {
	m := &provider.Fleet{
		Name: f.Name, Settings: string(f.Settings), StateDir: f.StateDir,
		Types: toTexts(f.Types), PricesUsdPerHour: map[string]float64{},
	}
	for t, price := range f.Prices {
		m.PricesUsdPerHour[string(t)] = price
	}
	return m
}

func fleetOf(m *provider.Fleet) Fleet {
	f := Fleet{
		Name: m.GetName(), Settings: []byte(m.GetSettings()), StateDir: m.GetStateDir(),
		Types: typesOf(m.GetTypes()), Prices: map[profiles.InstanceType]float64{},
	}
	for t, price := range m.GetPricesUsdPerHour() {
		f.Prices[profiles.InstanceType(t)] = price
	}
	return f
}

func toTexts(types []profiles.InstanceType) (texts []string) {
	for _, t := range types {
		texts = append(texts, string(t))
	}
	return texts
}

func typesOf(texts []string) (types []profiles.InstanceType) {
	for _, t := range texts {
		types = append(types, profiles.InstanceType(t))
	}
	return types
}

func toKind(k rent.Kind) *provider.Kind {
	return &provider.Kind{Type: string(k.Type), Spot: k.Market == rent.Spot}
}

func kindOf(m *provider.Kind) rent.Kind {
	k := rent.Kind{Type: profiles.InstanceType(m.GetType())}
	if m.GetSpot() {
		k.Market = rent.Spot
	}
	return k
}

func toSlot(s rent.Slot) *provider.Slot {
	return &provider.Slot{
		Kind: toKind(s.Kind), Ordinal: uint32(s.Ordinal), Generation: uint32(s.Generation),
	}
}

// slotOf refuses numbers that rent.ParseSlotTag would refuse in a tag.
func slotOf(m *provider.Slot) (rent.Slot, error) {
	if m.GetKind().GetType() == "" || m.GetOrdinal() > math.MaxInt32 ||
		m.GetGeneration() > math.MaxInt32 {
		return rent.Slot{}, fmt.Errorf("slot %v: want a type and numbers below 2^31", m)
	}
	return rent.Slot{
		Kind: kindOf(m.GetKind()), Ordinal: int(m.GetOrdinal()), Generation: int(m.GetGeneration()),
	}, nil
}

// states are the states' numbers in messages.
var states = map[rent.InstanceState]provider.InstanceState{
	rent.Pending:  provider.InstanceState_INSTANCE_STATE_PENDING,
	rent.Running:  provider.InstanceState_INSTANCE_STATE_RUNNING,
	rent.Stopping: provider.InstanceState_INSTANCE_STATE_STOPPING,
	rent.Gone:     provider.InstanceState_INSTANCE_STATE_GONE,
}

func toInstance(i rent.Instance) *provider.Instance {
	return &provider.Instance{
		Id: i.ID, Slot: toSlot(i.Slot), Zone: i.Zone, State: states[i.State], AgeNs: int64(i.Age),
		By: i.By, Drained: i.Drained, Template: i.Template, PriceUsdPerHour: i.Price,
	}
}

func instanceOf(m *provider.Instance) (rent.Instance, error) {
	slot, err := slotOf(m.GetSlot())
	if err != nil {
		return rent.Instance{}, fmt.Errorf("instance %q: %w", m.GetId(), err)
	}
	i := rent.Instance{
		ID: m.GetId(), Slot: slot, Zone: m.GetZone(), Age: time.Duration(m.GetAgeNs()),
		By: m.GetBy(), Drained: m.GetDrained(), Template: m.GetTemplate(),
		Price: m.GetPriceUsdPerHour(),
	}
	for state, number := range states {
		if number == m.GetState() {
			i.State = state
			return i, nil
		}
	}
	return rent.Instance{}, fmt.Errorf("instance %q: unknown state %v", m.GetId(), m.GetState())
}

// kinds are the errors of package cloud, and of contexts, that a Failure's kind names, besides
// ErrShort, which has values. An error of several kinds is of the first one.
var kinds = []struct {
	kind provider.Failure_Kind
	err  error
}{
	{provider.Failure_KIND_QUOTA, cloud.ErrQuota},
	{provider.Failure_KIND_DENIED, cloud.ErrDenied},
	{provider.Failure_KIND_THROTTLED, cloud.ErrThrottled},
	{provider.Failure_KIND_SPENT, cloud.ErrSpent},
	{provider.Failure_KIND_DEADLINE, context.DeadlineExceeded},
	{provider.Failure_KIND_CANCELLED, context.Canceled},
}

// toStatus is an error as a call's status carries it.
func toStatus(err error) error {
	f := &provider.Failure{Text: strings.ToValidUTF8(err.Error(), "?")}
	if short, ok := errors.AsType[*cloud.ErrShort](err); ok {
		f.Kind, f.Short = provider.Failure_KIND_SHORT, toKind(short.Kind)
		f.Zones, f.Why = short.Zones, strings.ToValidUTF8(short.Why, "?")
	} else {
		for _, k := range kinds {
			if errors.Is(err, k.err) {
				f.Kind = k.kind
				break
			}
		}
	}
	s, err := status.New(codes.Unknown, f.Kind.String()).WithDetails(f)
	if err != nil { // a zone that is no text
		return status.Error(codes.Unknown, f.Text)
	}
	return s.Err()
}

// failureOf is the error that toStatus was given: with its text, and of its kind. It is nil if the
// status is none of the provider's own, but of the transport.
func failureOf(err error) error {
	for _, detail := range status.Convert(err).Details() {
		f, ok := detail.(*provider.Failure)
		if !ok {
			continue
		}
		if f.GetKind() == provider.Failure_KIND_SHORT {
			return &failure{f.GetText(), &cloud.ErrShort{
				Kind: kindOf(f.GetShort()), Zones: f.GetZones(), Why: f.GetWhy(),
			}}
		}
		for _, k := range kinds {
			if k.kind == f.GetKind() {
				return &failure{f.GetText(), k.err}
			}
		}
		return &failure{f.GetText(), nil}
	}
	return nil
}

// A failure is an error of the provider's: its text, and of which kind it is; nil if of none.
type failure struct {
	text string
	kind error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() error { return f.kind }
