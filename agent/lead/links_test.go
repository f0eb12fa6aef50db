package lead

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// TestIdleLink has both ends of a link send at the moment when it becomes idle: nothing is lost.
func TestIdleLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		agents := []*testNode{w.add("a", -1, linear), w.add("b", -1, linear)}
		synctest.Wait()
		// Proposals, and grants of those that came by a link of the other's: by who opened it.
		var heard atomic.Int64
		for _, n := range agents {
			n.leader.links.elect = func(*control.Election) { heard.Add(1) }
		}
		send := func(epoch uint64, from, to *testNode) {
			from.leader.links.send(names.AgentName(to.name), &control.Election{
				From: from.name, Kind: uint32(election.Propose), Epoch: epoch, Rank: 1,
				Leader: from.name,
			})
		}
		const rounds = 50
		epoch := uint64(0)
		for range rounds {
			for i, from := range []int{0, 0, 1} {
				epoch++
				send(epoch, agents[from], agents[1-from])
				if i < 2 {
					time.Sleep(idleLink)
				}
			}
			time.Sleep(4 * idleLink)
		}
		if n := heard.Load(); n != 3*rounds {
			t.Errorf("%d of %d messages were heard", n, 3*rounds)
		}
	})
}

// TestManyProfiles has a leader that knows more than one message may hold: an agent that joins is
// told everything, in messages that it takes.
func TestManyProfiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		shipped, err := profiles.ShippedLibrary().Table("ncf", "r5n.large")
		if err != nil {
			t.Fatal(err)
		}
		table, err := match.NewTable(shipped, 1)
		if err != nil {
			t.Fatal(err)
		}
		const many, size = 300, 20 << 10
		term := a.leader.currentTerm()
		term.callInLoop(func() {
			ghost, advice := &leader.Member{Name: "ghost"}, &leader.Advice{}
			for i := range many {
				id := leader.ModelID{Name: fmt.Sprintf("m%d", i), Version: 1}
				ghost.Models = append(ghost.Models, leader.HeldModel{
					ModelID: id, QoSTarget: time.Second, Share: 0.99, Largest: 1,
				})
				advice.Latencies = append(advice.Latencies, &leader.Latency{
					TableKey: names.TableKey{Model: id.Key(), Type: "box/cpu/1"}, Profile: shipped,
					Table: table, Told: make([]byte, size),
				})
			}
			term.step(leader.Event{
				Kind: leader.ViewChanged, Members: []*leader.Member{ghost, {Name: "a"}},
			})
			term.applyAdvice(advice)
		})
		b := w.add("b", -1, linear)
		told := func() (profiles, largest int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, m := range b.told {
				largest = max(largest, proto.Size(m))
				for _, p := range m.GetProfiles() {
					if strings.HasPrefix(p.GetModel(), "m") && len(p.GetTable()) == size {
						profiles++
					}
				}
			}
			return profiles, largest
		}
		soon(t, time.Second, "b knows all profiles",
			func() bool { n, _ := told(); return n == many })
		if _, largest := told(); largest > maxListBytes+size {
			t.Errorf("a message has %d bytes, want not much more than %d", largest,
				maxListBytes)
		}
	})
}

// TestCutMessages: however many releases and types there are, each message of a link is one that
// members accept, and all releases come.
func TestCutMessages(t *testing.T) {
	k := &link{wake: make(chan struct{}, 1)}
	var all []*control.Release
	for i := range 1 << 12 {
		all = append(all, &control.Release{
			Model: fmt.Sprintf("%0255d", i), Number: 1, Current: 1,
			Why: strings.Repeat("w", control.MaxWhyBytes), By: strings.Repeat("b",
				control.MaxByBytes),
		})
	}
	var prices []*control.TypePrice
	for i := range 1 << 14 {
		prices = append(prices, &control.TypePrice{Type: fmt.Sprintf("%0200d", i), PerMs: 1})
	}
	k.push(func(m *control.LeaderMessage) { m.Releases, m.Prices = all, prices })
	var told []*control.Release
	for m := k.takeMessage(); m != nil; m = k.takeMessage() {
		k.keepForNext(m)
		if size := proto.Size(m); size > 1<<20 {
			t.Fatalf("a message has %d bytes, members accept 1 MiB", size)
		}
		told = append(told, m.Releases...)
	}
	if !slices.Equal(told, all) {
		t.Errorf("%d of %d releases have come", len(told), len(all))
	}
	k.push(func(m *control.LeaderMessage) { m.Releases = all })
	k.keepForNext(k.takeMessage())
	k.push(func(m *control.LeaderMessage) { m.Releases = all[:1] }) // the newest that there are
	k.keepForNext(k.takeMessage())
	if m := k.takeMessage(); m != nil {
		t.Errorf("after the newest releases come others: %d", len(m.Releases))
	}
}
