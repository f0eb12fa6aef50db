package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/provider"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

const (
	// minPause and maxPause bound the pause before a process is started in place of one that ended
	// before it had answered. It doubles with each such process in a row.
	minPause, maxPause = time.Second, time.Minute
	// callTimeout bounds a call that has no deadline. Check asks AWS a dozen things, each of which
	// may take 30 s.
	callTimeout = 5 * time.Minute
	// minTime is the time that a call had, at least, if its missing answer says that the process
	// hangs. The process has a tenth of it for its answer.
	minTime = 5 * time.Second
)

// A Provider is one in a process of its own. It implements [cloud.Provider]. The first call starts
// the process, and so does one after it has ended; see [Provider.Close].
type Provider struct {
	name  string
	fleet Fleet
	log   *slog.Logger
	// startProcess starts a process and has its greeting.
	startProcess func(context.Context) (*process, error)

	// lock holds one value while a call uses what follows.
	lock    chan struct{}
	closed  bool
	running *process // nil: none
	failed  int      // processes in a row that ended before they had answered
	next    time.Time
	why     error // why the last process ended
}

// Open returns the provider with this name. It starts nothing: calls tell whether there is a
// program, and whether it works. The caller closes the Provider.
func Open(name string, fleet Fleet, log *slog.Logger) *Provider {
	log = log.With("provider", name)
	return newProvider(name, fleet, log, func(ctx context.Context) (*process, error) {
		path, err := Find(name) // each time: what is missing may be installed meanwhile
		if err != nil {
			return nil, err
		}
		return startProcess(ctx, name, path, log)
	})
}

func newProvider(name string, fleet Fleet, log *slog.Logger,
	start func(context.Context) (*process, error)) *Provider {
	return &Provider{name: name, fleet: fleet, log: log, startProcess: start,
		lock: make(chan struct{}, 1)}
}

// Close ends the process and waits for it. Calls that run end with an error, and so do later ones.
func (p *Provider) Close() error {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	p.closed = true
	if p.running != nil {
		p.running.endProcess()
		p.running = nil
	}
	return nil
}

// openProcess returns the process that runs, and starts one where none does. It is open for the
// fleet if opens is true.
func (p *Provider) openProcess(ctx context.Context, opens bool) (*process, error) {
	select {
	case p.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", programName(p.name), ctx.Err())
	}
	defer func() { <-p.lock }()
	if p.closed {
		return nil, fmt.Errorf("%s: closed", programName(p.name))
	}
	if p.running != nil {
		select {
		case <-p.running.ended: // between two calls
			p.log.Warn("the agent starts the provider again", "error", p.running.exit)
			p.noteEnd(p.running.exit)
		default:
		}
	}
	if p.running == nil {
		if wait := time.Until(p.next); wait > 0 {
			return nil, fmt.Errorf("%w; the agent starts it again in %v", p.why,
				wait.Round(time.Second))
		}
		started, err := p.startProcess(ctx)
		if err != nil {
			if !errors.Is(ctx.Err(), context.Canceled) {
				p.noteEnd(err)
			}
			return nil, err
		}
		p.running = started
	}
	if p.running.opened || !opens {
		return p.running, nil
	}
	_, err := p.running.client.Open(ctx, &provider.OpenRequest{Fleet: p.fleet.toMessage()})
	if own := failureOf(err); own != nil { // the next call asks again: what it reads may be another
		p.running.answered, p.failed = true, 0
		return nil, fmt.Errorf("%s: %w", programName(p.name), own)
	}
	if err != nil {
		err = p.brokenError(p.running, err)
		p.running.endProcess()
		p.noteEnd(err)
		return nil, err
	}
	p.log.Info("the provider started")
	p.running.opened = true
	return p.running, nil
}

// noteEnd notes why there is no process. lock is held.
func (p *Provider) noteEnd(why error) {
	p.next = time.Time{}
	if !p.running.hasAnswered() {
		p.next = time.Now().Add(min(maxPause, minPause<<min(p.failed, 16)))
		p.failed++
	}
	if p.running != nil {
		_ = p.running.conn.Close()
	}
	p.running, p.why = nil, why
}

// abandonProcess ends a process that is of no use any more.
func (p *Provider) abandonProcess(of *process, why error) {
	of.kill()
	<-of.ended
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	if p.running == of {
		p.log.Warn("the agent starts the provider again", "error", why)
		p.noteEnd(why)
	}
}

// brokenError is what a call ends with whose connection broke: how the process ended, if it did.
func (p *Provider) brokenError(of *process, err error) error {
	select {
	case <-of.ended:
		return of.exit
	case <-time.After(endTimeout): // a connection breaks a little before its process has ended
		return fmt.Errorf("%s: %s", programName(p.name), status.Convert(err).Message())
	}
}

// call makes a call of the process, which is open, within ctx.
func (p *Provider) call(ctx context.Context,
	do func(context.Context, provider.ProviderClient) error) error {
	return p.callProcess(ctx, true, do)
}

func (p *Provider) callProcess(ctx context.Context, opens bool,
	do func(context.Context, provider.ProviderClient) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	running, err := p.openProcess(ctx, opens)
	if err != nil {
		return err
	}
	began := time.Now()
	err = do(ctx, running.client)
	own := failureOf(err)
	switch {
	case err == nil || own != nil:
		p.noteAnswer(running)
		return own
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", programName(p.name), context.Canceled)
	case status.Code(err) == codes.DeadlineExceeded:
		err = fmt.Errorf("%s does not answer: %w", programName(p.name), context.DeadlineExceeded)
		if time.Since(began) >= minTime {
			p.abandonProcess(running, err)
		}
		return err
	case status.Code(err) == codes.Unavailable:
		err = p.brokenError(running, err)
		p.abandonProcess(running, err)
		return err
	}
	// Such as a call that another version of the provider does not have.
	return fmt.Errorf("%s: %s", programName(p.name), status.Convert(err).Message())
}

// noteAnswer notes that a process has answered.
func (p *Provider) noteAnswer(of *process) {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	of.answered = true
	if p.running == of {
		p.failed = 0
	}
}

// Offers implements [cloud.Provider].
func (p *Provider) Offers(ctx context.Context, types []profiles.InstanceType) (offers []cloud.Offer,
	err error) {
	err = p.call(ctx, func(ctx context.Context, c provider.ProviderClient) error {
		answer, err := c.Offers(ctx, &provider.OffersRequest{Types: toTexts(types)})
		for _, o := range answer.GetOffers() {
			offers = append(offers, cloud.Offer{
				Kind: kindOf(o.GetKind()), Zone: o.GetZone(), Price: o.GetPriceUsdPerHour(),
			})
		}
		return err
	})
	return offers, err
}

// List implements [cloud.Provider].
func (p *Provider) List(ctx context.Context) (list []rent.Instance, err error) {
	var answer *provider.ListResponse
	err = p.call(ctx, func(ctx context.Context, c provider.ProviderClient) (err error) {
		answer, err = c.List(ctx, &provider.ListRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, m := range answer.GetInstances() {
		i, err := instanceOf(m)
		if err != nil {
			return nil, fmt.Errorf("%s: list: %w", programName(p.name), err)
		}
		list = append(list, i)
	}
	return list, nil
}

// Launch implements [cloud.Provider].
func (p *Provider) Launch(ctx context.Context, slot rent.Slot, spec cloud.Spec) (rent.Instance,
	error) {
	var answer *provider.LaunchResponse
	err := p.call(ctx, func(ctx context.Context, c provider.ProviderClient) (err error) {
		answer, err = c.Launch(ctx, &provider.LaunchRequest{
			Slot: toSlot(slot), Zones: spec.Zones, By: spec.By, Version: spec.Version,
		})
		return err
	})
	if err != nil {
		return rent.Instance{}, err
	}
	i, err := instanceOf(answer.GetInstance())
	if err != nil {
		return rent.Instance{}, fmt.Errorf("%s: launch: %w", programName(p.name), err)
	}
	return i, nil
}

// Mark implements [cloud.Provider].
func (p *Provider) Mark(ctx context.Context, ids ...string) error {
	return p.call(ctx, func(ctx context.Context, c provider.ProviderClient) error {
		_, err := c.Mark(ctx, &provider.MarkRequest{Ids: ids})
		return err
	})
}

// Return implements [cloud.Provider].
func (p *Provider) Return(ctx context.Context, ids ...string) error {
	return p.call(ctx, func(ctx context.Context, c provider.ProviderClient) error {
		_, err := c.Return(ctx, &provider.ReturnRequest{Ids: ids})
		return err
	})
}

// Check implements [cloud.Provider]. That the process does not work is a fault, too.
func (p *Provider) Check(ctx context.Context) (faults []cloud.Fault) {
	err := p.call(ctx, func(ctx context.Context, c provider.ProviderClient) error {
		answer, err := c.Check(ctx, &provider.CheckRequest{})
		for _, f := range answer.GetFaults() {
			faults = append(faults, cloud.Fault{What: f.GetWhat(), Why: f.GetWhy()})
		}
		return err
	})
	if err != nil {
		faults = append(faults, cloud.Fault{What: "provider " + p.name, Why: err.Error()})
	}
	return faults
}

// Policy returns the text of the rights that renting for the fleet needs, as [Program] has it.
func (p *Provider) Policy(ctx context.Context, account, workerRole string) (text string,
	err error) {
	err = p.callProcess(ctx, false, func(ctx context.Context, c provider.ProviderClient) error {
		answer, err := c.Policy(ctx, &provider.PolicyRequest{
			Fleet: p.fleet.toMessage(), Account: account, WorkerRole: workerRole,
		})
		text = answer.GetText()
		return err
	})
	return text, err
}
