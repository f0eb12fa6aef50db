package main

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fluid"
)

// What a query pays for its way. The ways are round trips; a query has 2 KB, its answer half of
// one, and each of both zones charges $.01/GB.
const (
	zones                   = 3
	inZone, acrossZones     = 500 * time.Microsecond, 2 * time.Millisecond
	bytesCrossing           = 2500
	usdPerByte              = 2 * 0.01 / 1e9
	usdPerLaneHour          = 0.15
	publishEvery            = 10 * time.Millisecond // how often a cell tells its load
	waitPrice               = 4                     // as horizon's
	cellWarm, cellsMeasured = 40 * time.Millisecond, 80 * time.Millisecond
)

// A cellPlan says how a fleet is divided into cells, and where gateways send queries.
type cellPlan struct {
	name      string
	perZone   int  // cells of a zone; 0: one cell has all agents
	byModel   bool // a zone's cells differ by the models of their agents; else by agents alone
	perLease  bool // a cell for each gateway, which has leased its lanes
	overflows bool
	load      float64 // of the fluid limit
	skewed    bool    // half of the queries come in the first zone, a fifth in the last
	loses     string  // "cell", "zone" or nothing, in the middle
}

// A cell is a leader with its agents.
type cell struct {
	zone   int // -1: all
	state  *leader.State
	next   time.Duration
	lost   bool
	agents []int
	limit  float64   // queries/s, of the fluid program
	holds  []bool    // by model: an agent holds it
	worth  []float64 // by model, of its queries at the limit; an average query is worth 1
	load   float64   // published: of the limit
	sent   float64   // queries since it was published last
	steps  float64   // queries that it was sent
}

// A cellQuery is a query without an answer.
type cellQuery struct {
	arrived      time.Duration
	gateway      int
	model, batch int
	attempt      int
	cell         *cell
}

// A cellWorld is a fleet in cells, in virtual time.
type cellWorld struct {
	cellPlan
	f         *fleet
	cells     []*cell
	random    *rand.Rand
	now       time.Duration
	ends      ends
	endCells  map[[2]uint64]*cell
	asked     map[[2]uint64]*cellQuery
	sequences []uint64
	lostZone  int // -1: none

	measured, late, crossed, failed int
}

func newCellWorld(p cellPlan, of size) (*cellWorld, error) {
	w := &cellWorld{
		cellPlan: p, random: rand.New(rand.NewPCG(5, 6)), asked: map[[2]uint64]*cellQuery{},
		endCells: map[[2]uint64]*cell{}, sequences: make([]uint64, of.gateways), lostZone: -1,
	}
	w.f = newFleet(of, 100*float64(of.lanes)) // 8 ms a query at loadShare
	switch {
	case p.perLease:
		for g := range of.gateways {
			w.cells = append(w.cells, &cell{zone: g % zones})
		}
	case p.perZone == 0:
		w.cells = []*cell{{zone: -1}}
	default:
		for i := range zones * p.perZone {
			w.cells = append(w.cells, &cell{zone: i % zones})
		}
	}
	for agent := range of.lanes {
		i := w.cellOf(agent)
		c := w.cells[i]
		c.agents = append(c.agents, agent)
		if p.byModel { // the agent's models are some of the cell's
			for k, model := range w.f.held[agent] {
				w.f.held[agent][k] = (model/p.perZone*p.perZone + i/zones) % of.models
			}
			slices.Sort(w.f.held[agent])
			w.f.held[agent] = slices.Compact(w.f.held[agent])
		}
	}
	for _, c := range w.cells {
		c.holds = make([]bool, of.models)
		for _, agent := range c.agents {
			for _, model := range w.f.held[agent] {
				c.holds[model] = true
			}
		}
		if err := w.open(c); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// cellOf is the index of an agent's cell, by rendezvous hashing over the cells of its zone.
func (w *cellWorld) cellOf(agent int) (best int) {
	highest := uint64(0)
	for i, c := range w.cells {
		x := uint64(agent)<<32 + uint64(i) + 0x9e3779b97f4a7c15 // SplitMix64
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		if x ^= x >> 31; x >= highest && (c.zone < 0 || c.zone == agent%zones) {
			best, highest = i, x
		}
	}
	return best
}

// open starts a cell's leader, and solves its plan.
func (w *cellWorld) open(c *cell) (err error) {
	if c.state, err = newStateOf(w.f, c.agents); err != nil {
		return err
	}
	p := &fluid.Program{Unserved: 0.01}
	count := make([]int, laneTypes)
	for _, agent := range c.agents {
		count[w.f.typeOf(agent)]++
	}
	for typ := range laneTypes {
		p.Types = append(p.Types, fluid.Type{Name: typeName(typ), Count: count[typ]})
	}
	for model := range w.f.models {
		b := fluid.Bin{Model: modelID(model).Key(), BatchSize: maxBatch / 2, Share: 1}
		for typ := range laneTypes {
			b.Latency = append(b.Latency, w.f.latencyOf(model, typ).Mean(maxBatch/2))
		}
		p.Bins = append(p.Bins, b)
	}
	solution, err := (&fluid.Solver{}).Solve(p)
	if err != nil {
		return err
	}
	c.limit, c.worth, c.load = solution.Rate, solution.Worth, w.load
	c.next = c.state.Next()
	return nil
}

// zoneOf is the zone in which a query arrives, and gatewayIn a gateway there.
func (w *cellWorld) zoneOf() int {
	for {
		z := w.random.IntN(zones)
		if w.skewed {
			switch x := w.random.Float64(); {
			case x < 0.5:
				z = 0
			case x < 0.8:
				z = 1
			default:
				z = 2
			}
		}
		if z != w.lostZone {
			return z
		}
	}
}

func (w *cellWorld) crosses(gateway int, agentZone int) bool { return gateway%zones != agentZone }

// home is the index of the cell that a gateway asks first.
func (w *cellWorld) home(gateway, model int) int {
	switch {
	case w.perLease:
		return gateway
	case w.perZone == 0:
		return 0
	case w.byModel:
		return model%w.perZone*zones + gateway%zones
	}
	return gateway/zones%w.perZone*zones + gateway%zones
}

// price is what a query costs at a cell by the duals of its plan, in average queries: the part of
// its worth that counts at the cell's load, as horizon has it, and above the limit ever more.
func (c *cell) price(model int) float64 {
	if c.lost || !c.holds[model] {
		return math.Inf(1)
	}
	if c.load < 1 {
		return c.worth[model] * (1 - math.Sqrt(1-c.load))
	}
	return c.worth[model] * (1 + 20*(c.load-1))
}

// crossing is what it costs to cross a zone, in the same unit.
func (w *cellWorld) crossing() float64 {
	query := usdPerLaneHour / 3600 * float64(w.f.lanes) / (100 * float64(w.f.lanes) / loadShare)
	late := waitPrice * float64(acrossZones-inZone) / float64(w.f.target())
	return bytesCrossing*usdPerByte/query + late
}

// choose returns the cell to which a gateway sends a query: its home, or where that is dearer than
// another cell, drawn at random, by more than the way there costs, the other one.
func (w *cellWorld) choose(gateway, model int) *cell {
	c := w.cells[w.home(gateway, model)]
	cost := c.price(model)
	if !w.overflows && !math.IsInf(cost, 1) || len(w.cells) == 1 {
		return c
	}
	for n := 0; n < 4 || math.IsInf(cost, 1) && n < 1000; n++ {
		o := w.cells[w.random.IntN(len(w.cells))]
		if w.byModel {
			o = w.cells[model%w.perZone*zones+w.random.IntN(zones)]
		}
		other := o.price(model)
		if w.crosses(gateway, o.zone) {
			other += w.crossing()
		}
		if other < cost {
			c, cost = o, other
		}
	}
	return c
}

func (w *cellWorld) step(c *cell, e leader.Event) {
	actions := c.state.Step(w.now, &e)
	for i := range actions {
		if actions[i].Kind == leader.Assign {
			w.start(c, &actions[i])
		}
	}
	c.next = c.state.Next()
}

// start has a lane run what it is assigned.
func (w *cellWorld) start(c *cell, a *leader.Action) {
	d := &a.Decision
	id := [2]uint64{d.Query.Gateway, d.Query.Sequence}
	q := w.asked[id]
	if q == nil {
		return
	}
	took := time.Duration(float64(d.Latency) * (1 + runNoise*w.random.NormFloat64()))
	q.attempt = d.Attempt
	w.endCells[id] = c
	heap.Push(&w.ends, happening{
		at: w.now + d.Wait + took, kind: leader.Completed, gateway: id[0], sequence: id[1],
		attempt: d.Attempt, agent: a.Agent, model: q.model, batch: q.batch, execution: took,
	})
}

// way is the round trip of a query of a gateway to an agent.
func (w *cellWorld) way(gateway int, agent names.AgentName) (time.Duration, bool) {
	var i int
	if _, err := fmt.Sscanf(string(agent), "agent%d", &i); err != nil {
		panic(err) // nameOf has made it
	}
	if w.crosses(gateway, i%zones) {
		return acrossZones, true
	}
	return inZone, false
}

func (w *cellWorld) complete(x *happening) {
	id := [2]uint64{x.gateway, x.sequence}
	q, c := w.asked[id], w.endCells[id]
	if q == nil || q.attempt != x.attempt || w.lostZone >= 0 && c.zone == w.lostZone {
		return
	}
	delete(w.asked, id)
	delete(w.endCells, id)
	way, crossed := w.way(q.gateway, x.agent)
	if q.arrived >= time.Second+cellWarm {
		w.measured++
		if w.now-q.arrived+way > w.f.target() {
			w.late++
		}
		if crossed {
			w.crossed++
		}
	}
	if c.lost {
		return
	}
	x.latency = w.now - q.arrived
	var e leader.Event
	x.fill(&e)
	w.step(c, e)
	w.step(c, leader.Event{Kind: leader.Cancelled, Gateway: id[0], Sequence: id[1]})
}

// runUntil lets time pass, with what happens meanwhile.
func (w *cellWorld) runUntil(at time.Duration) {
	for {
		var first *cell
		for _, c := range w.cells {
			if !c.lost && (first == nil || c.next < first.next) {
				first = c
			}
		}
		if len(w.ends) > 0 && w.ends[0].at <= min(at, first.next) {
			x := heap.Pop(&w.ends).(happening)
			w.now = max(w.now, x.at)
			w.complete(&x)
		} else if first.next <= at {
			w.now = max(w.now+1, first.next)
			w.step(first, leader.Event{Kind: leader.TimePassed})
		} else {
			w.now = max(w.now, at)
			return
		}
	}
}

func (w *cellWorld) submit(id [2]uint64, q *cellQuery) {
	q.cell = w.choose(q.gateway, q.model)
	q.cell.sent++
	q.cell.steps++
	x := happening{
		kind: leader.Submitted, gateway: id[0], sequence: id[1], model: q.model, batch: q.batch,
	}
	var e leader.Event
	x.fill(&e)
	e.Waited = w.now - q.arrived + inZone
	w.step(q.cell, e)
}

// lose has cells lose their leaders: gateways send what waits there to others. With a zone, what
// its agents run is lost too, and so are its gateways with their queries.
func (w *cellWorld) lose() {
	for i, c := range w.cells {
		if w.loses == "zone" && c.zone == 0 || w.loses == "cell" && i == 0 {
			c.lost = true
		}
	}
	if w.loses == "zone" {
		w.lostZone = 0
	}
	var again [][2]uint64
	for id, q := range w.asked {
		runs := w.endCells[id] != nil
		switch {
		case w.lostZone >= 0 && q.gateway%zones == w.lostZone:
			delete(w.asked, id)
			delete(w.endCells, id)
		case q.cell.lost && (!runs || w.lostZone >= 0):
			again = append(again, id)
		}
	}
	slices.SortFunc(again, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
	for _, id := range again {
		delete(w.endCells, id)
		w.submit(id, w.asked[id])
	}
}

// run runs the world and says what became of its queries.
func (w *cellWorld) run() {
	rate := w.load * w.limit()
	w.now = time.Second
	end, published, lost := w.now+cellWarm+cellsMeasured, w.now, false
	for w.now < end {
		w.runUntil(w.now + time.Duration(w.random.ExpFloat64()/rate*1e9))
		if !lost && w.loses != "" && w.now > end-cellsMeasured*2/3 {
			lost = true
			w.lose()
		}
		if w.now-published >= publishEvery {
			for _, c := range w.cells {
				now := c.sent / (w.now - published).Seconds() / c.limit
				c.load, c.sent = c.load+0.3*(now-c.load), 0
			}
			published = w.now
		}
		z := w.zoneOf()
		g := w.random.IntN(w.f.gateways/zones)*zones + z
		w.sequences[g] += 4
		id := [2]uint64{uint64(g + 1), w.sequences[g]}
		q := &cellQuery{
			arrived: w.now, gateway: g, model: w.random.IntN(w.f.models),
			batch: 1 + w.random.IntN(maxBatch),
		}
		w.asked[id] = q
		w.submit(id, q)
	}
	w.runUntil(end + 10*w.f.target()) // what waits is answered
	w.failed = len(w.asked)
}

// limit is the fluid limit of all cells together.
func (w *cellWorld) limit() (sum float64) {
	for _, c := range w.cells {
		sum += c.limit
	}
	return sum
}

func (w *cellWorld) String() string {
	dearest := 0.0
	for _, c := range w.cells {
		dearest = max(dearest, c.steps)
	}
	during := (cellWarm + cellsMeasured).Seconds()
	return fmt.Sprintf("%-34s load %.2f%s: %5.2f %% late, %5.1f %% cross a zone ($%.0f/h), "+
		"%d lost; largest cell %.0f queries/s", w.name, w.load,
		map[bool]string{true: " skewed", false: ""}[w.skewed],
		100*float64(w.late)/float64(max(1, w.measured)),
		100*float64(w.crossed)/float64(max(1, w.measured)),
		float64(w.crossed)/cellsMeasured.Seconds()*bytesCrossing*usdPerByte*3600, w.failed,
		dearest/during)
}

// cellPlans are what is compared.
func cellPlans() (all []cellPlan) {
	for _, p := range []cellPlan{
		{name: "one leader"},
		{name: "a cell a zone", perZone: 1},
		{name: "4 cells a zone", perZone: 4},
		{name: "16 cells a zone", perZone: 16},
		{name: "4 cells a zone, by models", perZone: 4, byModel: true},
		{name: "leases of 33 lanes", perLease: true},
	} {
		p.load = loadShare
		all = append(all, p)
		if p.perZone > 0 {
			p.overflows = true
			p.name += ", overflow"
			all = append(all, p)
		}
		p.skewed = true
		all = append(all, p)
	}
	for _, loses := range []string{"cell", "zone"} {
		p := cellPlan{
			name: "4 cells a zone, a " + loses + " lost", perZone: 4, overflows: true,
			load: loadShare, loses: loses,
		}
		if loses == "zone" {
			p.load = loadShare * (zones - 1) / zones
		}
		all = append(all, p)
	}
	return all
}
