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

// What faults do.
const (
	// kill: the agent's process ends, for good. What its lane has is lost, and who talks to it
	// learns that at once.
	kill = "kill"
	// freeze: the agent's process stands still. What comes to it, and what its lane would have
	// done, it does when it thaws.
	freeze = "freeze"
	// cut: the agent and all others, gateways too, do not reach each other. What they send comes
	// through afterwards, unless the connections break before.
	cut = "cut"
	// slow: messages take Amount longer, those from and to the agent, or all.
	slow = "delay"
)

// mostTime bounds the times of a fault.
const mostTime = time.Hour

// TheLeader is the target of a fault that hits the agent that leads when it happens.
const TheLeader = "leader"

// Help says how a fault is written.
const Help = `VERB[-TARGET]@TIME[+DURATION][:AMOUNT]
  kill-TARGET@TIME                       the process ends; what its lane has is lost
  freeze-TARGET@TIME[+DURATION]          the process stands still
  cut-TARGET@TIME[+DURATION]             it and all others do not reach each other
  delay[-TARGET]@TIME[+DURATION]:AMOUNT  messages, to and from it or all, take longer
TARGET is "leader", who leads then, or an agent: r5n.large-3 is the third of that
type. TIME counts from the start of the run; without DURATION it is for good.`

// A Fault is something that goes wrong in a simulated fleet.
type Fault struct {
	// Verb is kill, freeze, cut or delay.
	Verb string
	// Target is an agent, [TheLeader], or "" for all (delay only).
	Target names.AgentName
	// At is when it happens, since the start of the run.
	At time.Duration
	// Duration is how long it lasts; 0: for good.
	Duration time.Duration
	// Amount is by how much messages are delayed.
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

// ParseFault reads a fault as [Help] says.
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
	case kill, freeze, cut:
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
		return bad("got the verb %q, want kill, freeze, cut or delay", verb)
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
		if err != nil || x < d.least || x > mostTime {
			return bad("got the %s %q, want a duration like 20ms or 10s, up to %v", d.name, d.text,
				mostTime)
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

// CheckTargets reports the faults whose targets are not there, in a pool of so many agents of each
// type.
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
					f, f.Target, TheLeader, agents(types, counts)))
		}
	}
	return errs
}

// agents are the names of a pool's agents, in short.
func agents(types []names.LaneType, counts []int) string {
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

// agentName is how the nth agent of a type is called, the first by 1.
func agentName(laneType names.LaneType, n int) names.AgentName {
	return names.AgentName(string(laneType) + "-" + strconv.Itoa(n))
}

// Window is over how long queries are counted before and after a fault, by their arrival.
const Window = 2 * time.Second

// A Count is what became of the queries that arrived in some time.
type Count struct {
	Queries int `json:"queries"`
	// Late are those that were not answered within their QoS target; Lost among them those that
	// were not answered and not rejected or dropped either.
	Late int `json:"late"`
	Lost int `json:"lost"`
}

// LateShare is the share of late queries, 0 of none.
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

// A Result is what came of a fault.
type Result struct {
	Fault string `json:"fault"`
	// Agent is whom it hit; empty: all, or nobody led or ran any more.
	Agent names.AgentName `json:"agent,omitempty"`
	// Before and After are the queries that arrived in the two seconds before and after it
	// happened.
	Before Count `json:"before"`
	After  Count `json:"after"`
	// HitLeader says that the agent led. NextLeader is who led next, WithoutLeaderMS after the
	// fault; empty: nobody else, or not for this fault.
	HitLeader       bool            `json:"hit_leader,omitempty"`
	NextLeader      names.AgentName `json:"next_leader,omitempty"`
	WithoutLeaderMS float64         `json:"without_leader_ms,omitempty"`

	at   time.Duration
	open bool // it has hit the leader, and nobody else has led since
}

// tally counts a query with its outcome at the faults that it came near.
func (f *Fleet) tally(q *Query, onTime bool, o Outcome) {
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

// A Summary is what came of a fault over the runs of a report.
type Summary struct {
	Fault  string `json:"fault"`
	Before Count  `json:"before"`
	After  Count  `json:"after"`
	// HitLeader is in how many runs it hit the leader, NextLeader in how many of them another led
	// next; the times until then are in the mean and at most.
	HitLeader          int     `json:"hit_leader_runs"`
	NextLeader         int     `json:"next_leader_runs"`
	WithoutLeaderMS    float64 `json:"without_leader_ms,omitempty"`
	WithoutLeaderMaxMS float64 `json:"without_leader_max_ms,omitempty"`
}

// Summarize adds what came of the faults of a run to what came of them in others of one
// configuration.
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

// byTime orders faults by when they happen; those of one time stay as they were given.
func byTime(faults []Fault) []Fault {
	all := slices.Clone(faults)
	slices.SortStableFunc(all, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return all
}
