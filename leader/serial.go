package leader

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/internal/lines"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// The serial form has one line per event or action, as in package match: its kind, then key=value
// fields in a fixed order. A field is absent if its value is the zero of its type. Lines of events
// start with the time since the term began. In a list of things that have fields of their own, each
// thing begins with its first field: member, part, model, held, latency, agent or price.
//
//	12.5ms submitted query=1/7 model=m/0 batch=120 waited=1ms
//	12.5ms completed agent=w0 lane=0 query=1/3 attempt=1 model=m/1 batch=3 execution=2ms latency=3ms
//	0s view member=w0 type=box/cpu/1 own=box/cpu/1@w0 lanes=1 model=m/1 target=100ms share=0.99 largest=100
//	1s greeted agent=w0 free=2ms held=1/3 lane=0 attempt=1 model=m/1 batch=3
//	0s learned latency=m/1 type=box/cpu/1 table=100:2ms/2ms
//	assign query=1/7 attempt=1 lane=4 reason=matched latency=30ms wait=0s slack=319ms agent=w0 of=0
//
// A model is written name/version, with version 0 if a query names none. The line of an event holds
// all that a state reads of it, exactly. Tags are left out, because a state only hands them back.

// Header begins the first line of a recorded term; [DeciderVersion] follows it.
const Header = "muster-term 1"

var kindNames = []string{"time-passed", "view", "described", "greeted", "lanes-free", "link-broken",
	"gateway-connected", "gateway-lost", "submitted", "cancelled", "unused", "completed", "learned",
	"outdated", "failed", "released"}

var actionNames = []string{"assign", "reject", "offer-again", "split", "welcome", "heartbeat",
	"tell-latencies",
	"tell-prices", "tell-ahead", "ask-held", "arrived", "observed", "observed-cut", "pool",
	"lanes-joined", "lanes-lost",
	"lane-overdue", "lane-silent", "lane-answers", "departs", "target-unmet", "nonsense"}

// String returns the serial form of k.
func (k Kind) String() string { return name(kindNames, int(k)) }

// String returns the serial form of k.
func (k ActionKind) String() string { return name(actionNames, int(k)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// AppendEvent appends the serial form of e, which happened at the given time since the term began,
// without a newline.
func AppendEvent(b []byte, at time.Duration, e *Event) []byte {
	b = append(append(b, at.String()...), ' ')
	b = append(b, e.Kind.String()...)
	switch e.Kind {
	case ViewChanged:
		for _, m := range e.Members {
			b = m.append(b)
		}
	case Described:
		b = appendFree(e.Member.append(b), e.Free)
	case Greeted:
		b = appendFree(lines.Text(b, "agent", e.Agent), e.Free)
		for i := range e.Holds {
			h := &e.Holds[i]
			b = lines.Query(b, "held", h.Gateway, h.Sequence)
			b = lines.Number(b, "lane", h.Lane)
			b = lines.Int(b, "attempt", h.Attempt)
			b = lines.Item(b, "model", h.Model.Key())
			b = lines.Int(b, "batch", h.BatchSize)
		}
	case LanesFree:
		b = appendFree(lines.Text(b, "agent", e.Agent), e.Free)
	case LinkBroken:
		b = lines.Flag(lines.Text(b, "agent", e.Agent), "gone", "yes", e.Gone)
		b = lines.Text(b, "why", e.Why)
	case GatewayConnected:
		b = appendGateway(b, e.Gateway)
		b = lines.Text(b, "client", e.Client)
	case GatewayLost:
		b = appendGateway(b, e.Gateway)
	case Submitted:
		b = lines.Query(b, "query", e.Gateway, e.Sequence)
		b = lines.Int(b, "attempt", e.Attempt)
		b = lines.Item(b, "model", e.Model.Key())
		b = lines.Int(b, "batch", e.BatchSize)
		b = lines.Duration(b, "waited", e.Waited)
		b = lines.Duration(b, "time_left", e.TimeLeft)
		b = lines.Flag(b, "splits", "yes", e.Splits)
		b = lines.Float(b, "least_accuracy", e.LeastAccuracy)
		b = appendLane(b, e)
		b = lines.Text(b, "denied", e.Denied)
		b = lines.Duration(b, "retry_after", e.RetryAfter)
		b = lines.Int(b, "tag_size", e.TagSize)
	case Cancelled:
		b = lines.Query(b, "query", e.Gateway, e.Sequence)
	case Unused:
		b = appendLane(b, e)
		b = lines.Query(b, "query", e.Gateway, e.Sequence)
		b = lines.Int(b, "attempt", e.Attempt)
	case Completed:
		b = appendLane(b, e)
		b = lines.Query(b, "query", e.Gateway, e.Sequence)
		b = lines.Int(b, "attempt", e.Attempt)
		b = lines.Flag(b, "refused", "yes", e.Refused)
		b = lines.Duration(b, "remaining", e.Remaining)
		b = lines.Item(b, "model", e.Model.Key())
		b = lines.Int(b, "batch", e.BatchSize)
		b = lines.Duration(b, "execution", e.Execution)
		b = lines.Duration(b, "queue", e.Queue)
		b = lines.Duration(b, "receive", e.Receive)
		b = lines.Duration(b, "latency", e.Latency)
		b = lines.Int(b, "bytes", int(e.Bytes))
		b = lines.Int(b, "merged", e.Merged)
		b = lines.Flag(b, "divided", "yes", e.Divided)
		b = lines.Flag(b, "shadow", "yes", e.Shadow)
		b = lines.Flag(b, "non_finite", "yes", e.NonFinite)
		b = lines.Flag(b, "no_answer", "yes", e.NoAnswer)
	case Learned:
		b = e.Advice.append(b)
	case Outdated:
		for _, id := range e.Models {
			b = lines.Item(b, "model", id.Key())
		}
		for _, key := range e.Tables {
			b = lines.Item(lines.Item(b, "latency", key.Model), "type", key.Type)
		}
	case Failed:
		b = lines.Item(b, "model", e.Model.Key())
		b = lines.Int(b, "batch", e.BatchSize)
		b = lines.Text(b, "why", e.Why)
		b = lines.Int(b, "n", int(e.N))
		b = lines.Flag(b, "excused", "yes", e.Excused)
	case Released:
		for _, r := range e.Releases {
			b = lines.Item(b, "model", names.NewModelKey(r.Model, r.Current))
			b = lines.Int(b, "canary", int(r.Canary))
			b = lines.Float(b, "share", r.Share)
		}
	}
	return b
}

func appendGateway(b []byte, gateway uint64) []byte {
	return strconv.AppendUint(append(b, " gateway="...), gateway, 10)
}

func appendLane(b []byte, e *Event) []byte {
	if e.Agent == "" {
		return b
	}
	return lines.Number(lines.Item(b, "agent", e.Agent), "lane", e.Lane)
}

func appendFree(b []byte, free []time.Duration) []byte {
	for _, d := range free {
		b = lines.Item(b, "free", d.String())
	}
	return b
}

func (m *Member) append(b []byte) []byte {
	b = lines.Item(b, "member", m.Name)
	b = lines.Text(b, "type", m.Type)
	b = lines.Text(b, "own", m.OwnType)
	b = lines.Int(b, "lanes", m.Lanes)
	b = lines.Flag(b, "draining", "yes", m.Draining)
	b = lines.Duration(b, "ends", m.Ends)
	b = lines.Int(b, "revision", int(m.Revision))
	for i := range m.Parts {
		p := &m.Parts[i]
		b = lines.Item(b, "part", strconv.Itoa(p.First))
		b = lines.Int(b, "lanes", p.Lanes)
		b = lines.Text(b, "type", p.Type)
		b = lines.Text(b, "own", p.OwnType)
		b = lines.Flag(b, "draining", "yes", p.Draining)
		for _, id := range p.Models {
			b = lines.Item(b, "holds", id.Key())
		}
	}
	b = appendModels(b, "model", m.Models)
	return appendModels(b, "loadable", m.Loadable)
}

func appendModels(b []byte, item string, all []Model) []byte {
	for i := range all {
		held := &all[i]
		b = lines.Item(b, item, held.Key())
		b = lines.Duration(b, "target", held.QoSTarget)
		b = lines.Float(b, "share", held.Share)
		b = lines.Int(b, "largest", held.Largest)
		b = lines.Flag(b, "late", "reject", held.RejectLate)
		b = lines.Flag(b, "splits", "yes", held.Splits)
		b = lines.Text(b, "merge", held.Merge)
		b = lines.Text(b, "family", held.Family)
		b = lines.Float(b, "accuracy", held.Accuracy)
	}
	return b
}

func (a *Advice) append(b []byte) []byte {
	for _, l := range a.Latencies {
		b = lines.Item(lines.Item(b, "latency", l.Model), "type", l.Type)
		b = l.Table.Append(append(b, " table="...))
		b = lines.Flag(b, "sure", "no", l.Doubtful)
		b = lines.Text(b, "told", string(l.Told))
	}
	b = lines.Flag(b, "factors", "yes", a.Factors != nil)
	for _, agent := range sortedKeys(a.Factors) {
		b = lines.Float(lines.Item(b, "agent", agent), "factor", a.Factors[agent])
		b = lines.Text(b, "own", a.Slow[agent])
	}
	if a.Priced {
		b = strconv.AppendFloat(append(b, " limit="...), a.Limit, 'g', -1, 64)
	}
	for _, u := range a.Unmet {
		b = lines.Float(lines.Item(b, "unmet", u.Model.Key()), "share", u.Share)
	}
	return appendPrices(b, a.Prices)
}

func appendPrices(b []byte, prices []fluid.Price) []byte {
	for _, p := range prices {
		b = match.AppendPriceFields(lines.Item(b, "price", p.Type), &p)
	}
	return b
}

// AppendAction appends the serial form of a, without a newline.
func AppendAction(b []byte, a *Action) []byte {
	if a.Kind <= Split {
		b = match.AppendDecision(b, &a.Decision)
		if a.Kind == Assign {
			b = lines.Number(lines.Item(b, "agent", a.Agent), "of", a.Lane)
		}
		return lines.Text(b, "message", a.Message)
	}
	b = append(b, a.Kind.String()...)
	switch a.Kind {
	case Welcome:
		b = appendGateway(b, a.Gateway)
	case TellLatencies:
		for _, l := range a.Latencies {
			b = lines.Item(lines.Item(b, "latency", l.Model), "type", l.Type)
		}
	case TellPrices:
		b = appendPrices(b, a.Prices)
	case TellAhead:
		b = lines.Duration(b, "ahead", a.Duration)
	case AskHeld:
		b = lines.Text(b, "agent", a.Agent)
	case Arrived:
		b = lines.Int(lines.Item(b, "model", a.Model.Key()), "batch", a.BatchSize)
	case Observed, ObservedCut:
		b = lines.Item(lines.Text(b, "agent", a.Member.Name), "model", a.Model.Key())
		b = lines.Duration(lines.Int(b, "batch", a.BatchSize), "execution", a.Duration)
	case PoolChanged:
		b = lines.Number(lines.Number(b, "members", len(a.Pool.Members)), "models",
			len(a.Pool.Models))
	case LanesJoined, LanesLost:
		b = lines.Int(lines.Text(b, "agent", a.Agent), "lanes", a.N)
		b = lines.Text(b, "why", a.Message)
	case LaneOverdue, LaneSilent, LaneAnswers:
		b = lines.Number(lines.Text(b, "agent", a.Agent), "lane", a.Lane)
		b = lines.Duration(lines.Int(b, "holds", a.N), "by", a.Duration.Round(time.Microsecond))
	case Departs:
		b = lines.Flag(lines.Float(lines.Text(b, "agent", a.Agent), "factor", a.Factor), "own",
			"yes", a.Known)
	case Nonsense:
		b = lines.Text(b, "message", a.Message)
	}
	return b
}

// ParseEvent parses what AppendEvent has written.
func ParseEvent(line []byte) (at time.Duration, e Event, err error) {
	fields, err := lines.Fields(string(bytes.TrimSpace(line)))
	if err == nil && len(fields) < 2 {
		err = fmt.Errorf("want a time and a kind")
	}
	if err == nil {
		at, err = time.ParseDuration(fields[0])
	}
	if err != nil {
		return 0, e, fmt.Errorf("event %.80q: %w", line, err)
	}
	kind := slices.Index(kindNames, fields[1])
	if kind < 0 {
		all := strings.Join(kindNames, ", ")
		return 0, e, fmt.Errorf("event %.80q: kind %q is unknown, there are: %s", line, fields[1],
			all)
	}
	e.Kind = Kind(kind)
	switch e.Kind {
	case Learned:
		e.Advice = &Advice{}
	case Described:
		e.Member = &Member{}
	}
	p := parser{e: &e}
	for _, f := range fields[2:] {
		key, value, err := lines.Split(f)
		if err == nil {
			if err = p.set(key, value); err != nil {
				err = fmt.Errorf("%s: %w", key, err)
			}
		}
		if err != nil {
			return 0, e, fmt.Errorf("event %.80q: %w", line, err)
		}
	}
	if e.Kind == Learned {
		for _, l := range e.Advice.Latencies {
			if l.Table == nil {
				return 0, e, fmt.Errorf("event %.80q: latency of %s has no table", line, l.Model)
			}
		}
	}
	return at, e, nil
}

// A parser sets the fields of an event. It remembers the thing of a list that the last field began.
type parser struct {
	e      *Event
	member *Member
	part   *Part
	model  *Model
	agent  names.AgentName // whose factor comes next
}

func (p *parser) set(key, value string) (err error) {
	e := p.e
	switch e.Kind {
	case ViewChanged, Described:
		return p.setMember(key, value)
	case Learned:
		return p.setAdvice(key, value)
	case Greeted:
		if key == "held" {
			e.Holds = append(e.Holds, Held{})
		}
		if len(e.Holds) > 0 {
			h := &e.Holds[len(e.Holds)-1]
			switch key {
			case "held":
				h.Gateway, h.Sequence, err = lines.ParseQuery(value)
			case "lane":
				h.Lane, err = small(value)
			case "attempt":
				h.Attempt, err = strconv.Atoi(value)
			case "model":
				h.Model = parseModel(value)
			case "batch":
				h.BatchSize, err = strconv.Atoi(value)
			default:
				err = errKey
			}
			return err
		}
	case Outdated:
		switch {
		case key == "model":
			e.Models = append(e.Models, parseModel(value))
		case key == "latency":
			e.Tables = append(e.Tables, names.TableKey{Model: names.ModelKey(value)})
		case key == "type" && len(e.Tables) > 0:
			e.Tables[len(e.Tables)-1].Type = names.LaneType(value)
		default:
			return errKey
		}
		return nil
	case Released:
		if key == "model" {
			id := parseModel(value)
			e.Releases = append(e.Releases, Release{id.Name, canary.Release{Current: id.Version}})
			return nil
		}
		if len(e.Releases) == 0 {
			return errKey
		}
		switch r := &e.Releases[len(e.Releases)-1]; key {
		case "canary":
			r.Canary, err = strconv.ParseInt(value, 10, 64)
		case "share":
			r.Share, err = lines.ParseShare(value)
		default:
			err = errKey
		}
		return err
	}
	switch key {
	case "query":
		e.Gateway, e.Sequence, err = lines.ParseQuery(value)
	case "gateway":
		e.Gateway, err = strconv.ParseUint(value, 10, 64)
	case "attempt":
		e.Attempt, err = strconv.Atoi(value)
	case "agent":
		e.Agent = names.AgentName(value)
	case "lane":
		e.Lane, err = small(value)
	case "model":
		e.Model = parseModel(value)
	case "batch":
		e.BatchSize, err = strconv.Atoi(value)
	case "waited":
		e.Waited, err = time.ParseDuration(value)
	case "time_left":
		e.TimeLeft, err = time.ParseDuration(value)
	case "splits":
		e.Splits, err = yes(value)
	case "least_accuracy":
		e.LeastAccuracy, err = lines.ParseShare(value)
	case "denied":
		e.Denied = value
	case "retry_after":
		e.RetryAfter, err = time.ParseDuration(value)
	case "tag_size":
		e.TagSize, err = strconv.Atoi(value)
	case "client":
		e.Client = value
	case "refused":
		e.Refused, err = yes(value)
	case "remaining":
		e.Remaining, err = time.ParseDuration(value)
	case "execution":
		e.Execution, err = time.ParseDuration(value)
	case "queue":
		e.Queue, err = time.ParseDuration(value)
	case "receive":
		e.Receive, err = time.ParseDuration(value)
	case "latency":
		e.Latency, err = time.ParseDuration(value)
	case "bytes":
		e.Bytes, err = strconv.ParseUint(value, 10, 64)
	case "merged":
		e.Merged, err = strconv.Atoi(value)
	case "no_answer":
		e.NoAnswer, err = yes(value)
	case "non_finite":
		e.NonFinite, err = yes(value)
	case "divided":
		e.Divided, err = yes(value)
	case "shadow":
		e.Shadow, err = yes(value)
	case "free":
		err = appendDuration(&e.Free, value)
	case "gone":
		e.Gone, err = yes(value)
	case "why":
		e.Why = value
	case "n":
		e.N, err = strconv.ParseUint(value, 10, 63)
	case "excused":
		e.Excused, err = yes(value)
	default:
		err = errKey
	}
	return err
}

var errKey = fmt.Errorf("there is no such key here")

func (p *parser) setMember(key, value string) (err error) {
	switch key {
	case "member":
		m := &Member{}
		if p.e.Kind == Described {
			m = p.e.Member
		} else {
			p.e.Members = append(p.e.Members, m)
		}
		m.Name, p.member, p.model = names.AgentName(value), m, nil
		p.part = nil
		return nil
	case "free":
		return appendDuration(&p.e.Free, value)
	}
	m := p.member
	if m == nil {
		return fmt.Errorf("want member first")
	}
	if key == "model" {
		m.Models = append(m.Models, Model{ModelID: parseModel(value)})
		p.model = &m.Models[len(m.Models)-1]
		return nil
	}
	if key == "loadable" {
		m.Loadable = append(m.Loadable, Model{ModelID: parseModel(value)})
		p.model = &m.Loadable[len(m.Loadable)-1]
		return nil
	}
	if held := p.model; held != nil {
		switch key {
		case "target":
			held.QoSTarget, err = time.ParseDuration(value)
		case "share":
			held.Share, err = strconv.ParseFloat(value, 64)
		case "largest":
			held.Largest, err = strconv.Atoi(value)
		case "late":
			if held.RejectLate = true; value != "reject" {
				err = fmt.Errorf("got %s, want reject", value)
			}
		case "splits":
			held.Splits, err = yes(value)
		case "merge":
			held.Merge = value
		case "family":
			held.Family = value
		case "accuracy":
			held.Accuracy, err = lines.ParseShare(value)
		default:
			err = errKey
		}
		return err
	}
	if key == "part" {
		m.Parts = append(m.Parts, Part{})
		p.part = &m.Parts[len(m.Parts)-1]
		p.part.First, err = small(value)
		return err
	}
	if part := p.part; part != nil {
		switch key {
		case "type":
			part.Type = names.LaneType(value)
		case "own":
			part.OwnType = names.LaneType(value)
		case "lanes":
			part.Lanes, err = small(value)
		case "draining":
			part.Draining, err = yes(value)
		case "holds":
			part.Models = append(part.Models, parseModel(value))
		default:
			err = errKey
		}
		return err
	}
	switch key {
	case "type":
		m.Type = names.LaneType(value)
	case "own":
		m.OwnType = names.LaneType(value)
	case "lanes":
		m.Lanes, err = small(value)
	case "draining":
		m.Draining, err = yes(value)
	case "ends":
		m.Ends, err = time.ParseDuration(value)
	case "revision":
		m.Revision, err = strconv.ParseUint(value, 10, 64)
	default:
		err = errKey
	}
	return err
}

func (p *parser) setAdvice(key, value string) (err error) {
	a := p.e.Advice
	var l *Latency
	if n := len(a.Latencies); n > 0 {
		l = a.Latencies[n-1]
	}
	var price *fluid.Price
	if n := len(a.Prices); n > 0 {
		price = &a.Prices[n-1]
	}
	switch {
	case key == "latency":
		a.Latencies = append(a.Latencies, &Latency{
			TableKey: names.TableKey{Model: names.ModelKey(value)},
		})
	case key == "type" && l != nil:
		l.Type = names.LaneType(value)
	case key == "table" && l != nil:
		l.Table, err = match.ParseTable(value)
	case key == "sure" && l != nil:
		if l.Doubtful = true; value != "no" {
			err = fmt.Errorf("got %s, want no", value)
		}
	case key == "told" && l != nil:
		l.Told, l.Profile = []byte(value), &profiles.Table{}
		err = l.Profile.UnmarshalJSON(l.Told)
	case key == "factors":
		a.Factors, a.Slow = map[names.AgentName]float64{}, map[names.AgentName]names.LaneType{}
		_, err = yes(value)
	case key == "agent" && a.Factors != nil:
		p.agent = names.AgentName(value)
		a.Factors[p.agent] = 0
	case key == "factor" && a.Factors != nil:
		a.Factors[p.agent], err = strconv.ParseFloat(value, 64)
	case key == "own" && a.Factors != nil:
		a.Slow[p.agent] = names.LaneType(value)
	case key == "limit":
		a.Priced = true
		a.Limit, err = strconv.ParseFloat(value, 64)
	case key == "unmet":
		a.Unmet = append(a.Unmet, Unmet{Model: parseModel(value)})
	case key == "share" && len(a.Unmet) > 0:
		a.Unmet[len(a.Unmet)-1].Share, err = lines.ParseShare(value)
	case key == "price":
		a.Prices = append(a.Prices, fluid.Price{Type: names.LaneType(value)})
	case price != nil && slices.Contains([]string{"class", "holds", "per_ms", "service"}, key):
		err = match.SetPriceField(price, key, value)
	default:
		err = errKey
	}
	return err
}

func yes(value string) (bool, error) {
	if value != "yes" {
		return false, fmt.Errorf("got %s, want yes", value)
	}
	return true, nil
}

// small parses a small number.
func small(value string) (int, error) {
	n, err := strconv.ParseUint(value, 10, 31)
	return int(n), err
}

func appendDuration(all *[]time.Duration, value string) error {
	d, err := time.ParseDuration(value)
	*all = append(*all, d)
	return err
}

// parseModel parses what ModelID.Key has written; a name alone has version 0.
func parseModel(s string) ModelID {
	name, version := names.ModelKey(s).Split()
	return ModelID{name, version}
}
