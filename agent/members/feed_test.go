package members

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
)

// A countedStream is the server's end of a Watch of which only what is sent is of interest.
type countedStream struct {
	grpc.ServerStream
	ctx             context.Context
	messages, bytes int
	largest         int // of the messages but the first
	wires           []*byte
}

func (s *countedStream) Context() context.Context   { return s.ctx }
func (s *countedStream) Send(v *control.View) error { return s.sent(proto.Size(v)) }
func (s *countedStream) SendMsg(m any) error {
	wire := m.(oip.Encoded).Wire
	s.wires = append(s.wires, &wire[0])
	return s.sent(len(wire))
}

func (s *countedStream) sent(n int) error {
	if s.messages > 0 {
		s.largest = max(s.largest, n)
	}
	s.messages++
	s.bytes += n
	return nil
}

// TestLoadsAlone: that 200 members say how busy they are each second, spread over it, costs neither
// the agent a view nor who watches more than one message a second, of the loads alone, which is
// encoded once for all; and all models that are alike were told once.
func TestLoadsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const members, seconds = 200, 10
		k := newKnowing(t, members)
		follow(t, k)
		ctx, cancel := context.WithCancel(t.Context())
		streams := []*countedStream{{ctx: ctx}, {ctx: ctx}}
		for _, s := range streams {
			go func() { _ = k.Watch(&control.WatchRequest{Changes: true}, s, all) }()
		}
		synctest.Wait()
		before, inline := k.View(), proto.Size(k.LoadedView())
		whole := streams[0].bytes
		if streams[0].messages != 1 || whole > inline/4 {
			t.Errorf(
				"at first: %d messages, %d bytes; the view with all that each member says of its "+
					"models has %d", streams[0].messages, whole, inline)
		}
		said := sampleLoads(members)
		for second := range seconds {
			for i := range members - 1 {
				k.hearLoad(names.AgentName(memberName(i)), said[(i+second)%members], time.Now())
				time.Sleep(time.Second / members)
			}
		}
		synctest.Wait()
		if k.View() != before {
			t.Error("loads make another view")
		}
		for i, s := range streams {
			if s.messages < seconds || s.messages > seconds+2 {
				t.Errorf("watcher %d got %d messages in %d seconds", i, s.messages, seconds)
			}
			if s.largest > 60*members || s.bytes-whole > seconds*60*members {
				t.Errorf("watcher %d got %d bytes for %d loads, at most %d at a time", i,
					s.bytes-whole, seconds*members, s.largest)
			}
			if !slices.Equal(s.wires, streams[0].wires) {
				t.Errorf("watcher %d has messages encoded for it alone", i)
			}
		}
		if l := k.Loads(); len(l) != members-1 || l[0].Agent != memberName(0) {
			t.Errorf("%d loads are known, want those of %d others by name: %v", len(l), members-1,
				l[0])
		}
		cancel()
	})
}

// TestFeed: whoever watches an agent, begins when it likes, reads as slowly as it likes and comes
// back, has in the end the view that the agent has, whatever happened to the fleet meanwhile.
func TestFeed(t *testing.T) {
	type watcher struct {
		control.ViewBuilder
		revision uint64
		joined   bool
		heard    map[string]*control.LaneLoad
		wholes   int
	}
	lagged := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		k := newKnowing(t, 5)
		said, there := sampleLoads(50), map[int]bool{0: true, 1: true, 2: true, 3: true}
		watchers := make([]watcher, 4)
		read := func(w *watcher) bool {
			m, revision, err := k.feed.messageAfter(w.revision)
			if err != nil {
				t.Fatal(err)
			}
			if revision == w.revision {
				return false
			}
			w.revision = revision
			v := new(control.View)
			if err := proto.Unmarshal(m.Wire, v); err != nil {
				t.Fatal(err)
			}
			if v.Base == 0 {
				w.heard = map[string]*control.LaneLoad{}
				w.wholes++
			}
			for _, l := range v.Loads {
				w.heard[l.Agent] = l
			}
			if _, err := w.Take(v); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return true
		}
		for range 300 {
			i := rng.IntN(8)
			switch rng.IntN(8) {
			case 0, 1, 2:
				k.hearLoad(names.AgentName(memberName(i)), said[rng.IntN(len(said))], time.Now())
			case 3:
				if !there[i] {
					addMember(k.Members, i)
					there[i] = true
					k.mu.Lock()
					k.touchMembers()
					k.mu.Unlock()
				}
			case 4:
				k.removeLost(names.AgentName(memberName(i)), rng.IntN(2) == 0)
				delete(there, i)
			case 5: // drains
				k.applyMeta(names.AgentName(memberName(i)),
					Meta{
						Versions: control.Spoken, Address: sampleMember("", i).Address,
						Draining: rng.IntN(2) == 0, Revision: 1,
					}.Encode(), false)
			case 6:
				k.ToldByLeader(&control.LeaderMessage{
					Prices: []*control.TypePrice{{Type: "t", PerMs: float64(rng.IntN(5))}},
					Profiles: []*control.Profile{
						{Model: "ncf/1", Type: fmt.Sprint("t", i), Table: []byte{
							byte(rng.IntN(3)), 1,
						}},
					},
					AheadNs: int64(rng.IntN(3)),
				})
			case 7:
				k.update(sampleMember("self", rng.IntN(3)))
			}
			if rng.IntN(3) > 0 {
				k.feed.update(rng.IntN(4) == 0)
			}
			w := &watchers[rng.IntN(len(watchers))]
			switch {
			case !w.joined:
				k.feed.addWatcher()
				*w = watcher{joined: true}
			case rng.IntN(30) == 0:
				k.feed.removeWatcher()
				w.joined = false
			default:
				for range rng.IntN(4) {
					if !read(w) {
						break
					}
				}
			}
		}
		k.feed.update(true)
		for i := range watchers {
			w := &watchers[i]
			if !w.joined {
				continue
			}
			for read(w) {
			}
			if w.wholes > 1 {
				lagged++
			}
			got, want := plainView(w.View()), plainView(k.View())
			if !proto.Equal(got, want) {
				t.Fatalf("seed %d: watcher %d has\n%v\nwant\n%v", seed, i, got, want)
			}
			for _, l := range k.Loads() {
				if got := w.heard[l.Agent]; got.GetWaiting() != l.Waiting ||
					!slices.Equal(got.GetRemainingNs(), l.RemainingNs) {
					t.Fatalf("seed %d: watcher %d heard of %s %v, want %v", seed, i, l.Agent, got,
						l)
				}
			}
			k.feed.removeWatcher()
		}
		if f := &k.feed; f.watchers != 0 || f.steps != nil || f.changes.Revision() != 0 {
			t.Fatalf("seed %d: nobody watches any more, and %d steps are kept", seed, len(f.steps))
		}
	}
	if lagged == 0 {
		t.Error("no watcher lagged so much that it got the whole view")
	}
}

// plainView is a view without how it came.
func plainView(v *control.View) *control.View {
	plain := proto.CloneOf(v)
	plain.Revision = 0
	for _, m := range plain.Members {
		m.Held = nil
		for _, model := range m.Models {
			model.Number = 0
		}
	}
	return plain
}

// TestOwnProfile: what an agent learns of itself is in its view a second later, be there a leader
// or none, though nothing else has changed.
func TestOwnProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKnowing(t, 3)
		follow(t, k)
		before := k.View()
		for range 10 {
			k.estimates.learned.Add(1)
		}
		if k.View() != before {
			t.Error("another view at once: it would be one for every query")
		}
		time.Sleep(watchBeat + watchInterval)
		now := k.View()
		if proto.Equal(&control.View{Profiles: before.Profiles},
			&control.View{Profiles: now.Profiles}) || !slices.Equal(before.Members, now.Members) {
			t.Errorf("got %v", now.Profiles)
		}
		time.Sleep(3 * watchBeat)
		if k.View() != now {
			t.Error("another view though nothing was learned")
		}
	})
}

// TestMemberWithoutText: an agent whose meta or name is no text is refused: no message
// could tell of it.
func TestMemberWithoutText(t *testing.T) {
	if err := Acceptable(
		Meta{Versions: control.Spoken, Address: "10.0.0.1:8001", Type: "r5n"}.Encode(),
		control.Spoken); err != nil {
		t.Error(err)
	}
	b := Meta{Versions: control.Spoken, Address: "10.0.0.1:8001", Type: "r5nX"}.Encode()
	b[slices.Index(b, 'X')] = 0xff
	if err := Acceptable(b, control.Spoken); err == nil {
		t.Error("a type that is no text is accepted")
	}
}
