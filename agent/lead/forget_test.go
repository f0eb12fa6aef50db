package lead

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
)

// TestLeaderForgets: the only agent of a type leaves, which alone holds a model. The leader
// remembers both for as long as a restart takes, not for ever, and sends their profiles again when
// they are back.
func TestLeaderForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		term := a.leader.currentTerm()
		g := w.gateway(7)
		defer g.close()
		join := func(name string) *testNode {
			t.Helper()
			b := w.add(name, -1, linear)
			b.mu.Lock()
			b.member.InstanceType = "cart"
			b.member.Models = append(b.member.Models, testModel("n", 100*time.Millisecond))
			b.mu.Unlock()
			soon(t, time.Second, name+" is there", func() (there bool) {
				term.callInLoop(func() {
					n := term.state.Sizes()
					there = n["members"] == 2 && n["latencies"] == 3
				})
				return there
			})
			return b
		}
		const n = "n/1 on cart/cpu/1"
		told := func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.profiles[n] != nil
		}
		known := func() (what string) {
			var sizes map[string]int
			monitors := 0
			term.callInLoop(func() { sizes = term.state.Sizes() })
			term.learning.askLoop(func() { monitors = term.learning.state.Sizes()["monitors"] })
			return fmt.Sprintf("%d models, %d profiles, %d monitors", sizes["models"],
				sizes["latencies"], monitors)
		}
		ask := func(model string) {
			term.learning.addArrival(learn.Arrival{
				Model: leader.ModelID{Name: model, Version: 1}, BatchSize: 10, At: time.Now(),
			})
			time.Sleep(time.Second)
		}
		b := join("b")
		soon(t, time.Second, "the gateway is told", told)
		ask("m")
		ask("n")
		w.kill(b, true)
		time.Sleep(4 * time.Minute)
		if got := known(); got != "2 models, 3 profiles, 2 monitors" {
			t.Errorf("after 4 minutes the leader knows %s", got)
		}
		c := join("c") // in time: nothing is forgotten
		time.Sleep(10 * time.Minute)
		if got := known(); got != "2 models, 3 profiles, 2 monitors" {
			t.Errorf("with an agent that is back the leader knows %s", got)
		}
		w.kill(c, true)
		time.Sleep(7 * time.Minute)
		if got := known(); got != "1 models, 1 profiles, 1 monitors" {
			t.Errorf("after 7 minutes the leader knows %s", got)
		}
		g.mu.Lock()
		delete(g.profiles, n)
		g.mu.Unlock()
		join("d")
		soon(t, time.Second, "the gateway is told again", told)
	})
}
