package fleet

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// The verbs of faults.
const (
	// kill: the agent's process ends for good. The queries at its lane are lost, and hosts with a
	// connection to it learn that at once.
	kill = "kill"
	// drain: the agent gets no more queries, ends when its lane has none, and leaves the fleet.
	// After the fault's duration it starts again, and joins.
	drain = "drain"
	// freeze: the agent's process stops for the fault's duration. It handles messages, and ends of
	// executions, of that time afterwards.
	freeze = "freeze"
	// cut: the agent and all other hosts, gateways too, cannot reach each other. Messages of that
	// time arrive afterwards, unless the connections break before.
	cut = "cut"
	// deafen and mute: as cut, but only messages to the agent, or only those from it, do not get
	// through, until connections break because nothing is acknowledged.
	deafen = "deafen"
	mute   = "mute"
	// slow: messages take Amount longer: those from and to the agent, or all.
	slow = "delay"
)

// maxTime bounds the times of a fault.
const maxTime = 7 * 24 * time.Hour

// TheLeader is the target of a fault on the agent that leads when the fault happens.
const TheLeader = "leader"

// Help describes the text form of a fault, for users.
const Help = `VERB[-TARGET]@TIME[+DURATION][:AMOUNT]
  kill-TARGET@TIME                       the process ends; what its lane has is lost
  drain-TARGET@TIME[+DURATION]           it ends when its lane has nothing left, and starts again
  freeze-TARGET@TIME[+DURATION]          the process stands still
  cut-TARGET@TIME[+DURATION]             it and all others do not reach each other
  deafen-TARGET@TIME[+DURATION]          what others send does not reach it
  mute-TARGET@TIME[+DURATION]            what it sends reaches nobody
  delay[-TARGET]@TIME[+DURATION]:AMOUNT  messages, to and from it or all, take longer
TARGET is "leader", who leads then, or an agent: r5n.large-3 is the third of that
type. TIME counts from the start of the run; without DURATION it is for good.`

// A Fault is a failure of an agent or the network in a simulated fleet.
type Fault struct {
	// Verb is kill, drain, freeze, cut, deafen, mute or delay.
	Verb string
	// Target is an agent's name, [TheLeader], or "" for all agents (delay only).
	Target names.AgentName
	// At is when the fault happens, since the start of the run.
	At time.Duration
	// Duration is how long the fault lasts, of a drain from the end of the process; 0 means to the
	// end of the run.
	Duration time.Duration
	// Amount is by how much messages are delayed (delay only).
	Amount time.Duration
}

func (f Fault) String() string {
	s := f.Verb
	if f.Target != "" {
		s += "-" + string(f.Target)
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

// ParseFault parses a fault in the form that [Help] describes.
func ParseFault(text string) (Fault, error) {
	bad := func(format string, args ...any) (Fault, error) {
		return Fault{}, fmt.Errorf("fault %q: %s", text, fmt.Sprintf(format, args...))
	}
	what, when, ok := strings.Cut(text, "@")
	if !ok {
		return bad("got no @, want when it happens, e.g. kill-leader@10s")
	}
	verb, target, named := strings.Cut(what, "-")
	f := Fault{Verb: verb, Target: names.AgentName(target)}
	when, amount, hasAmount := strings.Cut(when, ":")
	at, duration, hasDuration := strings.Cut(when, "+")
	switch f.Verb {
	case kill, drain, freeze, cut, deafen, mute:
		if target == "" {
			return bad("got no target, want %q or an agent, e.g. %s-leader@10s", TheLeader, verb)
		}
		if hasAmount {
			return bad("got the amount %q, want none: only a delay has one", amount)
		}
	case slow:
		if named && target == "" {
			return bad("got no target after the -, want %q, an agent, or no - for all messages",
				TheLeader)
		}
		if !hasAmount {
			return bad(
				"got no amount, want by how much messages are delayed, e.g. delay@5s+3s:20ms")
		}
	default:
		return bad("got the verb %q, want kill, drain, freeze, cut, deafen, mute or delay", verb)
	}
	if f.Verb == kill && hasDuration {
		return bad("got the duration %q, want none: who is killed does not come back", duration)
	}
	for _, d := range []struct {
		given      bool
		name, text string
		least      time.Duration
		to         *time.Duration
	}{
		{true, "time", at, 0, &f.At},
		{hasDuration, "duration", duration, 1, &f.Duration},
		{hasAmount, "amount", amount, 1, &f.Amount},
	} {
		if !d.given {
			continue
		}
		x, err := time.ParseDuration(d.text)
		if err != nil || x < d.least || x > maxTime {
			return bad("got the %s %q, want a duration like 20ms or 10s, up to %v", d.name, d.text,
				maxTime)
		}
		*d.to = x
	}
	return f, nil
}

// ReadFaults reads faults, one per line. Text after a # is a comment. Errors name the file name.
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

// CheckTargets reports faults whose target does not exist in a pool with counts[i] agents of type
// types[i].
func CheckTargets(faults []Fault, types []names.LaneType, counts []int) (errs []error) {
	for _, f := range faults {
		if f.Target == "" || f.Target == TheLeader {
			continue
		}
		there := false
		for i, name := range types {
			number, ok := strings.CutPrefix(string(f.Target), string(name)+"-")
			n, err := strconv.Atoi(number)
			there = there ||
				ok && err == nil && n >= 1 && n <= counts[i] && f.Target == agentName(name, n)
		}
		if !there {
			errs = append(errs,
				fmt.Errorf("fault %q: got the target %q, want %q or one of the agents %s",
					f, f.Target, TheLeader, listAgents(types, counts)))
		}
	}
	return errs
}

// listAgents lists the names of a pool's agents in short form.
func listAgents(types []names.LaneType, counts []int) string {
	var all []string
	for i, name := range types {
		switch n := counts[i]; {
		case n == 1:
			all = append(all, string(agentName(name, 1)))
		case n > 1:
			all = append(all, fmt.Sprintf("%s to %s", agentName(name, 1), agentName(name, n)))
		}
	}
	return strings.Join(all, ", ")
}

// agentName is the name of the nth agent of a type, counted from 1.
func agentName(laneType names.LaneType, n int) names.AgentName {
	return names.AgentName(string(laneType) + "-" + strconv.Itoa(n))
}

// Window is the time before and after a fault over which arriving queries are counted. Chosen: an
// election takes about a second, and the queries of two seconds are some hundred.
const Window = 2 * time.Second

// A Count counts the outcomes of the queries that arrived in some time.
type Count struct {
	Queries int `json:"queries"`
	// Late counts queries not answered within their QoS target. Lost counts those of them that were
	// not answered, rejected or dropped.
	Late int `json:"late"`
	Lost int `json:"lost"`
}

// LateShare is the share of late queries, 0 if there are no queries.
func (c Count) LateShare() float64 {
	if c.Queries == 0 {
		return 0
	}
	return float64(c.Late) / float64(c.Queries)
}

func (c *Count) add(o Count) {
	c.Queries += o.Queries
	c.Late += o.Late
	c.Lost += o.Lost
}

// A Result describes the effects of a fault in one run.
type Result struct {
	Fault string `json:"fault"`
	// Agent is the agent that it hit; empty if it hit all, or none because no agent led or the
	// target had ended.
	Agent names.AgentName `json:"agent,omitempty"`
	// Before and After count the queries that arrived within [Window] before and after the fault.
	Before Count `json:"before"`
	After  Count `json:"after"`
	// HitLeader says that the agent led. NextLeader is the agent that led next, WithoutLeaderMS
	// after the fault; empty if no other led, or not because of this fault.
	HitLeader       bool            `json:"hit_leader,omitempty"`
	NextLeader      names.AgentName `json:"next_leader,omitempty"`
	WithoutLeaderMS float64         `json:"without_leader_ms,omitempty"`

	at   time.Duration
	open bool // it has hit the leader, and no other agent has led since
}

// tallyOutcome counts a query's outcome in the results of the faults within Window of its arrival.
func (f *Fleet) tallyOutcome(q *ArrivingQuery, onTime bool, o Outcome) {
	for i := range f.results {
		r := &f.results[i]
		var c *Count
		switch since := q.Arrival - r.at; {
		case since >= 0 && since < Window:
			c = &r.After
		case since < 0 && since >= -Window:
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

// A Summary describes the effects of a fault over the runs of a report.
type Summary struct {
	Fault  string `json:"fault"`
	Before Count  `json:"before"`
	After  Count  `json:"after"`
	// HitLeader is the number of runs in which it hit the leader, NextLeader the number of those in
	// which another agent led next. The times without a leader are their mean and maximum.
	HitLeader          int     `json:"hit_leader_runs"`
	NextLeader         int     `json:"next_leader_runs"`
	WithoutLeaderMS    float64 `json:"without_leader_ms,omitempty"`
	WithoutLeaderMaxMS float64 `json:"without_leader_max_ms,omitempty"`
}

// Summarize adds the results of a run's faults to the summaries of earlier runs of the same
// configuration, and returns them.
func Summarize(all []Summary, run []Result) []Summary {
	for i := range run {
		r := &run[i]
		if len(all) == i {
			all = append(all, Summary{Fault: r.Fault})
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
	return all
}

// byTime sorts faults by their times; faults of the same time keep their order.
func byTime(faults []Fault) []Fault {
	all := slices.Clone(faults)
	slices.SortStableFunc(all, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return all
}
