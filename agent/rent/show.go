package rent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/leader/rent"
)

// show makes what State returns. seen and step are nil where no step was made.
func (l *loop) show(p *policy.Policy, d *control.DesiredFleet, seen *rent.Seen, step *rent.Step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &control.FleetState{Proposal: l.shown.GetProposal(), Outlook: l.shown.GetOutlook(),
		Fault: l.fault}
	l.seen = seen
	if p != nil {
		s.Mode, s.LimitUsdPerHour = string(p.Mode), p.MaxPrice
	}
	for _, kind := range slices.SortedFunc(maps.Keys(l.prices), rent.Kind.Compare) {
		s.Prices = append(s.Prices,
			&control.PricedKind{Kind: kind.String(), PriceUsdPerHour: l.prices[kind]})
	}
	if step != nil {
		l.fill(s, seen, step)
		if seen.Paused != "" { // what would be done
			would := *seen
			would.Paused = ""
			s.Next, s.Held = l.previewStep(&would, s.Held)
		}
		for _, lack := range l.renter.Lacking(l.now()) {
			s.Lacking = append(s.Lacking, &control.LackingKind{Kind: lack.Kind.String(),
				Why: lack.Why, ForNs: int64(lack.For)})
		}
	}
	l.shown, l.of = s, d
	l.manager.metrics.setGauges(s, d)
}

// fill adds a step to what is shown.
func (l *loop) fill(s *control.FleetState, seen *rent.Seen, step *rent.Step) {
	s.PriceUsdPerHour, s.Exact = step.Price, step.Exact
	l.paid = map[string]float64{} // anew: callers of Paid have the one before
	for _, m := range step.Machines {
		r := &control.RentedMachine{
			Instance: m.ID, Slot: m.Slot.String(), Zone: m.Zone, Phase: m.Phase.String(),
			AgeNs: int64(m.Age), PriceUsdPerHour: m.Price,
		}
		if r.PriceUsdPerHour == 0 {
			r.PriceUsdPerHour = seen.Prices[m.Slot.Kind]
		}
		if m.Agent != nil {
			l.paid[m.Agent.Name] = r.PriceUsdPerHour
			r.Agent, r.EndsNs = m.Agent.Name, int64(m.Agent.Ends)
		}
		s.Machines = append(s.Machines, r)
	}
	foreign := map[string]uint32{}
	for _, a := range step.Foreign {
		foreign[string(a.Type)]++
	}
	for _, t := range slices.Sorted(maps.Keys(foreign)) {
		s.Foreign = append(s.Foreign, &control.FleetCount{Kind: t, Count: foreign[t]})
	}
	for _, h := range step.Held {
		s.Held = append(s.Held, &control.HeldChange{What: h.What, Reason: string(h.Reason),
			Why: h.Why, ForNs: int64(h.For)})
	}
}

// previewStep says what a step would do, and hold beside held. It leaves the renter as it is: a
// step that is not carried out changes nothing in it but what it has seen.
func (l *loop) previewStep(seen *rent.Seen, held []*control.HeldChange) ([]string,
	[]*control.HeldChange) {
	var next []string
	step := l.renter.Step(seen)
	for _, a := range step.Actions {
		text := fmt.Sprintf("%s %s", a.Kind, a.Slot)
		if a.ID != "" {
			text += " (" + a.ID + ")"
		}
		next = append(next, text+": "+a.Why)
	}
	for _, h := range step.Held {
		held = append(held, &control.HeldChange{What: h.What, Reason: string(h.Reason),
			Why: h.Why, ForNs: int64(h.For)})
	}
	return next, held
}

// dryRun answers with what would follow if d were desired.
func (l *loop) dryRun(d *control.DesiredFleet) *control.FleetState {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := proto.CloneOf(l.shown)
	s.Desired = d
	if l.seen != nil {
		would := *l.seen
		would.Paused, would.Desired = "", desiredOf(d)
		// of its own, for this is not Run's goroutine
		renter := rent.New(l.policy.Rent(), would.Now-time.Hour)
		step := renter.Step(&would)
		s.Next, s.Held = nil, nil
		for _, a := range step.Actions {
			s.Next = append(s.Next, fmt.Sprintf("%s %s: %s", a.Kind, a.Slot, a.Why))
		}
		l.fill(s, &would, &rent.Step{Held: step.Held, Price: step.Price})
	}
	return s
}

// count counts what a step shows of instances that have begun to serve.
func (l *loop) count(step *rent.Step) {
	there := map[string]bool{}
	for _, m := range step.Machines {
		there[m.ID] = true
		if _, known := l.starts[m.ID]; !known && m.Phase <= rent.Warming {
			l.starts[m.ID] = time.Now().Add(-m.Age)
		}
		if at, known := l.starts[m.ID]; known && m.Phase == rent.Serving && !at.IsZero() {
			took := time.Since(at)
			l.manager.metrics.starts.Observe(took.Seconds())
			l.chooser.ObserveBoot(m.Slot.Type, took)
			l.starts[m.ID] = time.Time{}
		}
	}
	maps.DeleteFunc(l.starts, func(id string, _ time.Time) bool { return !there[id] })
}

type metrics struct {
	instances                 *prometheus.GaugeVec // state, type, market
	price, limit, proposed    prometheus.Gauge
	held                      *prometheus.GaugeVec
	launches, returns, errors *prometheus.CounterVec
	starts                    prometheus.Histogram
}

// newMetrics registers the metrics of an agent that rents.
func newMetrics(r prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		instances: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_fleet_instances",
			Help: "Rented instances by state: desired, starting, serving, draining or leaving. " +
				"Only the leader has it."}, []string{"state", "instance_type", "market"}),
		price: gauge("muster_fleet_price_usd_per_hour",
			"The price of all that is paid for. Only the leader has it."),
		limit: gauge("muster_fleet_price_limit_usd_per_hour",
			"The most that all that is paid for may cost. Only the leader has it."),
		proposed: gauge("muster_fleet_proposed_price_usd_per_hour",
			"The price of the fleet that is proposed, else of the desired one. Only the leader "+
				"has it."),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_fleet_held",
			Help: "Changes that are wished for and not done, by reason. Only the leader has it."},
			[]string{"reason"}),
		launches: counter("muster_fleet_launches_total",
			"Calls for an instance that this agent has made as the leader, by what came of them.",
			"instance_type", "result"),
		returns: counter("muster_fleet_returns_total",
			"Instances that this agent has returned as the leader, by why.",
			"instance_type", "reason"),
		errors: counter("muster_fleet_errors_total",
			"Calls of the provider that gave nothing, by call and kind of error.", "call", "code"),
		starts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "muster_fleet_start_seconds",
			Help:    "The time from an instance's launch until it serves.",
			Buckets: []float64{1, 5, 15, 30, 45, 60, 90, 120, 180, 300, 600},
		}),
	}
	r.MustRegister(m.instances, m.price, m.limit, m.proposed, m.held, m.launches, m.returns,
		m.errors, m.starts)
	return m
}

// clearLeader clears what only a leader has.
func (m *metrics) clearLeader() {
	m.instances.Reset()
	m.held.Reset()
	m.price.Set(0)
	m.limit.Set(0)
	m.proposed.Set(0)
}

func (m *metrics) countReturned(a rent.Action) {
	reason := "lost"
	switch {
	case strings.HasPrefix(a.Why, "it is drained"):
		reason = "drained"
	case strings.HasPrefix(a.Why, "it is not desired"):
		reason = "undesired"
	}
	m.returns.WithLabelValues(string(a.Slot.Type), reason).Inc()
}

// setGauges sets the gauges to what is shown.
func (m *metrics) setGauges(s *control.FleetState, d *control.DesiredFleet) {
	m.instances.Reset()
	m.held.Reset()
	add := func(state string, kind rent.Kind, n int) {
		m.instances.WithLabelValues(state, string(kind.Type), kind.Market.String()).Add(float64(n))
	}
	desired := 0.0
	prices := map[string]float64{}
	for _, p := range s.Prices {
		prices[p.Kind] = p.PriceUsdPerHour
	}
	for kind, n := range desiredOf(d).Counts {
		add("desired", kind, n)
		desired += float64(n) * prices[kind.String()]
	}
	for _, machine := range s.Machines {
		slot, err := rent.ParseSlotTag(machine.Slot)
		if err != nil {
			continue
		}
		state := machine.Phase
		switch state {
		case "asked", "warming":
			state = "starting"
		case "missing", "lost", "drained":
			continue
		}
		add(state, slot.Kind, 1)
	}
	for _, h := range s.Held {
		m.held.WithLabelValues(h.Reason).Inc()
	}
	m.price.Set(s.PriceUsdPerHour)
	m.limit.Set(s.LimitUsdPerHour)
	if s.Proposal != nil {
		desired = s.Proposal.PriceUsdPerHour
	}
	m.proposed.Set(desired)
}
