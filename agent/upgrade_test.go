package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
)

// TestRollingUpgrade: a fleet whose agents are replaced one by one by those of the next version,
// and then back, serves all queries, and agrees on the newest version that all speak. One of the
// version after the next is none of it, and says why.
func TestRollingUpgrade(t *testing.T) {
	// Code that spoke this version when it came also spoke the versions from the third on.
	first, now := uint32(3), control.Spoken.Newest
	next, later := now+1, now+2
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		var fleet []*agenttest.Member
		speaking := func(oldest, newest uint32) func(agent.Inside) {
			return func(a agent.Inside) {
				a.Environment().Spoken = control.Versions{Oldest: oldest, Newest: newest}
				for _, o := range fleet {
					a.Config().Join = append(a.Config().Join, o.Host+":7946")
				}
			}
		}
		agreed := func(want uint32, agents ...*agenttest.Member) {
			f.Settled(agents...)
			f.Led(agents...)
			for _, a := range agents {
				if got := control.Agreed(a.Members().View().GetMembers()); got != want {
					f.Errorf("%s agrees on version %d, want %d", a.Host, got, want)
				}
			}
		}
		fleet = []*agenttest.Member{
			f.Start(speaking(first, now)), f.Start(speaking(first, now)),
			f.Start(speaking(now, now)),
		}
		agreed(now, fleet...)
		replace := func(i int, oldest, newest uint32) {
			fleet = append(fleet, f.Start(speaking(oldest, newest)))
			f.Settled(fleet...)
			if failed := f.Send(20, 5*time.Millisecond, fleet...); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
			if err := fleet[i].Stop(); err != nil {
				f.Error(err)
			}
			fleet = slices.Delete(fleet, i, i+1)
			if failed := f.Send(20, 5*time.Millisecond, fleet...); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
		}
		replace(2, now, next)
		agreed(now, fleet...)
		replace(1, now, next)
		agreed(now, fleet...)
		late := f.Start(speaking(next, later)) // while one does not speak the next version
		time.Sleep(10 * time.Second)
		if want := control.VersionsOf(first, now).Understands(
			control.VersionsOf(next, next)).Error(); !strings.Contains(
			fleet[0].Log.String(), want) {
			f.Errorf("log of an agent that does not speak the next version: %s\nwant %q",
				fleet[0].Log, want)
		}
		if err := late.Stop(); err != nil {
			f.Error(err)
		}
		replace(0, now, next)
		agreed(next, fleet...)
		replace(0, first, now)
		agreed(now, fleet...)
	})
}
