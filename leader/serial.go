package leader

import (
	"bytes"
	"fmt"
	"maps"
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
func (k EventKind) String() string { return name(kindNames, int(k)) }

// String returns the serial form of k.
func (k ActionKind) String() string { return name(actionNames, int(k)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// The fields of events, in one place for writer and reader. kindFields has those of each kind of
// event in the order in which a line has them; the fields of members and advice, and of what a list
// of an event holds, are written apart.
var (
	queryField = lines.QueryField("query", func(e *Event) (gateway, sequence *uint64) {
		return &e.Gateway, &e.Sequence
	})
	gatewayField = lines.GatewayField(func(e *Event) *uint64 { return &e.Gateway })
	agentField   = lines.TextField("agent", func(e *Event) *names.AgentName { return &e.Agent })
	// laneField is absent where no agent is named: then there is no lane.
	laneField = &lines.Field[Event]{Key: "lane", Append: func(b []byte, e *Event) []byte {
		if e.Agent == "" {
			return b
		}
		return lines.Number(b, "lane", e.Lane)
	}, Set: func(e *Event, value string) (err error) {
		e.Lane, err = lines.ParseCount(value)
		return err
	}}
	freeField = &lines.Field[Event]{Key: "free", Append: func(b []byte, e *Event) []byte {
		return appendFree(b, e.Free)
	}, Set: func(e *Event, value string) error { return appendDuration(&e.Free, value) }}
	attemptField = lines.IntField("attempt", func(e *Event) *int { return &e.Attempt })
	modelField   = &lines.Field[Event]{Key: "model", Append: func(b []byte, e *Event) []byte {
		return lines.Item(b, "model", e.Model.Key())
	}, Set: func(e *Event, value string) error {
		e.Model = parseModel(value)
		return nil
	}}
	batchField     = lines.IntField("batch", func(e *Event) *int { return &e.BatchSize })
	usersField     = lines.IntField("users", func(e *Event) *int { return &e.Users })
	valuesField    = lines.IntField("values", func(e *Event) *int { return &e.Values })
	whyField       = lines.TextField("why", func(e *Event) *string { return &e.Why })
	remainingField = lines.DurationField("remaining",
		func(e *Event) *time.Duration { return &e.Remaining })

	kindFields = map[EventKind]lines.Form[Event]{
		Greeted:   {agentField, freeField},
		LanesFree: {agentField, freeField},
		LinkBroken: {
			agentField, flagField("gone", func(e *Event) *bool { return &e.Gone }), whyField,
		},
		GatewayConnected: {
			gatewayField, lines.TextField("client", func(e *Event) *string { return &e.Client }),
		},
		GatewayLost: {gatewayField},
		Submitted: {
			queryField, attemptField, modelField, batchField, usersField, valuesField,
			lines.DurationField("waited", func(e *Event) *time.Duration { return &e.Waited }),
			lines.DurationField("time_left", func(e *Event) *time.Duration { return &e.TimeLeft }),
			flagField("splits", func(e *Event) *bool { return &e.Splits }),
			lines.ShareField("least_accuracy",
				func(e *Event) *float64 { return &e.LeastAccuracy }),
			lines.ShareField("load_share", func(e *Event) *float64 { return &e.LoadShare }),
			lines.IntField("band", func(e *Event) *int { return &e.Band }),
			lines.TextField("tenant", func(e *Event) *string { return &e.Tenant }),
			match.WeightField(func(e *Event) *float64 { return &e.Weight }),
			agentField, laneField,
			lines.TextField("denied", func(e *Event) *string { return &e.Denied }),
			lines.DurationField("retry_after",
				func(e *Event) *time.Duration { return &e.RetryAfter }),
			lines.IntField("tag_size", func(e *Event) *int { return &e.TagSize }),
		},
		Cancelled: {queryField},
		Unused:    {agentField, laneField, queryField, attemptField},
		Completed: {
			agentField, laneField, queryField, attemptField,
			flagField("refused", func(e *Event) *bool { return &e.Refused }), remainingField,
			modelField, batchField, usersField, valuesField,
			lines.DurationField("execution", func(e *Event) *time.Duration { return &e.Execution }),
			lines.DurationField("queue", func(e *Event) *time.Duration { return &e.Queue }),
			lines.DurationField("receive", func(e *Event) *time.Duration { return &e.Receive }),
			lines.DurationField("latency", func(e *Event) *time.Duration { return &e.Latency }),
			lines.UintField("bytes", 64, func(e *Event) *uint64 { return &e.Bytes }),
			lines.IntField("merged", func(e *Event) *int { return &e.Merged }),
			lines.IntField("merged_users", func(e *Event) *int { return &e.MergedUsers }),
			lines.IntField("merged_values", func(e *Event) *int { return &e.MergedValues }),
			flagField("divided", func(e *Event) *bool { return &e.Divided }),
			flagField("shadow", func(e *Event) *bool { return &e.Shadow }),
			flagField("non_finite", func(e *Event) *bool { return &e.NonFinite }),
			flagField("no_answer", func(e *Event) *bool { return &e.NoAnswer }),
		},
		Failed: {
			modelField, batchField, whyField,
			lines.UintField("n", 63, func(e *Event) *uint64 { return &e.N }),
			flagField("excused", func(e *Event) *bool { return &e.Excused }),
		},
	}
	// anyFields are those of all kinds: a reader takes each with any of these kinds.
	anyFields = slices.Concat(slices.Collect(maps.Values(kindFields))...)

	heldFields = lines.Form[Held]{
		lines.QueryField("held", func(h *Held) (gateway, sequence *uint64) {
			return &h.Gateway, &h.Sequence
		}),
		lines.NumberField("lane", func(h *Held) *int { return &h.Lane }),
		lines.IntField("attempt", func(h *Held) *int { return &h.Attempt }),
		{Key: "model", Append: func(b []byte, h *Held) []byte {
			return lines.Item(b, "model", h.Model.Key())
		}, Set: func(h *Held, value string) error {
			h.Model = parseModel(value)
			return nil
		}},
		lines.IntField("batch", func(h *Held) *int { return &h.BatchSize }),
	}
	memberFields = lines.Form[Member]{
		lines.TextField("type", func(m *Member) *names.LaneType { return &m.Type }),
		lines.TextField("own", func(m *Member) *names.LaneType { return &m.OwnType }),
		lines.CountField("lanes", func(m *Member) *int { return &m.Lanes }),
		flagField("draining", func(m *Member) *bool { return &m.Draining }),
		lines.DurationField("ends", func(m *Member) *time.Duration { return &m.Ends }),
		lines.UintField("revision", 64, func(m *Member) *uint64 { return &m.Revision }),
	}
	partFields = lines.Form[PartitionLanes]{
		lines.NumberField("part", func(p *PartitionLanes) *int { return &p.First }),
		lines.CountField("lanes", func(p *PartitionLanes) *int { return &p.Lanes }),
		lines.TextField("type", func(p *PartitionLanes) *names.LaneType { return &p.Type }),
		lines.TextField("own", func(p *PartitionLanes) *names.LaneType { return &p.OwnType }),
		flagField("draining", func(p *PartitionLanes) *bool { return &p.Draining }),
		{Key: "holds", Append: func(b []byte, p *PartitionLanes) []byte {
			for _, id := range p.Models {
				b = lines.Item(b, "holds", id.Key())
			}
			return b
		}, Set: func(p *PartitionLanes, value string) error {
			p.Models = append(p.Models, parseModel(value))
			return nil
		}},
	}
	// modelFields are those of a model that a member holds or can load, after the model's name.
	modelFields = lines.Form[HeldModel]{
		lines.DurationField("target", func(m *HeldModel) *time.Duration { return &m.QoSTarget }),
		lines.FloatField("share", func(m *HeldModel) *float64 { return &m.Share }),
		lines.IntField("largest", func(m *HeldModel) *int { return &m.Largest }),
		lines.FlagField("late", "reject", func(m *HeldModel) *bool { return &m.RejectLate }),
		flagField("splits", func(m *HeldModel) *bool { return &m.Splits }),
		lines.TextField("merge", func(m *HeldModel) *string { return &m.Merge }),
		lines.TextField("family", func(m *HeldModel) *string { return &m.Family }),
		lines.ShareField("accuracy", func(m *HeldModel) *float64 { return &m.Accuracy }),
		lines.ShareField("min_accuracy", func(m *HeldModel) *float64 { return &m.MinAccuracy }),
		lines.ShareField("target_accuracy",
			func(m *HeldModel) *float64 { return &m.TargetAccuracy }),
	}
)

func flagField[T any](key string, at func(*T) *bool) *lines.Field[T] {
	return lines.FlagField(key, "yes", at)
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
		b = kindFields[Greeted].Append(b, e)
		for i := range e.Holds {
			b = heldFields.Append(b, &e.Holds[i])
		}
	case Learned:
		b = e.Advice.append(b)
	case Outdated:
		for _, id := range e.Models {
			b = lines.Item(b, "model", id.Key())
		}
		for _, key := range e.Tables {
			b = lines.Item(lines.Item(b, "latency", key.Model), "type", key.Type)
		}
	case Released:
		for _, r := range e.Rollouts {
			b = lines.Item(b, "model", names.NewModelKey(r.Model, r.Current))
			b = lines.Int(b, "canary", int(r.Canary))
			b = lines.Float(b, "share", r.Share)
		}
	default:
		b = kindFields[e.Kind].Append(b, e)
	}
	return b
}

func appendGateway(b []byte, gateway uint64) []byte {
	return strconv.AppendUint(append(b, " gateway="...), gateway, 10)
}

func appendFree(b []byte, free []time.Duration) []byte {
	for _, d := range free {
		b = lines.Item(b, "free", d.String())
	}
	return b
}

func (m *Member) append(b []byte) []byte {
	b = lines.Item(b, "member", m.Name)
	b = memberFields.Append(b, m)
	for i := range m.Parts {
		b = partFields.Append(b, &m.Parts[i])
	}
	b = appendModels(b, "model", m.Models)
	return appendModels(b, "loadable", m.Loadable)
}

func appendModels(b []byte, item string, all []HeldModel) []byte {
	for i := range all {
		b = modelFields.Append(lines.Item(b, item, all[i].Key()), &all[i])
	}
	return b
}

func (a *Advice) append(b []byte) []byte {
	for _, l := range a.Latencies {
		b = lines.Item(lines.Item(b, "latency", l.Model), "type", l.Type)
		b = l.Table.Append(append(b, " table="...))
		b = lines.Flag(b, "sure", "no", l.Doubtful)
		b = lines.Text(b, "told", string(l.Told))
		b = lines.Float(b, "rows_a_user", l.Law.PerUser)
		b = lines.Float(b, "rows_a_value", l.Law.PerValue)
		b = lines.Text(b, "told_work", string(l.ToldWork))
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
		b = lines.Int(lines.Int(lines.Int(b, "batch", a.BatchSize), "users", a.Users), "values",
			a.Values)
		b = lines.Duration(b, "execution", a.Duration)
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
	e.Kind = EventKind(kind)
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
	part   *PartitionLanes
	model  *HeldModel
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
		if n := len(e.Holds); n > 0 {
			return heldFields.Set(&e.Holds[n-1], key, value)
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
			return lines.ErrNoField
		}
		return nil
	case Released:
		if key == "model" {
			id := parseModel(value)
			e.Rollouts = append(e.Rollouts, ModelRollout{id.Name,
				canary.Rollout{Current: id.Version}})
			return nil
		}
		if len(e.Rollouts) == 0 {
			return lines.ErrNoField
		}
		switch r := &e.Rollouts[len(e.Rollouts)-1]; key {
		case "canary":
			r.Canary, err = strconv.ParseInt(value, 10, 64)
		case "share":
			r.Share, err = lines.ParseShare(value)
		default:
			err = lines.ErrNoField
		}
		return err
	}
	return anyFields.Set(e, key, value)
}

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
		m.Models = append(m.Models, HeldModel{ModelID: parseModel(value)})
		p.model = &m.Models[len(m.Models)-1]
		return nil
	}
	if key == "loadable" {
		m.Loadable = append(m.Loadable, HeldModel{ModelID: parseModel(value)})
		p.model = &m.Loadable[len(m.Loadable)-1]
		return nil
	}
	if p.model != nil {
		return modelFields.Set(p.model, key, value)
	}
	if key == "part" {
		m.Parts = append(m.Parts, PartitionLanes{})
		p.part = &m.Parts[len(m.Parts)-1]
	}
	if p.part != nil {
		return partFields.Set(p.part, key, value)
	}
	return memberFields.Set(m, key, value)
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
	case key == "rows_a_user" && l != nil:
		l.Law.PerUser, err = strconv.ParseFloat(value, 64)
	case key == "rows_a_value" && l != nil:
		l.Law.PerValue, err = strconv.ParseFloat(value, 64)
	case key == "told_work" && l != nil:
		l.ToldWork, l.Profile = []byte(value), &profiles.Table{}
		err = l.Profile.UnmarshalJSON(l.ToldWork)
	case key == "factors":
		a.Factors, a.Slow = map[names.AgentName]float64{}, map[names.AgentName]names.LaneType{}
		_, err = parseYes(value)
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
		err = lines.ErrNoField
	}
	return err
}

func parseYes(value string) (bool, error) {
	if value != "yes" {
		return false, fmt.Errorf("got %s, want yes", value)
	}
	return true, nil
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
