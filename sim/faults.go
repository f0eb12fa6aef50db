package sim

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Verb is what a fault does.
type Verb string

const (
	// Kill: the agent's process ends, for good. What its lane has is lost, and who talks to it learns
	// that at once.
	Kill Verb = "kill"
	// Freeze: the agent's process stands still. What comes to it, and what its lane would have done,
	// it does when it thaws.
	Freeze Verb = "freeze"
	// Cut: the agent and all others, gateways too, do not reach each other.
	Cut Verb = "cut"
	// Delay: messages take Amount longer, those from and to the agent, or all.
	Delay Verb = "delay"
)

// TheLeader is the target of a fault that hits the agent that leads when it happens.
const TheLeader = "leader"

// FaultHelp says how a fault is written.
const FaultHelp = `VERB[-TARGET]@TIME[+DURATION][:AMOUNT]
  kill-TARGET@TIME                       the process ends; what its lane has is lost
  freeze-TARGET@TIME[+DURATION]          the process stands still
  cut-TARGET@TIME[+DURATION]             it and all others do not reach each other
  delay[-TARGET]@TIME[+DURATION]:AMOUNT  messages, to and from it or all, take longer
TARGET is "leader", who leads then, or an agent: r5n.large-3 is the third of that
type. TIME counts from the start of the run; without DURATION it is for good.`

// A Fault is something that goes wrong in a simulated fleet.
type Fault struct {
	Verb Verb
	// Target is an agent, [TheLeader], or "" for all (Delay only).
	Target string
	// At is when it happens, since the start of the run.
	At time.Duration
	// Duration is how long it lasts; 0: for good.
	Duration time.Duration
	// Amount is by how much messages are delayed.
	Amount time.Duration
}

func (f Fault) String() string {
	s := string(f.Verb)
	if f.Target != "" {
		s += "-" + f.Target
	}
	s += "@" + f.At.String()
	if f.Duration > 0 {
		s += "+" + f.Duration.String()
	}
	if f.Amount > 0 {
		s += ":" + f.Amount.String()
	}
	return s
}

// ParseFault reads a fault as [FaultHelp] says.
func ParseFault(text string) (Fault, error) {
	bad := func(format string, args ...any) (Fault, error) {
		return Fault{}, fmt.Errorf("fault %q: %s", text, fmt.Sprintf(format, args...))
	}
	what, when, ok := strings.Cut(text, "@")
	if !ok {
		return bad("got no @, want when it happens, e.g. kill-leader@10s")
	}
	verb, target, named := strings.Cut(what, "-")
	f := Fault{Verb: Verb(verb), Target: target}
	when, amount, hasAmount := strings.Cut(when, ":")
	at, duration, hasDuration := strings.Cut(when, "+")
	switch f.Verb {
	case Kill, Freeze, Cut:
		if target == "" {
			return bad("got no target, want %q or an agent, e.g. %s-leader@10s", TheLeader, verb)
		}
		if hasAmount {
			return bad("got the amount %q, want none: only a delay has one", amount)
		}
	case Delay:
		if named && target == "" {
			return bad("got no target after the -, want %q, an agent, or no - for all messages", TheLeader)
		}
		if !hasAmount {
			return bad("got no amount, want by how much messages are delayed, e.g. delay@5s+3s:20ms")
		}
	default:
		return bad("got the verb %q, want kill, freeze, cut or delay", verb)
	}
	if f.Verb == Kill && hasDuration {
		return bad("got the duration %q, want none: who is killed does not come back", duration)
	}
	for _, d := range []struct {
		given      bool
		name, text string
		least      time.Duration
		to         *time.Duration
	}{{true, "time", at, 0, &f.At}, {hasDuration, "duration", duration, 1, &f.Duration}, {hasAmount, "amount", amount, 1, &f.Amount}} {
		if !d.given {
			continue
		}
		x, err := time.ParseDuration(d.text)
		if err != nil || x < d.least || x > MaxLatency {
			return bad("got the %s %q, want a duration like 20ms or 10s, up to %v", d.name, d.text, MaxLatency)
		}
		*d.to = x
	}
	return f, nil
}

// ReadFaults reads faults, one a line. What follows a # is a comment. The name is for errors.
func ReadFaults(name string, r io.Reader) (faults []Fault, err error) {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		f, err := ParseFault(text)
		if err != nil {
			return nil, fmt.Errorf("%s line %d: %w", name, n, err)
		}
		faults = append(faults, f)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(faults) == 0 {
		return nil, fmt.Errorf("%s has no fault, want one a line, e.g. kill-leader@10s", name)
	}
	return faults, nil
}

// mostAgents bounds a fleet with faults: each of its agents knows all others.
const mostAgents = 1000

// validateFaults reports what is wrong with the faults, and with what cannot be simulated with them.
func (c *Config) validateFaults() (errs []error) {
	if len(c.Faults) == 0 {
		return nil
	}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.policy() == Priced || c.policy() == Oracle || c.policy() == DRS {
		bad("policy %s cannot be simulated with faults: no agent leads with it", c.policy())
	}
	if n := c.Pool.Count(); n > mostAgents {
		bad("pool has %d instances, want 1..%d with faults", n, mostAgents)
	}
	if c.ShardLanes != 0 {
		bad("shards have %d lanes, want the default with faults: agents have no other", c.ShardLanes)
	}
	if c.Probes < 0 {
		bad("number of lanes asked is %d, want 0 or more with faults: gateways of a fleet ask", c.Probes)
	}
	for _, f := range c.Faults {
		if f.Target == "" || f.Target == TheLeader {
			continue
		}
		i := strings.LastIndex(f.Target, "-")
		n, err := strconv.Atoi(f.Target[i+1:])
		if of := c.Pool.Of(f.Target[:max(i, 0)]); err != nil || n < 1 || n > of || f.Target[i+1:] != strconv.Itoa(n) {
			bad("fault %q: got the target %q, want %q or one of the agents %s", f, f.Target, TheLeader, c.Pool.agents())
		}
	}
	return errs
}

// agents are the names of a pool's agents, in short.
func (p Pool) agents() string {
	var all []string
	for _, in := range p {
		switch {
		case in.Count == 1:
			all = append(all, agentName(in.Type, 1))
		case in.Count > 1:
			all = append(all, fmt.Sprintf("%s to %s", agentName(in.Type, 1), agentName(in.Type, in.Count)))
		}
	}
	return strings.Join(all, ", ")
}

// agentName is how the nth agent of a type is called, the first by 1.
func agentName(instanceType string, n int) string { return instanceType + "-" + strconv.Itoa(n) }

// faultWindow is over how long queries are counted before and after a fault, by their arrival.
const faultWindow = 2 * time.Second

// A FaultCount is what became of the queries that arrived in some time.
type FaultCount struct {
	Queries int `json:"queries"`
	// Late are those that were not answered within their QoS target; Lost among them those that were
	// not answered and not rejected or dropped either.
	Late int `json:"late"`
	Lost int `json:"lost"`
}

// LateShare is the share of late queries, 0 of none.
func (c FaultCount) LateShare() float64 {
	if c.Queries == 0 {
		return 0
	}
	return float64(c.Late) / float64(c.Queries)
}

func (c *FaultCount) add(o FaultCount) {
	c.Queries += o.Queries
	c.Late += o.Late
	c.Lost += o.Lost
}

// A FaultResult is what came of a fault.
type FaultResult struct {
	Fault string `json:"fault"`
	// Agent is whom it hit; empty: all, or nobody led or ran any more.
	Agent string `json:"agent,omitempty"`
	// Before and After are the queries that arrived in the two seconds before and after it happened.
	Before FaultCount `json:"before"`
	After  FaultCount `json:"after"`
	// HitLeader says that the agent led. NextLeader is who led next, WithoutLeaderMS after the fault;
	// empty: nobody else, or not for this fault.
	HitLeader       bool    `json:"hit_leader,omitempty"`
	NextLeader      string  `json:"next_leader,omitempty"`
	WithoutLeaderMS float64 `json:"without_leader_ms,omitempty"`

	at   time.Duration
	open bool // it has hit the leader, and nobody else has led since
}

// tally counts a query with its outcome at the faults that it came near.
func (f *fleet) tally(q *query, onTime bool, o Outcome) {
	for i := range f.results {
		r := &f.results[i]
		var c *FaultCount
		switch since := q.arrival - r.at; {
		case since >= 0 && since < faultWindow:
			c = &r.After
		case since < 0 && since >= -faultWindow:
			c = &r.Before
		default:
			continue
		}
		c.Queries++
		if !onTime {
			c.Late++
		}
		if o == Lost || o == NeverServed {
			c.Lost++
		}
	}
}

// A FaultSummary is what came of a fault over the runs of a report.
type FaultSummary struct {
	Fault  string     `json:"fault"`
	Before FaultCount `json:"before"`
	After  FaultCount `json:"after"`
	// HitLeader is in how many runs it hit the leader, NextLeader in how many of them another led next;
	// the times until then are in the mean and at most.
	HitLeader          int     `json:"hit_leader_runs"`
	NextLeader         int     `json:"next_leader_runs"`
	WithoutLeaderMS    float64 `json:"without_leader_ms,omitempty"`
	WithoutLeaderMaxMS float64 `json:"without_leader_max_ms,omitempty"`
}

// summarizeFaults sums up what came of each fault over runs of one configuration.
func summarizeFaults(runs []*Result) (all []FaultSummary) {
	for _, run := range runs {
		for i := range run.Faults {
			r := &run.Faults[i]
			if len(all) == i {
				all = append(all, FaultSummary{Fault: r.Fault})
			}
			s := &all[i]
			s.Before.add(r.Before)
			s.After.add(r.After)
			if r.HitLeader {
				s.HitLeader++
			}
			if r.NextLeader != "" {
				s.NextLeader++
				s.WithoutLeaderMS += (r.WithoutLeaderMS - s.WithoutLeaderMS) / float64(s.NextLeader)
				s.WithoutLeaderMaxMS = max(s.WithoutLeaderMaxMS, r.WithoutLeaderMS)
			}
		}
	}
	for i := range all {
		all[i].WithoutLeaderMS = round(all[i].WithoutLeaderMS, 3)
	}
	return all
}

// byTime orders faults by when they happen; those of one time stay as they were given.
func byTime(faults []Fault) []Fault {
	return slices.SortedStableFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}
