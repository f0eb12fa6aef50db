package rent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
)

// A Term is what the leader's term gives. The functions may be called concurrently; those with a
// context block until they have an answer or it ends.
type Term struct {
	Self  string // this agent's name
	Epoch uint64
	View  func() *control.View
	// Changed returns a channel that is closed at the next change of the view's members.
	Changed func() <-chan struct{}
	// Status returns the agents' loads and factors; nil once the term ends.
	Status func() *control.FleetStatus
	// Demand returns the demand, with the types of the catalogue on which all models have a profile,
	// the families whose queries less accurate variants may answer, and memory; an error where the
	// demand is not known yet.
	Demand func() (*choose.Fleet, error)
	// Drain has an agent drain.
	Drain func(ctx context.Context, agent string) error
	// Tell sends what is desired to all members.
	Tell func(*control.DesiredFleet)
}

const (
	// callTimeout bounds a call of the provider.
	callTimeout = 30 * time.Second
	// planEvery is the time between two plans while nothing else asks for one.
	planEvery = 5 * time.Minute
	// planRest is the least time between two plans, and that between two that have to agree;
	// shortRest is that where machines are processes, which start within seconds.
	planRest, shortRest = 20 * time.Second, 3 * time.Second
	// loadEvery is how often the load is looked at.
	loadEvery = 2 * time.Second
	// priceChanged is by which share a price must change for a plan.
	priceChanged = 0.05
)

// A loop is one term's. Its goroutine is Manager.Run's; mu guards what it shares.
type loop struct {
	manager *Manager
	term    Term
	began   time.Time

	provider cloud.Provider
	renter   *rent.Renter
	chooser  *choose.Chooser
	listed   time.Time // when list was made; zero: never
	priced   time.Time
	zones    map[rent.Kind][]string
	serves   func(map[profiles.InstanceType]int) float64
	planned  time.Time
	rest     time.Duration // until the next plan
	noPlan   bool          // there was a reason against the last one
	exact    bool          // the fleet was as desired at the last step, and all of it served
	lacked   string
	number   uint64
	starts   map[string]time.Time

	mu     sync.Mutex
	policy *policy.Policy // nil: it has faults
	text   string         // of policy
	prices map[rent.Kind]float64
	list   []rent.Instance
	seen   *rent.Seen // of the last step
	fault  string
	shown  *control.FleetState
	of     *control.DesiredFleet // what was desired when shown was made
	paid   map[string]float64    // $/hr of the machines of agents, by the last step; never changed
	// learned is what this leader has learned at learnedAt; nil: no step was made yet. It is never
	// changed.
	learned   *control.LearnedRenting
	learnedAt time.Time
}

// Run rents while this agent leads, until ctx ends.
func (r *Manager) Run(ctx context.Context, term Term) {
	l := &loop{manager: r, term: term, began: time.Now(), shown: &control.FleetState{},
		starts: map[string]time.Time{}}
	if !r.Rents() {
		l.shown.Fault = "the leader runs without --rent FILE, which agents that may lead need"
	}
	r.mu.Lock()
	r.term = l
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.term = nil
		r.mu.Unlock()
		if r.Rents() {
			r.metrics.clearLeader()
		}
	}()
	r.electors.beginTerm()
	r.electors.addSeen(0, r.Desired().GetElectors())
	if !r.Rents() {
		<-ctx.Done()
		return
	}
	l.run(ctx)
}

func (l *loop) now() time.Duration { return time.Since(l.began) }

func (l *loop) run(ctx context.Context) {
	defer func() { closeProvider(l.provider) }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	look := time.NewTicker(loadEvery)
	defer look.Stop()
	members := l.term.Changed()
	for ctx.Err() == nil {
		select {
		case <-timer.C:
		case <-look.C:
			if !l.look() {
				continue
			}
		case <-l.manager.wake:
		case <-members:
			members = l.term.Changed()
		case <-ctx.Done():
			return
		}
		next := l.round(ctx)
		if until := time.Until(l.planned.Add(planEvery)); until < next {
			next = max(until, time.Second)
		}
		timer.Reset(next)
	}
}

// look notes the load, and reports whether there is to be a round for it.
func (l *loop) look() bool {
	if l.chooser == nil {
		return false
	}
	now, status := l.now(), l.term.Status()
	l.chooser.Observe(now, status.GetRate())
	if l.chooser.ObserveLateness(now, desiredOf(l.manager.Desired()).Counts, l.exact,
		latenessOf(status, l.term.View().GetMembers())) {
		safe := l.chooser.SafeLoad()
		l.manager.log.Warn("another load of the fleet counts as safe", "share", safe.Share, "why",
			safe.Why, eventKey, "fleet")
	}
	needed, _ := l.chooser.Needed(now)
	return time.Since(l.planned) >= l.rest && (l.noPlan && needed > 0 || l.chooser.NeedsPlan(now))
}

// latenessOf says how late the queries of the last minute were, by model. What is late however many
// machines there are counts as allowed.
func latenessOf(s *control.FleetStatus, members []*control.Member) (all []choose.Lateness) {
	targets := map[names.ModelKey]float64{}
	// lacking has, of the agents that hold a model, the one whose threads wait most.
	lacking := map[names.ModelKey]*control.Member{}
	for _, m := range members {
		for _, held := range m.GetModels() {
			key := names.NewModelKey(held.GetName(), held.GetVersion())
			targets[key] = max(targets[key], held.GetQosPercentile())
			if m.GetCpuWait() > lacking[key].GetCpuWait() {
				lacking[key] = m
			}
		}
	}
	for _, m := range s.GetModels() {
		key := names.NewModelKey(m.GetModel(), m.GetVersion())
		target := targets[key]
		if m.WithinQos == nil || !(target > 0 && target < 1) {
			continue
		}
		late := choose.Lateness{
			Model: string(key), Queries: 60 * m.GetRate(), LateShare: 1 - m.GetWithinQos(),
			AllowedShare: min(1, 1-target+m.GetUnmetShare()),
		}
		if a := lacking[key]; a != nil {
			late.Cause = fmt.Sprintf("%s lacks CPU: its threads wait for a processor for %.0f %% of "+
				"the time in which they could run", a.GetName(), 100*a.GetCpuWait())
		}
		all = append(all, late)
	}
	return all
}

// round makes one step: it lists, plans if that is due, steps and acts. It returns in how long the
// next is due.
func (l *loop) round(ctx context.Context) time.Duration {
	desired := l.manager.Desired()
	l.usePolicy(desired)
	l.mu.Lock()
	p := l.policy
	l.mu.Unlock()
	if p == nil || l.provider == nil || p.Mode == policy.Off {
		l.show(p, desired, nil, nil)
		return time.Minute
	}
	l.refresh(ctx, p)
	if desired = l.identify(desired, p); ctx.Err() != nil {
		return 0
	}
	l.plan(ctx, p, desired)
	desired = l.manager.Desired()
	seen := l.gather(p, desired)
	if ctx.Err() != nil {
		return 0
	}
	step := l.renter.Step(seen)
	l.exact = step.Exact
	acted := l.act(ctx, p, &step)
	l.count(&step)
	l.noteLearned()
	l.show(p, desired, seen, &step)
	if acted && p.Process != nil {
		return min(step.Next, time.Second)
	}
	return step.Next
}

// usePolicy opens the provider of what is desired, where its policy is another than before.
func (l *loop) usePolicy(d *control.DesiredFleet) {
	before := l.provider
	defer func() { // without mu
		if l.provider != before {
			closeProvider(before)
		}
	}()
	text := d.GetPolicy()
	if text == "" {
		text = l.manager.config.Policy
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if text == l.text {
		return
	}
	l.text = text
	p, err := policy.Parse("fleet.yaml", text)
	var provider cloud.Provider
	if err == nil {
		provider, err = l.manager.config.Open(p)
	}
	var later *document.FormatError
	if errors.As(err, &later) && l.policy != nil {
		l.fault = err.Error()
		l.manager.log.Error("the fleet.yaml of before stays in force", "error", err, eventKey,
			"fleet")
		return
	}
	if err != nil {
		l.fault = err.Error()
		l.manager.log.Error("nothing can be rented", "error", err, eventKey, "fleet")
		l.policy, l.provider = nil, nil
		return
	}
	l.policy, l.provider, l.fault = p, provider, ""
	l.rest = planRest
	if p.Process != nil {
		l.rest = shortRest
	}
	l.priced, l.listed = time.Time{}, time.Time{}
	l.list = nil // of another provider, perhaps; if this one does not answer, nothing is known
	if l.renter == nil {
		l.renter, l.chooser = rent.New(p.Rent(), l.now()), choose.New(p.Choose())
		l.takeLearned(d.GetLearned(), l.manager.sinceStored())
	} else {
		l.renter.SetPolicy(p.Rent())
		l.chooser.SetConfig(p.Choose())
	}
	l.planned = time.Time{}
}

// closeProvider ends what a provider has, such as a process.
func closeProvider(p cloud.Provider) {
	if c, ok := p.(io.Closer); ok {
		_ = c.Close()
	}
}

// call calls the provider, and keeps what it ends with.
func (l *loop) call(ctx context.Context, name string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := do(ctx)
	if err != nil && ctx.Err() != context.Canceled {
		code := codeOf(err)
		l.manager.metrics.errors.WithLabelValues(name, code).Inc()
		err = fmt.Errorf("%s: %w", name, err)
		if l.setFault(err.Error()) {
			l.manager.log.Warn("the provider does not do what it is asked", "call", name, "error",
				err, eventKey, "fleet")
		}
	}
	return err
}

// setFault keeps what went wrong last, and reports whether it is another than before.
func (l *loop) setFault(fault string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.fault
	l.fault = fault
	return fault != was
}

func codeOf(err error) string {
	var short *cloud.ErrShort
	switch {
	case errors.As(err, &short):
		return "short"
	case errors.Is(err, cloud.ErrQuota):
		return "quota"
	case errors.Is(err, cloud.ErrDenied):
		return "denied"
	case errors.Is(err, cloud.ErrThrottled):
		return "throttled"
	case errors.Is(err, cloud.ErrSpent):
		return "spent"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "other"
}

// pricesFor is how long prices are used.
const pricesFor = 5 * time.Minute

// refresh asks the provider for prices, if those known are old, and for what is rented.
func (l *loop) refresh(ctx context.Context, p *policy.Policy) {
	if time.Since(l.priced) >= pricesFor || l.priced.IsZero() {
		var offers []cloud.Offer
		if l.call(ctx, "prices", func(ctx context.Context) (err error) {
			offers, err = l.provider.Offers(ctx, p.Names())
			return err
		}) == nil {
			l.priced = time.Now()
			l.offered(offers)
		}
	}
	var list []rent.Instance
	if l.call(ctx, "list", func(ctx context.Context) (err error) {
		list, err = l.provider.List(ctx)
		return err
	}) != nil {
		return
	}
	l.listed = time.Now()
	l.mu.Lock()
	l.list = list
	if strings.HasPrefix(l.fault, "list: ") || strings.HasPrefix(l.fault, "prices: ") &&
		time.Since(l.priced) < pricesFor {
		l.fault = ""
	}
	l.mu.Unlock()
}

// offered takes the provider's prices: of each kind that of the dearest zone.
func (l *loop) offered(offers []cloud.Offer) {
	prices, zones := map[rent.Kind]float64{}, map[rent.Kind][]string{}
	for _, o := range offers {
		prices[o.Kind] = max(prices[o.Kind], o.Price)
		zones[o.Kind] = append(zones[o.Kind], o.Zone)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, price := range prices {
		if before := l.prices[kind]; before > 0 &&
			(price > before*(1+priceChanged) || price < before*(1-priceChanged)) {
			l.planned = time.Time{}
			l.manager.log.Info("a price has changed", "kind", kind.String(), "before", before,
				"now", price, eventKey, "fleet")
		}
	}
	l.prices, l.zones = prices, zones
}

// identities are those that live instances of the fleet's name carry. l.mu is held.
func (l *loop) identities() (all []string) {
	for _, i := range l.list {
		if i.By != "" && i.State < rent.Stopping && !slices.Contains(all, i.By) {
			all = append(all, i.By)
		}
	}
	slices.Sort(all)
	return all
}

// identify gives a fleet that has none its identity, and one that is to act by itself the least
// that its policy asks for. It returns what is desired then.
func (l *loop) identify(d *control.DesiredFleet, p *policy.Policy) *control.DesiredFleet {
	l.mu.Lock()
	first := d.GetIdentity() == "" && !l.listed.IsZero() && len(l.identities()) == 0
	least := l.chooser.Least(l.prices)
	affords := p.Affords(l.prices)
	priced := len(l.prices) > 0
	l.mu.Unlock()
	electors := l.manager.electors.sortedAddresses()
	moved := len(electors) > 0 && !slices.Equal(electors, d.GetElectors())
	begin := p.Mode == policy.Auto && !d.GetKnown() && priced && affords == nil &&
		(first || d.GetIdentity() != "")
	if affords != nil {
		l.setFault(affords.Error())
	}
	if !first && !begin && !moved {
		return d
	}
	next := &control.DesiredFleet{}
	if d != nil {
		next = proto.CloneOf(d)
	}
	next.Electors = electors
	if first {
		next.Identity, next.Why, next.By = newIdentity(), "a new fleet", ""
	}
	if begin {
		next.Counts, next.Known = toCounts(least), true
		next.Why, next.By = "the minimum of the policy", ""
	}
	if l.setDesired(d, next) != nil {
		return d
	}
	return l.manager.Desired()
}

// gather gathers what a step goes by.
func (l *loop) gather(p *policy.Policy, d *control.DesiredFleet) *rent.Seen {
	now := l.now()
	members := l.term.View().GetMembers()
	l.mu.Lock()
	list, prices := l.list, l.prices
	l.mu.Unlock()
	age := time.Since(l.listed)
	seen := &rent.Seen{
		Now: now, ListAge: age, Agents: agentsOf(members, l.term.Status(), l.term.Self),
		Prices: prices, Template: p.Template(),
		Majority:  l.manager.electors.hasMajority(now, members) && l.knowsMost(),
		NoReturns: p.Window.Closed(time.Now()),
		Serves:    l.serves,
	}
	for _, i := range list {
		i.Age += age
		seen.Instances = append(seen.Instances, i)
	}
	seen.Needed, seen.NeededFor = l.chooser.Needed(now)
	if l.serves == nil {
		seen.Serves = func(map[profiles.InstanceType]int) float64 { return 0 }
	}
	seen.Desired = desiredOf(d)
	bounds := p.Rent()
	if d.GetDestroyed() {
		seen.Needed, bounds.Min = 0, 0
	}
	l.renter.SetPolicy(bounds)
	switch paused := l.manager.pauseReason(d); {
	case paused != "":
		seen.Paused = paused
	case !p.Mode.Acts():
		seen.Paused = fmt.Sprintf("the mode is %s", p.Mode)
	case !d.GetKnown():
		seen.Paused = "no machines are desired yet: approve a proposal, or set counts"
	}
	return seen
}

// pauseReason says why a person has paused the fleet; "": nobody has.
func (r *Manager) pauseReason(d *control.DesiredFleet) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := time.Until(r.resumes).Round(time.Second)
	switch {
	case d.GetPausedNs() < 0:
		return "paused by " + orSomebody(d.GetBy()) + " until resumed"
	case d.GetPausedNs() > 0 && left > 0:
		return fmt.Sprintf("paused by %s for another %v", orSomebody(d.GetBy()), left)
	}
	return ""
}

func orSomebody(name string) string {
	if name == "" {
		return "somebody"
	}
	return name
}

func desiredOf(d *control.DesiredFleet) rent.Desired {
	counts, err := countsOf(d.GetCounts())
	if err != nil { // another version of Muster
		counts = nil
	}
	return rent.Desired{Version: d.GetVersion(), Counts: counts, By: d.GetIdentity()}
}

// agentsOf are the fleet's members as leader/rent takes them.
func agentsOf(members []*control.Member, status *control.FleetStatus, self string) []rent.Agent {
	known := map[string]*control.AgentStatus{}
	for _, a := range status.GetAgents() {
		known[a.GetName()] = a
	}
	var all []rent.Agent
	for _, m := range members {
		if m.GetLanes() == 0 {
			continue // a stranger
		}
		a := rent.Agent{
			Name: m.GetName(), Type: profiles.InstanceType(m.GetInstanceType()),
			Instance: m.GetRented().GetInstance(), Ready: m.GetReady(), Draining: m.GetDraining(),
			Ends: control.Duration(m.GetRented().GetEndsNs()), Risky: m.GetRented().GetAdvised(),
			Load: known[m.GetName()].GetBusy(), Factor: known[m.GetName()].GetFactor(),
			Leads: m.GetName() == self, Keeper: m.GetRents(),
		}
		if slot, err := rent.ParseSlotTag(m.GetRented().GetSlot()); err == nil {
			a.Slot = &slot
		}
		all = append(all, a)
	}
	return all
}

// act carries out a step's actions, and reports whether there were any.
func (l *loop) act(ctx context.Context, p *policy.Policy, step *rent.Step) bool {
	for _, event := range step.Events {
		l.manager.log.Warn("an instance is gone", "what", event, eventKey, "fleet")
	}
	for _, a := range step.Actions {
		if ctx.Err() != nil {
			return true
		}
		switch a.Kind {
		case rent.Launch:
			l.launch(ctx, p, a)
		case rent.Drain:
			l.drain(ctx, a)
		case rent.Return:
			if l.call(ctx, "return", func(ctx context.Context) error {
				return l.provider.Return(ctx, a.ID)
			}) == nil {
				l.renter.Returned(a, l.now())
				l.manager.metrics.countReturned(a)
				l.manager.log.Info("returned", "instance", a.ID, "slot", a.Slot.String(), "why",
					a.Why, eventKey, "fleet")
			}
		}
	}
	return len(step.Actions) > 0
}

func (l *loop) launch(ctx context.Context, p *policy.Policy, a rent.Action) {
	if l.renter.Waits(a.Slot.Kind, l.now()) != "" {
		return
	}
	d := l.manager.Desired()
	zones := slices.Clone(l.zones[a.Slot.Kind])
	slices.SortStableFunc(zones, func(x, y string) int {
		return truth(slices.Contains(a.Avoid, x)) - truth(slices.Contains(a.Avoid, y))
	})
	log := l.manager.log.With("slot", a.Slot.String(), eventKey, "fleet")
	log.Info("renting", "why", a.Why)
	var i rent.Instance
	err := l.call(ctx, "launch", func(ctx context.Context) (err error) {
		i, err = l.provider.Launch(ctx, a.Slot, cloud.Spec{
			Zones: zones, By: d.GetIdentity(), Version: d.GetVersion(),
		})
		return err
	})
	result := "launched"
	if err != nil {
		result = codeOf(err)
	}
	l.manager.metrics.launches.WithLabelValues(string(a.Slot.Type), result).Inc()
	if err != nil {
		l.renter.Failed(a.Slot, failureOf(err), err.Error(), l.now())
		if errors.Is(err, cloud.ErrDenied) {
			log.Error("the provider refuses: nothing is rented for a while", "error", err)
		}
		return
	}
	l.setFault("")
	l.renter.Launched(a.Slot, i, l.now())
	log.Info("rented", "instance", i.ID, "zone", i.Zone)
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

func failureOf(err error) rent.Failure {
	switch codeOf(err) {
	case "short":
		return rent.IsShort
	case "quota":
		return rent.OverQuota
	case "denied":
		return rent.Denied
	case "throttled":
		return rent.Throttled
	case "spent":
		return rent.Spent
	}
	return rent.Unknown
}

// drain marks an instance, so that the next leader returns it, and has its agent drain.
func (l *loop) drain(ctx context.Context, a rent.Action) {
	if l.call(ctx, "mark", func(ctx context.Context) error {
		return l.provider.Mark(ctx, a.ID)
	}) != nil {
		return
	}
	log := l.manager.log.With("instance", a.ID, "slot", a.Slot.String(), "agent", a.Agent, eventKey,
		"fleet")
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := l.term.Drain(ctx, a.Agent); err != nil {
		log.Warn("the agent does not drain", "error", err)
		return
	}
	l.renter.Told(a.ID, l.now())
	log.Info("returning", "why", a.Why)
}

// plan looks whether another fleet is to be desired, if that is due.
func (l *loop) plan(ctx context.Context, p *policy.Policy, d *control.DesiredFleet) {
	now := l.now()
	lacks := l.renter.Lacking(now)
	var lacked []string
	for _, lack := range lacks {
		lacked = append(lacked, lack.Kind.String())
	}
	if !l.planned.IsZero() && strings.Join(lacked, " ") == l.lacked &&
		time.Since(l.planned) < planEvery &&
		!((l.noPlan || l.chooser.NeedsPlan(now)) && time.Since(l.planned) >= l.rest) {
		return
	}
	l.lacked, l.planned = strings.Join(lacked, " "), time.Now()
	l.chooser.MarkPlanned(now)
	f, err := l.term.Demand()
	l.noPlan = err != nil
	if err != nil {
		l.showProposal(nil, p, "no plan: "+err.Error())
		return
	}
	f.Desired, f.Lacks = desiredOf(d).Counts, lacks
	f.Foreign, f.Have = map[profiles.InstanceType]int{}, map[rent.Kind]int{}
	capacity, err := choose.NewCapacity(f)
	if l.serves == nil && err == nil {
		l.useCapacity(capacity)
	}
	if d.GetDestroyed() {
		l.showProposal(nil, p, "")
		return
	}
	l.mu.Lock()
	f.Prices = l.prices
	for _, i := range l.list {
		if i.State < rent.Stopping {
			f.Have[i.Slot.Kind]++
		}
	}
	l.mu.Unlock()
	for _, a := range agentsOf(l.term.View().GetMembers(), nil, "") {
		if a.Slot == nil && !a.Draining {
			f.Foreign[a.Type]++
		}
	}
	choice, err := l.chooser.Choose(ctx, now, f)
	l.noPlan = err != nil
	if err != nil {
		if capacity != nil {
			l.useCapacity(capacity)
		}
		l.showProposal(nil, p, "no plan: "+err.Error())
		return
	}
	l.useCapacity(choice.Capacity)
	if !choice.Change {
		l.showProposal(nil, p, choice.Why)
		return
	}
	if p.Mode == policy.Auto && d.GetKnown() && l.manager.pauseReason(d) == "" {
		next := proto.CloneOf(d)
		next.Counts, next.Why, next.By = toCounts(choice.Counts), choice.Why, ""
		if err := p.Allows(choice.Counts, f.Prices); err != nil {
			l.showProposal(choice, p, err.Error())
			return
		}
		if l.setDesired(d, next) == nil {
			l.showProposal(nil, p, choice.Why)
		}
		return
	}
	l.showProposal(choice, p, "")
}

// useCapacity has steps go by what agents carry.
func (l *loop) useCapacity(c *choose.Capacity) {
	var mu sync.Mutex // a dry run asks, too
	l.serves = func(counts map[profiles.InstanceType]int) float64 {
		mu.Lock()
		defer mu.Unlock()
		return c.SafeRate(counts)
	}
}

// showProposal shows a choice, nil for none, and why there is none or why it waits.
func (l *loop) showProposal(c *choose.Choice, p *policy.Policy, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown.Outlook = why
	before := l.shown.GetProposal()
	if c == nil {
		l.shown.Proposal = nil
		return
	}
	proposal := &control.FleetProposal{
		Counts: toCounts(c.Counts), PriceUsdPerHour: c.Price, NowUsdPerHour: c.Now, Why: c.Why,
		Waits: why,
	}
	desired := desiredOf(l.manager.Desired()).Counts
	kinds := maps.Clone(c.Counts)
	for kind := range desired {
		kinds[kind] += 0
	}
	for _, kind := range slices.SortedFunc(maps.Keys(kinds), rent.Kind.Compare) {
		switch n := c.Counts[kind] - desired[kind]; {
		case n > 0:
			proposal.Changes = append(proposal.Changes, fmt.Sprintf("%s: %d more", kind, n))
		case n < 0:
			proposal.Changes = append(proposal.Changes, fmt.Sprintf("%s: %d fewer", kind, -n))
		}
	}
	if proposal.Waits == "" {
		switch p.Mode {
		case policy.Advise:
			proposal.Waits = "the mode is advise: the leader rents and returns no machines"
		case policy.Approve:
			proposal.Waits = "somebody has to approve it"
		default:
			proposal.Waits = "the fleet is paused"
		}
	}
	if textOf(before.GetCounts()) != textOf(proposal.Counts) || before == nil {
		l.number++
		proposal.Number = l.term.Epoch<<20 | l.number
		l.manager.log.Info("another fleet is proposed", "fleet", textOf(proposal.Counts), "price",
			proposal.PriceUsdPerHour, "why", proposal.Why, "waits", proposal.Waits, eventKey,
			"fleet")
	} else {
		proposal.Number = before.Number
	}
	l.shown.Proposal = proposal
}

// isElector reports whether a member may lead.
func isElector(m *control.Member) bool {
	role, err := election.ParseRole(m.GetRole())
	return err == nil && role != election.Never
}
