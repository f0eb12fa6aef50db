package dashboard

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
)

// A viewerClass is what a viewer may see. Viewers of one class get the same bytes.
type viewerClass struct {
	all bool // every model
	// else, of the fleet's models in order: "1" for one that may be seen, "0" for another
	models string
	events bool
}

// classOf returns the class of a viewer that sees the models for which sees is true; sees("") is
// about every model.
func classOf(f *control.Fleet, sees func(model string) bool, events bool) viewerClass {
	c := viewerClass{all: sees(""), events: events}
	if c.all {
		return c
	}
	seen := make([]byte, 0, len(f.GetModels()))
	for _, m := range f.GetModels() {
		if sees(m.GetName()) {
			seen = append(seen, '1')
		} else {
			seen = append(seen, '0')
		}
	}
	c.models = string(seen)
	return c
}

// visibleIndices returns, by index in f's models, the index among those that the class may see; -1
// for one that it may not. It returns nil, which means as it is, if the class sees all.
func (c viewerClass) visibleIndices(f *control.Fleet) []int {
	if c.all {
		return nil
	}
	at := make([]int, len(f.GetModels()))
	n := 0
	for i := range at {
		at[i] = -1
		if i < len(c.models) && c.models[i] == '1' {
			at[i] = n
			n++
		}
	}
	return at
}

func visibleIndex(at []int, i int) int {
	if at == nil || i < 0 {
		return i
	}
	return at[i]
}

// A number is null in JSON if it is not known, which NaN stands for.
type number float64

func (n number) MarshalJSON() ([]byte, error) { return appendNumber(nil, float64(n)), nil }

// numbers are as number; they are written at once, as encoding/json is slow at each.
type numbers []float64

func (n numbers) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 2+8*len(n)), '[')
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendNumber(b, v)
	}
	return append(b, ']'), nil
}

// appendNumber writes a number with the digits that a picture needs, and counts in full.
func appendNumber(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return append(b, "null"...)
	case v == math.Trunc(v) && math.Abs(v) < 1e15:
		return strconv.AppendInt(b, int64(v), 10)
	}
	return strconv.AppendFloat(b, v, 'g', 6, 64)
}

func toMs(ns float64) number { return number(ns / 1e6) }

// unknownIfZero is v, or not known if it is 0.
func unknownIfZero(v float64) number {
	if v > 0 {
		return number(v)
	}
	return number(math.NaN())
}

type helloJSON struct {
	Agent    string `json:"agent"`
	Software string `json:"software"`
	Build    string `json:"build"`
}

type fleetJSON struct {
	Revision   uint64       `json:"revision"`
	Epoch      uint64       `json:"epoch"`
	Leader     int          `json:"leader"`
	Successor  int          `json:"successor"`
	Leaderless bool         `json:"leaderless"`
	Why        string       `json:"why"`
	Types      []typeJSON   `json:"types"`
	Models     []modelJSON  `json:"models"`
	Families   []familyJSON `json:"families"`
	Agents     []agentJSON  `json:"agents"`
}

// Shown is a name for people, here and below; the page and its data know things by Name.
type typeJSON struct {
	Name   string `json:"name"`
	Shown  string `json:"shown"`
	Price  number `json:"price"`
	Agents int    `json:"agents"`
}

type modelJSON struct {
	Name       string `json:"name"`
	Version    int64  `json:"version"`
	TargetMs   number `json:"target_ms"`
	Percentile number `json:"percentile"`
	Largest    uint32 `json:"largest"`
	Family     string `json:"family"`
	Accuracy   number `json:"accuracy"`
}

type familyJSON struct {
	Name   string `json:"name"`
	Models []int  `json:"models"`
}

type agentJSON struct {
	Name     string `json:"name"`
	Shown    string `json:"shown"`
	Type     uint32 `json:"type"`
	Address  string `json:"address"`
	Lanes    uint32 `json:"lanes"`
	Cores    uint32 `json:"cores"`
	Provider string `json:"provider"`
	Executor string `json:"executor"`
	Draining bool   `json:"draining"`
	Factor   number `json:"factor"`
	Software string `json:"software"`
	Models   []int  `json:"models"`
	Price    number `json:"price"`
}

func fleetOf(f *control.Fleet, c viewerClass) *fleetJSON {
	at, shown := c.visibleIndices(f), f.ShownNames()
	out := &fleetJSON{
		Revision: f.GetRevision(), Epoch: f.GetLeadership().GetEpoch(), Leader: -1, Successor: -1,
		Leaderless: f.GetLeaderless() != "", Why: f.GetLeaderless(), Types: []typeJSON{},
		Models: []modelJSON{}, Families: []familyJSON{}, Agents: []agentJSON{},
	}
	for _, t := range f.GetTypes() {
		out.Types = append(out.Types, typeJSON{Name: t.GetName(),
			Shown: shown.Type(t.GetName()), Price: unknownIfZero(t.GetPrice())})
	}
	families := map[string]int{}
	for i, m := range f.GetModels() {
		i := visibleIndex(at, i)
		if i < 0 {
			continue
		}
		out.Models = append(out.Models, modelJSON{
			Name: m.GetName(), Version: m.GetVersion(),
			TargetMs:   toMs(float64(m.GetQosTargetNs())),
			Percentile: number(m.GetQosPercentile()),
			Largest:    m.GetLargestBatchSize(), Family: m.GetFamily(),
			Accuracy: unknownIfZero(m.GetAccuracy()),
		})
		if m.GetFamily() == "" {
			continue
		}
		k, ok := families[m.GetFamily()]
		if !ok {
			k = len(out.Families)
			families[m.GetFamily()] = k
			out.Families = append(out.Families, familyJSON{Name: m.GetFamily()})
		}
		out.Families[k].Models = append(out.Families[k].Models, i)
	}
	several := out.Families[:0]
	for _, family := range out.Families {
		if len(family.Models) > 1 {
			several = append(several, family)
		}
	}
	out.Families = several
	for i, a := range f.GetAgents() {
		switch a.GetName() {
		case f.GetLeadership().GetLeader():
			out.Leader = i
		case f.GetLeadership().GetSuccessor():
			out.Successor = i
		}
		out.Types[a.GetType()].Agents++
		holds := []int{}
		for _, m := range a.GetModels() {
			if i := visibleIndex(at, int(m)); i >= 0 {
				holds = append(holds, i)
			}
		}
		out.Agents = append(out.Agents, agentJSON{
			Name: a.GetName(), Shown: shown.Agent(a.GetName()), Type: a.GetType(),
			Address: a.GetAddress(), Lanes: a.GetLanes(),
			Cores: a.GetCores(), Provider: a.GetProvider(), Executor: a.GetExecutor(),
			Draining: a.GetDraining(), Factor: unknownIfZero(a.GetFactor()),
			Software: a.GetSoftware(),
			Models:   holds, Price: unknownIfZero(a.GetPrice()),
		})
	}
	return out
}

type beatJSON struct {
	Second      uint64              `json:"second"`
	Fleet       uint64              `json:"fleet"`
	Epoch       uint64              `json:"epoch"`
	Leaderless  bool                `json:"leaderless"`
	Rate        number              `json:"rate"`
	Limit       number              `json:"limit"`
	Allowable   number              `json:"allowable"`
	Approximate bool                `json:"approximate"`
	Price       number              `json:"price"`
	Waiting     uint32              `json:"waiting"`
	WaitingLate uint32              `json:"waiting_late"`
	Answered    uint64              `json:"answered"`
	Late        uint64              `json:"late"`
	Failed      uint64              `json:"failed"`
	Within      number              `json:"within"`
	Busy        number              `json:"busy"`
	Models      []modelBeatJSON     `json:"models"`
	Lanes       lanesJSON           `json:"lanes"`
	Heat        []heatJSON          `json:"heat"`
	Shots       [][4]int            `json:"shots"`
	ShotWeight  uint32              `json:"shot_weight"`
	Events      []control.EventJSON `json:"events,omitempty"`
	// Why says why queries of the last minute were late; empty if none was, or nobody knows.
	Why string `json:"why,omitempty"`
}

type modelBeatJSON struct {
	Model    int    `json:"model"`
	Rate     number `json:"rate"`
	Answered uint64 `json:"answered"`
	Late     uint64 `json:"late"`
	Failed   uint64 `json:"failed"`
	Within   number `json:"within"`
	P50Ms    number `json:"p50_ms"`
	P99Ms    number `json:"p99_ms"`
}

type lanesJSON struct {
	RemainingMs numbers `json:"remaining_ms"`
	Busy        numbers `json:"busy"`
	Model       numbers `json:"model"`
	Flags       numbers `json:"flags"`
}

type heatJSON struct {
	Type  uint32      `json:"type"`
	Model int         `json:"model"`
	Bins  [][2]uint32 `json:"bins"`
}

// beatOf returns a beat of the fleet f, which [checkBeat] has accepted.
func beatOf(b *control.Beat, f *control.Fleet, c viewerClass) *beatJSON {
	at := c.visibleIndices(f)
	r := b.GetRow()
	out := &beatJSON{
		Second: r.GetSecond(), Fleet: b.GetFleet(), Epoch: b.GetEpoch(),
		Leaderless: f.GetLeaderless() != "", Rate: number(r.GetRate()), Limit: number(r.GetLimit()),
		Allowable: number(r.GetAllowable()), Approximate: b.GetApproximate(),
		Price: number(r.GetPrice()), Waiting: r.GetWaiting(), WaitingLate: r.GetWaitingLate(),
		Answered: r.GetAnswered(), Late: r.GetLate(), Failed: r.GetFailed(),
		Within: number(b.GetWithin()), Busy: number(r.GetBusy()), Models: []modelBeatJSON{},
		Heat: []heatJSON{}, Shots: [][4]int{}, ShotWeight: b.GetShotWeight(),
		Why: visibleMissed(b.GetMissed(), f, c).Sentence(3),
	}
	rows := map[string]*control.ModelRow{}
	for _, m := range r.GetModels() {
		rows[m.GetModel()] = m
	}
	for _, m := range b.GetModels() {
		i := visibleIndex(at, int(m.GetModel()))
		named := f.Models[m.GetModel()]
		row := rows[string(names.NewModelKey(named.GetName(), named.GetVersion()))]
		if i < 0 || row == nil {
			continue
		}
		out.Models = append(out.Models, modelBeatJSON{
			Model: i, Rate: number(m.GetRate()), Answered: row.GetAnswered(), Late: row.GetLate(),
			Failed: row.GetFailed(), Within: number(m.GetWithin()),
			P50Ms: toMs(row.GetP50Ns()), P99Ms: toMs(row.GetP99Ns()),
		})
	}
	lanes, _ := b.LanesOf(f) // checked before
	l := &out.Lanes
	l.RemainingMs, l.Busy = make(numbers, len(lanes)), make(numbers, len(lanes))
	l.Model, l.Flags = make(numbers, len(lanes)), make(numbers, len(lanes))
	for i, lane := range lanes {
		l.RemainingMs[i], l.Busy[i] = float64(lane.Free)/1e6, lane.Busy
		if lane.Busy < 0 {
			l.Busy[i] = math.NaN()
		}
		l.Model[i], l.Flags[i] = float64(visibleIndex(at, lane.Model)), float64(lane.Flags)
	}
	for _, h := range b.GetHeat() {
		i := visibleIndex(at, int(h.GetModel()))
		if i < 0 {
			continue
		}
		heat := heatJSON{Type: h.GetType(), Model: i, Bins: [][2]uint32{}}
		for bins := h.GetBins(); len(bins) > 1; bins = bins[2:] {
			heat.Bins = append(heat.Bins, [2]uint32{bins[0], bins[1]})
		}
		out.Heat = append(out.Heat, heat)
	}
	for shots := b.GetShots(); len(shots) > 3; shots = shots[4:] {
		if i := visibleIndex(at, int(shots[2])); i >= 0 {
			out.Shots = append(out.Shots, [4]int{int(shots[0]), int(shots[1]), i, int(shots[3])})
		}
	}
	if c.events {
		for _, e := range b.GetEvents() {
			out.Events = append(out.Events, e.JSON())
		}
	}
	return out
}

// visibleMissed says why queries of the models that the class may see were late, with the agents'
// names for people. It is of no query if that is not known.
func visibleMissed(m *control.MissedQueries, f *control.Fleet, c viewerClass) *lateness.Summary {
	if m == nil {
		return &lateness.Summary{}
	}
	if !c.all {
		sees := map[string]bool{}
		for i, model := range f.GetModels() {
			if i < len(c.models) && c.models[i] == '1' {
				sees[model.GetName()] = true
			}
		}
		m = m.Visible(func(model string) bool { return sees[model] })
	}
	s, shown := m.Summary(), f.ShownNames()
	for i := range s.Missed {
		s.Missed[i].Agent = shown.Agent(s.Missed[i].Agent)
	}
	return s
}

type historyJSON struct {
	Step        int                `json:"step"`
	Second      numbers            `json:"second"`
	Rate        numbers            `json:"rate"`
	Limit       numbers            `json:"limit"`
	Allowable   numbers            `json:"allowable"`
	Price       numbers            `json:"price"`
	Waiting     numbers            `json:"waiting"`
	WaitingLate numbers            `json:"waiting_late"`
	Answered    numbers            `json:"answered"`
	Late        numbers            `json:"late"`
	Failed      numbers            `json:"failed"`
	Busy        numbers            `json:"busy"`
	Models      []modelHistoryJSON `json:"models"`
}

type modelHistoryJSON struct {
	Model    int     `json:"model"`
	Answered numbers `json:"answered"`
	Late     numbers `json:"late"`
	Failed   numbers `json:"failed"`
	P50Ms    numbers `json:"p50_ms"`
	P99Ms    numbers `json:"p99_ms"`
}

// historyOf returns rows as columns, with the models that the fleet has now.
func historyOf(rows []row, step int, f *control.Fleet, c viewerClass) *historyJSON {
	at := c.visibleIndices(f)
	column := func() numbers { return make(numbers, 0, len(rows)) }
	out := &historyJSON{
		Step: step, Second: column(), Rate: column(), Limit: column(), Allowable: column(),
		Price: column(), Waiting: column(), WaitingLate: column(), Answered: column(),
		Late: column(), Failed: column(), Busy: column(), Models: []modelHistoryJSON{},
	}
	where := map[string]int{}
	for i, m := range f.GetModels() {
		if i := visibleIndex(at, i); i >= 0 {
			where[string(names.NewModelKey(m.GetName(), m.GetVersion()))] = len(out.Models)
			empty := func() numbers {
				n := make(numbers, len(rows))
				for i := range n {
					n[i] = math.NaN()
				}
				return n
			}
			out.Models = append(out.Models, modelHistoryJSON{
				i, empty(), empty(), empty(), empty(), empty(),
			})
		}
	}
	for k := range rows {
		r := &rows[k]
		for _, x := range []struct {
			to *numbers
			v  float64
		}{
			{&out.Second, float64(r.second)}, {&out.Rate, float64(r.rate)},
			{&out.Limit, float64(r.limit)}, {&out.Allowable, float64(r.allowable)},
			{&out.Price, float64(r.price)}, {&out.Waiting, float64(r.waiting)},
			{&out.WaitingLate, float64(r.waitingLate)}, {&out.Answered, float64(r.answered)},
			{&out.Late, float64(r.late)}, {&out.Failed, float64(r.failed)},
			{&out.Busy, float64(r.busy)},
		} {
			*x.to = append(*x.to, x.v)
		}
		for _, m := range r.models {
			i, ok := where[m.model.Value()]
			if !ok {
				continue
			}
			to := &out.Models[i]
			to.Answered[k], to.Late[k], to.Failed[k] = float64(m.answered), float64(m.late),
				float64(m.failed)
			to.P50Ms[k], to.P99Ms[k] = float64(m.p50)/1e6, float64(m.p99)/1e6
		}
	}
	return out
}

// appendFrame appends an event of a stream: its kind, its id if that is above 0, and its data.
func appendFrame(b []byte, kind string, id uint64, data any) []byte {
	b = append(append(append(b, "event: "...), kind...), '\n')
	if id > 0 {
		b = append(strconv.AppendUint(append(b, "id: "...), id, 10), '\n')
	}
	text := bytes.NewBuffer(append(b, "data: "...))
	// Cannot fail: all types can be written. Encode ends with a line feed, and writes no other.
	_ = json.NewEncoder(text).Encode(data)
	return append(text.Bytes(), '\n')
}

// appendHistory appends the rows as events, if there are any.
func appendHistory(b []byte, seconds, minutes []row, f *control.Fleet, c viewerClass) []byte {
	if len(seconds) > 0 {
		b = appendFrame(b, "history", 0, historyOf(seconds, 1, f, c))
	}
	if len(minutes) > 0 {
		b = appendFrame(b, "history", 0, historyOf(minutes, minute, f, c))
	}
	return b
}

// frameFor returns the packet as the events of a stream, without the fleet. It is made once for
// each class.
func (p *packet) frameFor(c viewerClass) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if made, ok := p.frames[c]; ok {
		return made
	}
	b := appendHistory(nil, p.seconds, p.minutes, p.fleet, c)
	if p.beat != nil {
		b = appendFrame(b, "beat", p.beat.GetRow().GetSecond(), beatOf(p.beat, p.fleet, c))
	}
	if p.plan != nil {
		b = appendFrame(b, "plan", 0, map[string]uint64{"number": p.plan.GetNumber()})
	}
	if p.frames == nil {
		p.frames = map[viewerClass][]byte{}
	}
	p.frames[c] = b
	return b
}
