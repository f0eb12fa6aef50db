package control

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
)

// A changingFleet is a fleet that changes at random, as a roster shows it: what has not changed is
// the same message.
type changingFleet struct {
	rng      *rand.Rand
	members  map[string]*Member
	profiles map[names.TableKey]*Profile
	loads    map[string]HeardLoad
	rest     View
	now      time.Time
	serial   int
}

func newChangingFleet(seed uint64) *changingFleet {
	return &changingFleet{rng: rand.New(rand.NewPCG(seed, 1)), members: map[string]*Member{},
		profiles: map[names.TableKey]*Profile{},
		loads:    map[string]HeardLoad{}, now: time.Unix(1e9, 0)}
}

func (f *changingFleet) name() string { return fmt.Sprint("agent-", f.rng.IntN(12)) }

// model is one of a few; alike ones are told apart by their messages only.
func (f *changingFleet) model() *Model {
	name := fmt.Sprint("model-", f.rng.IntN(3))
	return &Model{Name: name, Version: int64(1 + f.rng.IntN(2)),
		QosTargetNs: int64(1 + f.rng.IntN(2)), Checksum: "c",
		Metadata: &inference.ModelMetadataResponse{
			Name: name, Properties: map[string]string{"a": "1", "b": "2", "c": "3"},
		}}
}

// change changes one thing, or so.
func (f *changingFleet) change() {
	f.serial++
	f.now = f.now.Add(time.Duration(f.rng.IntN(1000)) * time.Millisecond)
	switch name := f.name(); f.rng.IntN(10) {
	case 0, 1, 2: // joins, or holds something else than before
		m := &Member{
			Name: name, Address: fmt.Sprint(name, ":", f.serial), Revision: uint64(f.serial),
		}
		for range f.rng.IntN(4) {
			m.Models = append(m.Models, f.model())
		}
		for range f.rng.IntN(3) {
			m.Loadable = append(m.Loadable, f.model())
		}
		f.members[name] = m
	case 3, 4:
		delete(f.members, name)
		delete(f.loads, name)
	case 5, 6, 7: // perhaps of one who is no member yet
		f.loads[name] = HeardLoad{
			&LaneLoad{
				Agent: name, Waiting: uint32(f.rng.IntN(3)), RemainingNs: []int64{int64(f.serial)},
			}, f.now,
		}
	case 8:
		key := names.TableKey{
			Model: names.ModelKey(fmt.Sprint("model-", f.rng.IntN(3))), Type: "box",
		}
		if f.rng.IntN(3) == 0 {
			delete(f.profiles, key)
		} else {
			f.profiles[key] = &Profile{
				Model: string(key.Model), Type: string(key.Type),
				Table: fmt.Appendf(nil, "{%d}", f.serial),
			}
		}
	case 9:
		f.rest.Leadership = &Leadership{Epoch: uint64(f.serial), Leader: name}
		f.rest.Prices = []*TypePrice{{Type: "box", PerMs: float64(f.rng.IntN(3))}}
		f.rest.AheadNs = int64(f.rng.IntN(3))
		f.rest.Releases = []*Release{{Model: "m", Current: int64(1 + f.rng.IntN(3))}}
		switch f.rng.IntN(4) { // what there was is no more
		case 0:
			f.rest.Prices = nil
		case 1:
			f.rest.Releases = nil
		}
	}
}

// view is the whole of it.
func (f *changingFleet) view() *View {
	v := &View{
		Leadership: f.rest.Leadership, Prices: f.rest.Prices, AheadNs: f.rest.AheadNs,
		Releases: f.rest.Releases,
	}
	for _, m := range f.members {
		v.Members = append(v.Members, m)
	}
	slices.SortFunc(v.Members, func(a, b *Member) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range f.profiles {
		v.Profiles = append(v.Profiles, p)
	}
	slices.SortFunc(v.Profiles, func(a, b *Profile) int { return cmp.Compare(a.Model, b.Model) })
	return v
}

func (f *changingFleet) heard() (loads []HeardLoad) {
	for _, l := range f.loads {
		loads = append(loads, l)
	}
	return loads
}

// overWire is v as another process gets it.
func overWire(t *testing.T, v *View) *View {
	t.Helper()
	b, err := proto.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got := new(View)
	if err := proto.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// A testWatcher knows of the fleet what it was sent.
type testWatcher struct {
	ViewBuilder
	heard map[string]*LaneLoad // by member, as they were sent
	at    map[string]time.Time
}

func (w *testWatcher) take(t *testing.T, v *View, now time.Time) error {
	got := overWire(t, v)
	before := w.View()
	changed, err := w.Take(got)
	if err != nil {
		return err
	}
	if unchanged := before != nil && alike(before, w.View()); v.Base != 0 && changed == unchanged {
		t.Fatalf("a change is said to be one: %v, but it makes\n%v\nof\n%v", changed, w.View(),
			before)
	}
	if v.Base == 0 {
		w.heard, w.at = map[string]*LaneLoad{}, map[string]time.Time{}
	}
	for _, l := range got.Loads {
		w.heard[l.Agent], w.at[l.Agent] = l, now.Add(-time.Duration(l.AgeNs))
	}
	return nil
}

// alike reports whether two views say the same of all but loads.
func alike(a, b *View) bool {
	plain := func(v *View) *View {
		p := &View{
			Leadership: v.Leadership, Prices: v.Prices, Profiles: v.Profiles, AheadNs: v.AheadNs,
			Releases: v.Releases,
		}
		for _, m := range v.Members {
			m = proto.CloneOf(m)
			m.Held, m.Could = nil, nil
			for _, model := range slices.Concat(m.Models, m.Loadable) {
				model.Number = 0
			}
			p.Members = append(p.Members, m)
		}
		return p
	}
	return proto.Equal(plain(a), plain(b))
}

// TestChanges: whoever takes a fleet's changes, however it was late, cut off or lost some, has the
// same view in the end as whoever sees all of it, and sees whenever it has lost one.
func TestChanges(t *testing.T) {
	for seed := range uint64(40) {
		f := newChangingFleet(seed)
		var changes Changes
		watchers := make([]testWatcher, 4)
		late := make([][]*View, len(watchers)) // on their way
		emit := func(v *View) {
			if v == nil {
				return
			}
			for i := range late {
				late[i] = append(late[i], v)
			}
		}
		changes.Next(f.view())
		for i := range late {
			late[i] = []*View{changes.Whole(f.now)}
		}
		read := func(i int) {
			v := late[i][0]
			late[i] = late[i][1:]
			if err := watchers[i].take(t, v, f.now); err != nil {
				if v.Base == 0 {
					t.Fatalf("seed %d: %v", seed, err)
				}
				late[i] = []*View{changes.Whole(f.now)} // it watches anew
			}
		}
		for range 100 {
			for range f.rng.IntN(4) {
				f.change()
			}
			emit(changes.Next(f.view()))
			if f.rng.IntN(3) == 0 {
				emit(changes.NextLoads(f.heard(), f.now))
			}
			for i := range watchers {
				switch f.rng.IntN(20) {
				case 0: // cut off
					late[i] = []*View{changes.Whole(f.now)}
				case 1: // lost
					if len(late[i]) > 0 {
						late[i] = late[i][1:]
					}
				}
				for range f.rng.IntN(4) {
					if len(late[i]) > 0 {
						read(i)
					}
				}
			}
		}
		emit(changes.Next(f.view()))
		emit(changes.NextLoads(f.heard(), f.now))
		for name := range changes.loads {
			if f.members[name] == nil {
				t.Errorf("seed %d: the load of %s is kept, which has left", seed, name)
			}
		}
		held := map[string]bool{}
		for _, m := range f.members {
			for _, model := range slices.Concat(m.Models, m.Loadable) {
				held[model.String()] = true
			}
		}
		if len(changes.models) != len(held) {
			t.Errorf("seed %d: %d models are kept, members hold %d", seed, len(changes.models),
				len(held))
		}
		for i := range watchers {
			w := &watchers[i]
			for len(late[i]) > 0 {
				read(i)
			}
			if got := w.View(); got.Revision != changes.Revision() {
				t.Fatalf("seed %d: watcher %d has the view %d of %d and does not know", seed, i,
					got.Revision, changes.Revision())
			} else if !alike(got, f.view()) {
				t.Fatalf("seed %d: watcher %d has\n%v\nwant\n%v", seed, i, got, f.view())
			}
			if len(w.models) != len(held) {
				t.Errorf("seed %d: watcher %d keeps %d models, members hold %d", seed, i,
					len(w.models), len(held))
			}
			for name, want := range f.loads {
				if f.members[name] == nil {
					continue
				}
				if got := w.heard[name]; got.GetWaiting() != want.Waiting ||
					!slices.Equal(got.GetRemainingNs(), want.RemainingNs) {
					t.Fatalf("seed %d: watcher %d heard of %s %v, want %v", seed, i, name, got,
						want.LaneLoad)
				}
			}
		}
	}
}

// TestChangesOnce: alike models are told once, whoever holds them, and again only when nobody did
// meanwhile; a member that has not changed is not told again, and a load neither.
func TestChangesOnce(t *testing.T) {
	model := func(target int64) *Model {
		return &Model{
			Name: "ncf", Version: 1, QosTargetNs: target, Checksum: "same",
			Metadata: &inference.ModelMetadataResponse{Name: "ncf"},
		}
	}
	member := func(name string, models ...*Model) *Member {
		return &Member{
			Name: name, Models: models,
		}
	}
	var c Changes
	a, b := member("a", model(1)), member("b", model(1))
	c.Next(&View{Members: []*Member{a, b}})
	if whole := c.Whole(time.Time{}); len(whole.Models) != 1 || len(whole.Members) != 2 ||
		len(whole.Members[0].Models) != 0 {
		t.Errorf("two members with one model: got %v", whole)
	}
	counted := func(what string, v *View, members, models, loads int) {
		t.Helper()
		if len(v.GetMembers()) != members || len(v.GetModels()) != models ||
			len(v.GetLoads()) != loads {
			t.Errorf("%s: told %d members, %d models and %d loads, want %d, %d and %d: %v",
				what, len(v.GetMembers()), len(v.GetModels()), len(v.GetLoads()), members, models,
				loads, v)
		}
	}
	d := member("d", model(1))
	counted("one joins", c.Next(&View{Members: []*Member{a, b, d}}), 1, 0, 0)
	other := member("d", model(1), model(2)) // of the same files, with other settings
	counted("one is another", c.Next(&View{Members: []*Member{a, b, other}}), 1, 1, 0)
	counted("it leaves", c.Next(&View{Members: []*Member{a, b}}), 0, 0, 0)
	counted("it is back", c.Next(&View{Members: []*Member{a, b, other}}), 1, 1, 0)
	if v := c.Next(&View{Members: []*Member{a, b, other}}); v != nil {
		t.Errorf("nothing has changed: got %v", v)
	}
	loads := []HeardLoad{
		{&LaneLoad{Agent: "a"}, time.Time{}}, {&LaneLoad{Agent: "b"}, time.Time{}}, {
			&LaneLoad{Agent: "nobody"}, time.Time{},
		},
	}
	counted("two loads", c.NextLoads(loads, time.Time{}), 0, 0, 2)
	loads[1].LaneLoad = &LaneLoad{Agent: "b"}
	counted("one is new", c.NextLoads(loads, time.Time{}), 0, 0, 1)
	counted("none is", c.NextLoads(loads, time.Time{}), 0, 0, 0)
}

// TestWatchedNonsense: what cannot be is an error.
func TestWatchedNonsense(t *testing.T) {
	for name, messages := range map[string][]*View{
		"a change of nothing":          {{Base: 1, Revision: 2}},
		"a change of another revision": {{Revision: 1}, {Base: 2, Revision: 3}},
		"a model that was not told": {
			{Revision: 1, Members: []*Member{{Name: "a", Held: []uint64{7}}}},
		},
		"a model that is forgotten": {
			{Revision: 1, Models: []*Model{{Number: 7}}, Members: []*Member{
				{Name: "a", Held: []uint64{7}},
			}},
			{Base: 1, Revision: 2, Gone: []string{"a"}},
			{Base: 2, Revision: 3, Members: []*Member{{Name: "a", Held: []uint64{7}}}},
		},
	} {
		var w ViewBuilder
		for i, v := range messages {
			if _, err := w.Take(v); (err != nil) != (i == len(messages)-1) {
				t.Errorf("%s: message %d: got %v", name, i, err)
			}
		}
	}
}
