package learn

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
)

// A plain learner reckons anew, from all that was seen, what a state should have told.
type plain struct {
	*world
	book     *profiles.Book
	arrivals map[leader.ModelID]*profiles.Monitor
	own      map[names.AgentName]bool // the members that have profiles of their own
	prices   []fluid.Price            // as last told
	told     int                      // profiles
	departs  int                      // members
	returns  int
	priced   int // price lists
}

// TestLearns: over random schedules of members that come and go, change their files and get slower
// and faster, what a state has told is what is learned.
func TestLearns(t *testing.T) {
	sum := plain{}
	for seed := range uint64(8) {
		p := &plain{
			world: newWorld(t, seed), book: profiles.NewBook(profiles.ShippedLibrary()),
			arrivals: map[leader.ModelID]*profiles.Monitor{}, own: map[names.AgentName]bool{},
		}
		p.run(seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		sum.told, sum.departs = sum.told+p.told, sum.departs+p.departs
		sum.returns, sum.priced = sum.returns+p.returns, sum.priced+p.priced
	}
	t.Logf("%d profiles and %d lists of prices were told, %d members departed and %d returned",
		sum.told, sum.priced, sum.departs, sum.returns)
	if sum.told < 800 || sum.priced < 200 || sum.departs < 10 || sum.returns < 3 {
		t.Error("too little happened")
	}
}

func (p *plain) run(seed uint64) {
	factor := map[names.AgentName]float64{} // of members, now
	describe := func(i int) *leader.Member {
		name, typ, holds := names.AgentName(rune('a'+i)), names.LaneType("x"), []leader.ModelID{m}
		if i >= 4 {
			typ = "y"
		}
		if p.random.IntN(3) > 0 {
			holds = append(holds, n)
		}
		return member(name, typ, []string{"old", "new"}[p.random.IntN(2)/(1+i%2)], holds...)
	}
	for i := range 6 {
		x := describe(i)
		p.members[x.Name], factor[x.Name] = x, 1
	}
	p.poolIs()
	for range 300 {
		switch dice := p.random.IntN(40); {
		case dice == 0:
			i := p.random.IntN(6)
			p.members[names.AgentName(rune('a'+i))] = describe(i)
			p.poolIs()
		case dice == 1 && len(p.members) > 3:
			delete(p.members, names.AgentName(rune('a'+p.random.IntN(6))))
			p.poolIs()
		case dice < 4:
			factor[names.AgentName(rune('a'+p.random.IntN(6)))] = []float64{
				0.7, 0.92, 1, 1, 1.03, 1.08, 1.3,
			}[p.random.IntN(7)]
		}
		for _, name := range slices.Sorted(maps.Keys(p.members)) {
			x := p.members[name]
			for _, held := range x.Models {
				for range p.random.IntN(8) {
					batch := 1 + p.random.IntN(largest)
					run := p.latency(batch, factor[name])
					p.arrives(held.ModelID, batch)
					p.runs(x, held.ModelID, batch, run)
				}
			}
		}
		p.now = p.now.Add(time.Duration(p.random.IntN(2000)) * time.Millisecond)
		p.check()
	}
}

// check has the state look, and holds its advice against what is reckoned here.
func (p *plain) check() {
	for _, x := range p.seen.Arrivals {
		if p.arrivals[x.Model] == nil {
			p.arrivals[x.Model] = profiles.NewMonitor()
		}
		if err := p.arrivals[x.Model].Observe(x.BatchSize, x.At); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, x := range p.seen.Observations {
		if err := p.book.Observe(x.Member.Model(x.Model).Profile, x.BatchSize, x.Execution,
			x.Member.Name, x.At); err != nil {
			p.t.Fatal(err)
		}
	}
	before := maps.Clone(p.advised)
	p.look()
	for _, l := range p.last.Latencies {
		p.told++
		if b := before[l.TableKey]; b != nil && b.Doubtful == l.Doubtful &&
			near(b.Profile, l.Profile, 0.01) {
			p.t.Errorf("%s on %s is told again as it was", l.Model, l.Type)
		}
		if l.Table.Largest() != largest {
			p.t.Errorf("%s on %s is told up to batch size %d, want %d", l.Model, l.Type,
				l.Table.Largest(), largest)
		}
	}
	if p.last.Factors != nil { // it has looked at profiles this time
		for _, key := range p.book.Keys() {
			if l := p.book.FindLearner(key); l.Shared() {
				l.Agents() // as the state has it, so that both take the same evidence into account
			}
		}
		p.checkOwn()
		p.checkTold()
	}
	p.checkPrices()
}

// checkTold holds what was told against what is learned.
func (p *plain) checkTold() {
	for key, want := range p.want() {
		l := p.advised[key]
		if l == nil {
			p.t.Errorf("%s on %s was never told", key.Model, key.Type)
		} else if want.low != nil && !within(l.Profile, want, 0.01+0.05*p.isOwn(key)) {
			for _, batch := range compared {
				p.t.Errorf("%s on %s: batches of %d take %v as told, %v to %v as learned",
					key.Model,
					key.Type, batch, l.Profile.Mean(batch), want.low.Mean(batch),
					want.high.Mean(batch))
			}
		}
	}
}

// compared are the batch sizes at which the state compares profiles.
var compared = []int{1, largest / 8, largest / 3, largest * 2 / 3, largest}

// near reports whether two profiles are alike where the state compares them; load and 99 % quantile
// by five times as much.
func near(a, b *profiles.Table, by float64) bool {
	for _, batch := range compared {
		for _, x := range []struct {
			a, b time.Duration
			by   float64
		}{
			{a.Mean(batch), b.Mean(batch), by},
			{a.Quantile(0.8, batch), b.Quantile(0.8, batch), by},
			{a.Load(batch), b.Load(batch), 5 * by},
			{a.Quantile(0.99, batch), b.Quantile(0.99, batch), 5 * by},
		} {
			if math.Abs(float64(x.a-x.b)) > x.by*float64(max(x.a, x.b))+2 {
				return false
			}
		}
	}
	return true
}

// within reports whether the means of a profile are within bounds.
func within(a *profiles.Table, b bounds, by float64) bool {
	for _, batch := range compared {
		low, high := b.low.Mean(batch), b.high.Mean(batch)
		if a := float64(a.Mean(batch)); a < (1-by)*float64(min(low, high))-2 ||
			a > float64(max(low, high))/(1-by)+2 {
			return false
		}
	}
	return true
}

// bounds are two profiles between which one should be; nil where nothing but a guess is known.
type bounds struct{ low, high *profiles.Table }

// isOwn is 1 for an agent's own type, else 0.
func (p *plain) isOwn(key names.TableKey) float64 {
	if key.Type.IsOwn() {
		return 1
	}
	return 0
}

// want is what should be told: of an agent that departs, what is between its factor for the model
// and that for all.
func (p *plain) want() map[names.TableKey]bounds {
	all := map[names.TableKey]bounds{}
	for _, x := range p.members {
		for _, held := range x.Models {
			key, of := names.TableKey{Model: held.Key(), Type: x.Type}, held.Profile
			if p.own[x.Name] {
				key.Type = x.OwnType
				all[key] = bounds{}
				if table := p.book.Table(of); table != nil {
					g := profiles.AgentFactor{Factor: p.last.Factors[x.Name]}
					if l := p.book.FindLearner(of); l != nil && l.Shared() {
						for _, a := range l.Agents() {
							if a.Name == x.Name {
								g = a
							}
						}
					}
					all[key] = bounds{table.Scale(p.last.Factors[x.Name]), table.ScaleBy(g.At)}
				}
				continue
			}
			// Of the files that most hold, of those of the lesser name.
			count := map[string]int{}
			for _, y := range p.members {
				if also := y.Model(held.ModelID); also != nil && y.Type == x.Type {
					count[also.Profile.Checksum]++
				}
			}
			of.Checksum = "new"
			if count["old"] > count["new"] {
				of.Checksum = "old"
			}
			all[key] = bounds{p.book.Table(of), p.book.Table(of)}
		}
	}
	return all
}

// checkOwn holds who has a profile of its own against who departs, with hysteresis.
func (p *plain) checkOwn() {
	for name, typ := range p.slow {
		if p.members[name] == nil || typ != p.members[name].OwnType {
			p.t.Errorf("%s is slow as a %s", name, typ)
		}
	}
	for name := range p.members {
		_, now := p.slow[name]
		f, known := p.last.Factors[name]
		away := math.Abs(f - 1)
		switch before := p.own[name]; {
		case now && !known:
			p.t.Errorf("%s is slow, and nothing is known of its factor", name)
		case now && !before:
			if p.departs++; max(away, p.away(name)) <= 0.10 {
				p.t.Errorf("%s departs with a factor of %.3f, of models %.3f", name, f,
					p.away(name))
			}
		case !now && before && known:
			if p.returns++; away >= 0.05 {
				p.t.Errorf("%s departs no more with a factor of %.3f", name, f)
			}
		}
		p.own[name] = now
	}
	maps.DeleteFunc(
		p.own, func(name names.AgentName, _ bool) bool { return p.members[name] == nil })
}

// away is the largest departure of an agent from its type at a model, of some size.
func (p *plain) away(name names.AgentName) (most float64) {
	for _, key := range p.book.Keys() {
		if l := p.book.FindLearner(key); l.Shared() {
			for _, a := range l.Agents() {
				for batch := 1; a.Name == name && batch <= largest; batch++ {
					most = max(most, math.Abs(a.At(batch)-1))
				}
			}
		}
	}
	return most
}

// checkPrices solves the fluid program of all that was told and seen, and compares.
func (p *plain) checkPrices() {
	if p.last.Prices != nil {
		p.priced++
		if samePricesBut(p.prices, p.last.Prices, 0.02) {
			p.t.Errorf("prices are told again as they were: %v", p.last.Prices)
		}
		p.prices = p.last.Prices
	}
	if !p.last.Priced {
		return
	}
	program := &fluid.Program{Unserved: 0.01}
	var types []names.LaneType // of the program's, which are classes
	for _, name := range slices.Sorted(maps.Keys(p.members)) {
		typ := p.members[name].Type
		if p.own[name] {
			typ = p.members[name].OwnType
		}
		class := p.classOf(p.members[name], typ)
		i := slices.IndexFunc(program.Types, func(t fluid.Type) bool { return t.Name == class })
		if i < 0 {
			i = len(program.Types)
			program.Types = append(program.Types, fluid.Type{Name: class})
			types = append(types, typ)
		}
		program.Types[i].Count++
	}
	for _, id := range []leader.ModelID{m, n} {
		monitor := p.arrivals[id]
		if monitor == nil {
			continue
		}
		rate := monitor.Rate(p.now, 30*time.Second)
		for _, x := range monitor.Distribution() {
			bin := fluid.Bin{Model: id.Key(), BatchSize: x.BatchSize, Share: x.Share * rate}
			for i, class := range program.Types {
				latency, usual := time.Duration(0), time.Duration(0)
				if l := p.advised[names.TableKey{Model: id.Key(), Type: types[i]}]; l != nil &&
					strings.Contains(string(class.Name), " "+string(id.Key())) {
					latency, usual = l.Profile.Load(x.BatchSize), l.Profile.Mean(x.BatchSize)
				}
				bin.Late = append(bin.Late, latency)
				if usual > target {
					latency = 0
				}
				bin.Latency = append(bin.Latency, latency)
			}
			program.Bins = append(program.Bins, bin)
		}
	}
	var solver fluid.Solver
	want, err := solver.Solve(program)
	if err != nil {
		p.t.Fatal(err)
	}
	if math.Abs(p.last.Limit-want.Rate) > 1e-6*want.Rate {
		p.t.Errorf("the limit is %v queries/s, want %v", p.last.Limit, want.Rate)
	}
	if want.Rate == 0 {
		return // nothing is worth anything, and prices stay as they were
	}
	told := map[names.LaneType]float64{}
	for _, price := range p.prices {
		if price.Classes == nil {
			told[price.Type] = price.PerMs
		}
		for _, c := range price.Classes {
			class := price.Type
			for _, model := range c.Models {
				class += " " + names.LaneType(model)
			}
			told[class] = c.PerMs
		}
	}
	for i, class := range program.Types {
		got, ok := told[class.Name]
		if !ok {
			got, ok = told[types[i]] // of all classes
		}
		if want := want.PerMs[i]; !ok ||
			math.Abs(got-want) > 0.0201*max(got, want)+1e-9 {
			p.t.Errorf("the price of %s is %v as told, want %v; told are %v", class.Name, got, want,
				p.prices)
		}
	}
}

// classOf names the class of a member's lanes: their type and what of all that is asked for they
// hold.
func (p *plain) classOf(x *leader.Member, typ names.LaneType) names.LaneType {
	for _, id := range []leader.ModelID{m, n} {
		asked := p.arrivals[id] != nil && p.arrivals[id].Rate(p.now, 30*time.Second) > 0
		if asked && x.Model(id) != nil {
			typ += " " + names.LaneType(id.Key())
		}
	}
	return typ
}

// samePricesBut reports whether two lists are alike but for a share.
func samePricesBut(a, b []fluid.Price, share float64) bool {
	off := func(x, y float64) bool { return math.Abs(x-y) > share*max(x, y)+1e-9 }
	for i := range a {
		if i >= len(b) || a[i].Type != b[i].Type || off(a[i].PerMs, b[i].PerMs) ||
			off(float64(a[i].Service), float64(b[i].Service)) ||
			!slices.EqualFunc(a[i].Classes, b[i].Classes, func(c, d fluid.ClassPrice) bool {
				return slices.Equal(c.Models, d.Models) && !off(c.PerMs, d.PerMs) &&
					!off(float64(c.Service), float64(d.Service))
			}) {
			return false
		}
	}
	return len(a) == len(b)
}

// TestDeparts has an agent's queries take longer and longer than its type's, and then less: it gets
// a type of its own beyond 10 %, and keeps it until it has been within 5 % for a minute.
func TestDeparts(t *testing.T) {
	w := newWorld(t, 1)
	var all []*leader.Member
	for i := range 8 {
		all = append(all, member(names.AgentName(fmt.Sprint("w", i)), "x", "", m))
	}
	w.are(all...)
	for _, step := range []struct {
		factor float64
		own    bool
	}{
		{1, false}, {1.06, false}, {1.25, true}, {1.08, true}, {1.01, false}, {1.07, false},
		{0.97, false}, {0.8, true}, {0.93, true},
	} {
		for i := range 3000 {
			for j, x := range all {
				batch, factor := 1+(i+j)*37%largest, 1.0
				if j == 0 {
					factor = step.factor
				}
				w.runs(x, m, batch, w.latency(batch, factor))
			}
			if w.now = w.now.Add(30 * time.Millisecond); i%25 == 0 {
				w.look()
			}
		}
		if typ, own := w.slow["w0"]; own != step.own || own && typ != "x@w0" || len(w.slow) > 1 {
			t.Errorf(
				"with a factor of %v, found to be %.3f, these have types of their own: %v; want "+
					"%v of w0",
				step.factor, w.last.Factors["w0"], w.slow, step.own)
		}
		own := w.advised[names.TableKey{Model: m.Key(), Type: "x@w0"}]
		if !step.own {
			continue
		}
		if got, want := own.Profile.Mean(50), float64(linear(50))*
			step.factor; math.Abs(float64(got)/want-1) > 0.07 {
			t.Errorf("with a factor of %v, batches of 50 take %v as told, want about %v",
				step.factor, got, time.Duration(want))
		}
	}
	delete(w.members, "w0") // while it has a type of its own
	w.poolIs()
	w.look()
	if len(w.slow) > 0 || w.Sizes()["scaled"] > 0 {
		t.Errorf("one that is gone has a type of its own: %v", w.slow)
	}
}

// TestDepartsAgainAndAgain has other work slow an agent's machine for eight seconds of every
// sixteen: it does not get and lose a type of its own with each.
func TestDepartsAgainAndAgain(t *testing.T) {
	w := newWorld(t, 1)
	var all []*leader.Member
	for i := range 4 {
		all = append(all, member(names.AgentName(fmt.Sprint("w", i)), "x", "", m))
	}
	w.are(all...)
	const steps = 12000 // two minutes
	switches, own := 0, false
	for i := range steps {
		for j, x := range all {
			batch, factor := 1+(i+j)*37%largest, 1.0
			if j == 0 && i/800%2 == 1 {
				factor = 1.3
			}
			w.runs(x, m, batch, w.latency(batch, factor))
		}
		if w.now = w.now.Add(10 * time.Millisecond); i%25 == 0 {
			w.look()
			if _, now := w.slow["w0"]; now != own {
				own, switches = now, switches+1
			}
		}
	}
	if !own || switches != 1 {
		t.Errorf("in two minutes it got or lost a type of its own %d times, and has one: %t; want once",
			switches, own)
	}
}

// TestForgets has models and types of lanes go, for shorter and for longer: what the state and its
// leader know of them is forgotten when none was there for five minutes, and told anew later.
func TestForgets(t *testing.T) {
	w := newWorld(t, 1)
	a, b, c := member("a", "x", "", m), member("b", "y", "", m, n), member("c", "y", "", m)
	for i, step := range []struct {
		members   []*leader.Member
		told      int // profiles, at once
		minutes   int
		forgotten string
		known     string
	}{
		{[]*leader.Member{a, b}, 3, 10, "", "2 monitors, 3 told"},
		{[]*leader.Member{a}, 0, 4, "", "2 monitors, 3 told"},
		{[]*leader.Member{a, b}, 0, 10, "", "2 monitors, 3 told"},
		{[]*leader.Member{a, c}, 0, 5, "", "2 monitors, 3 told"},
		{[]*leader.Member{a, c}, 0, 1, "n/1 n/1 on y", "1 monitors, 2 told"},
		{[]*leader.Member{a}, 0, 7, "m/1 on y", "1 monitors, 1 told"},
		{[]*leader.Member{a, b}, 2, 1, "", "1 monitors, 3 told"},
	} {
		w.are(step.members...)
		w.look()
		told := len(w.last.Latencies)
		if i == 0 {
			w.arrives(m, 10)
			w.arrives(n, 10)
			// clients may ask for what nobody holds
			w.arrives(leader.ModelID{Name: "none", Version: 1}, 10)
			w.look()
			if n := w.Sizes()["monitors"]; n != 2 {
				t.Errorf("%d models are monitored, want 2", n)
			}
		}
		var forgotten []string
		for range step.minutes {
			w.now = w.now.Add(ForgetInterval)
			if what := w.forget(); what != "" {
				forgotten = append(forgotten, what)
			}
			w.look()
		}
		known := fmt.Sprintf("%d monitors, %d told", w.Sizes()["monitors"], w.Sizes()["told"])
		if got := strings.Join(forgotten, ", "); told != step.told || got != step.forgotten ||
			known != step.known {
			t.Errorf(
				"step %d: %d profiles were told, %q was forgotten, and known are %s; want %d, "+
					"%q, %s", i, told, got, known,
				step.told, step.forgotten, step.known)
		}
	}
}

// TestForgetsVersions has versions of a model come one after the other: of those that are gone the
// book keeps but two, and what it forgets is to be saved.
func TestForgetsVersions(t *testing.T) {
	w := newWorld(t, 1)
	var changed string
	for version := range int64(5) {
		id := leader.ModelID{Name: "m", Version: version + 1}
		a := member("a", "x", "", id)
		w.are(a)
		w.runs(a, id, 10, linear(10))
		w.look()
		changed += fmt.Sprintf("%v %v, ", w.Changed(), w.Changed())
		for range 10 {
			w.now = w.now.Add(ForgetInterval)
			w.forget()
			w.look()
		}
		changed += fmt.Sprintf("%v %v; ", w.Changed(), w.Changed())
	}
	const learns, forgets = "true false, false false; ", "true false, true false; "
	if want := learns + learns + learns + forgets + forgets; changed != want {
		t.Errorf("the book has changed: %s, want %s", changed, want)
	}
	if n := w.Sizes()["book"]; n != 3 {
		t.Errorf("%d versions are known, want 3", n)
	}
}
