// Package cloudtest has a provider for tests that fails as EC2 does, in virtual time, and what
// every provider must fulfil.
package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// ErrLost is an answer that is lost.
var ErrLost = errors.New("the answer is lost")

// A Provider is a fleet's. The exported fields may be set before its first use.
type Provider struct {
	Fleet  string
	Prices map[rent.Kind]float64
	Zones  []string // "a" where there are none
	// Lag is how long a new instance is not listed, Boots until its program begins.
	Lag, Boots time.Duration
	// Start begins an instance's program, on a goroutine of its own; what it returns ends it, and
	// may be called twice. nil: instances run nothing.
	Start func(rent.Instance) (stop func())

	mu            sync.Mutex
	before, after func(call, of string) error
	instances     []*instance
	short         map[rent.Kind]bool
	most          float64
	running       sync.WaitGroup
}

type instance struct {
	rent.Instance
	launched time.Time
	ended    time.Time
	stop     func()
}

// Close waits until the programs that were begun have been handed to Start.
func (p *Provider) Close() { p.running.Wait() }

// Intercept has before called before each call does anything, with its name and what it is for;
// what it returns the call ends with. after is called when a call has done all, and its error is a
// lost answer. nil: nothing.
func (p *Provider) Intercept(before, after func(call, of string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

func (p *Provider) callProvider(ctx context.Context, name, of string, do func() error) error {
	p.mu.Lock()
	before, after := p.before, p.after
	p.mu.Unlock()
	if before != nil {
		if err := before(name, of); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	err := do()
	p.mu.Unlock()
	if err == nil && after != nil {
		err = after(name, of)
	}
	return err
}

// Offers returns Prices.
func (p *Provider) Offers(ctx context.Context, types []profiles.InstanceType) (
	offers []cloud.Offer, err error) {
	err = p.callProvider(ctx, "prices", "", func() error {
		for kind, price := range p.Prices {
			if !slices.Contains(types, kind.Type) {
				continue
			}
			for _, zone := range p.zoneNames() {
				offers = append(offers, cloud.Offer{Kind: kind, Zone: zone, Price: price})
			}
		}
		return nil
	})
	return offers, err
}

func (p *Provider) zoneNames() []string {
	if len(p.Zones) == 0 {
		return []string{"a"}
	}
	return p.Zones
}

// List lists what was launched at least Lag ago, and what has ended within the last hour.
func (p *Provider) List(ctx context.Context) (all []rent.Instance, err error) {
	err = p.callProvider(ctx, "list", "", func() error {
		for _, i := range p.instances {
			if time.Since(i.launched) < p.Lag ||
				i.State == rent.Gone && time.Since(i.ended) > time.Hour {
				continue
			}
			one := i.Instance
			one.Age = time.Since(i.launched)
			one.Price = p.Prices[one.Slot.Kind]
			all = append(all, one)
		}
		return nil
	})
	return all, err
}

// Launch gives the slot's instance.
func (p *Provider) Launch(ctx context.Context, slot rent.Slot, spec cloud.Spec) (
	given rent.Instance, err error) {
	err = p.callProvider(ctx, "launch", slot.String(), func() error {
		zones := spec.Zones
		if len(zones) == 0 {
			zones = p.zoneNames()
		}
		for _, i := range p.instances {
			if i.Slot == slot {
				if i.State >= rent.Stopping {
					return fmt.Errorf("%s: %w", slot, cloud.ErrSpent)
				}
				given = i.Instance
				return nil
			}
		}
		if p.short[slot.Kind] {
			return &cloud.ErrShort{Kind: slot.Kind, Zones: zones,
				Why: "InsufficientInstanceCapacity"}
		}
		i := &instance{launched: time.Now(), Instance: rent.Instance{
			ID: fmt.Sprintf("i-%04d", len(p.instances)), Slot: slot, Zone: zones[0], By: spec.By,
			State: rent.Pending, Price: p.Prices[slot.Kind],
		}}
		p.instances = append(p.instances, i)
		p.notePaid()
		given = i.Instance
		p.running.Go(func() { p.bootInstance(i) })
		return nil
	})
	return given, err
}

// bootInstance begins an instance's program after Boots.
func (p *Provider) bootInstance(i *instance) {
	time.Sleep(p.Boots)
	p.mu.Lock()
	if i.State != rent.Pending {
		p.mu.Unlock()
		return
	}
	i.State = rent.Running
	one := i.Instance
	p.mu.Unlock()
	if p.Start == nil {
		return
	}
	stop := p.Start(one)
	p.mu.Lock()
	i.stop = stop
	ended := i.State >= rent.Stopping
	p.mu.Unlock()
	if ended {
		stop()
	}
}

// notePaid keeps the highest price ever paid. p.mu is held.
func (p *Provider) notePaid() {
	price := 0.0
	for _, i := range p.instances {
		if i.State < rent.Stopping {
			price += p.Prices[i.Slot.Kind]
		}
	}
	p.most = max(p.most, price)
}

// Most is the highest price that was ever paid, in $/hr.
func (p *Provider) Most() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

func (p *Provider) find(id string) *instance {
	for _, i := range p.instances {
		if i.ID == id {
			return i
		}
	}
	return nil
}

// Mark notes that instances are being drained.
func (p *Provider) Mark(ctx context.Context, ids ...string) error {
	return p.callProvider(ctx, "mark", fmt.Sprint(ids), func() error {
		for _, id := range ids {
			if i := p.find(id); i != nil {
				i.Drained = true
			}
		}
		return nil
	})
}

// Return ends instances.
func (p *Provider) Return(ctx context.Context, ids ...string) error {
	return p.callProvider(ctx, "return", fmt.Sprint(ids), func() error {
		for _, id := range ids {
			if i := p.find(id); i != nil {
				p.endInstance(i)
			}
		}
		return nil
	})
}

// endInstance ends an instance. p.mu is held.
func (p *Provider) endInstance(i *instance) {
	if i.State >= rent.Stopping {
		return
	}
	i.State, i.ended = rent.Gone, time.Now()
	if i.stop != nil {
		p.running.Go(i.stop)
	}
}

// TakeBack ends an instance without being asked to, as providers and other tools do.
func (p *Provider) TakeBack(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(id); i != nil {
		p.endInstance(i)
	}
}

// Short makes a kind short, or to be had again.
func (p *Provider) Short(kind rent.Kind, short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.short == nil {
		p.short = map[rent.Kind]bool{}
	}
	p.short[kind] = short
}

// Live counts what is paid for, by kind.
func (p *Provider) Live() map[rent.Kind]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := map[rent.Kind]int{}
	for _, i := range p.instances {
		if i.State < rent.Stopping {
			counts[i.Slot.Kind]++
		}
	}
	return counts
}

// Duplicates counts the slots that were given more than one instance; there must be none.
func (p *Provider) Duplicates() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slots := map[rent.Slot]bool{}
	for _, i := range p.instances {
		if slots[i.Slot] {
			n++
		}
		slots[i.Slot] = true
	}
	return n
}

// Check finds no fault.
func (p *Provider) Check(context.Context) []cloud.Fault { return nil }
