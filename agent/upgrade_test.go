package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
)

// TestRollingUpgrade: a fleet whose agents are replaced one by one by those of the next version,
// and then back, serves all queries, and agrees on the newest version that all speak. One of the
// version after the next is none of it, and says why.
func TestRollingUpgrade(t *testing.T) {
	// Code that spoke this version when it came also spoke the versions from the third on.
	first, now := uint32(3), control.Spoken.Newest
	next, later := now+1, now+2
	testInFleet(t, func(f *testFleet) {
		var fleet []*fleetAgent
		speaking := func(oldest, newest uint32) func(Inside) {
			return func(a Inside) {
				a.Environment().Spoken = control.Versions{Oldest: oldest, Newest: newest}
				for _, o := range fleet {
					a.Config().Join = append(a.Config().Join, o.host+":7946")
				}
			}
		}
		agreed := func(want uint32, agents ...*fleetAgent) {
			f.settled(agents...)
			f.led(agents...)
			for _, a := range agents {
				if got := control.Agreed(a.Members().View().GetMembers()); got != want {
					f.Errorf("%s agrees on version %d, want %d", a.host, got, want)
				}
			}
		}
		fleet = []*fleetAgent{
			f.start(speaking(first, now)), f.start(speaking(first, now)),
			f.start(speaking(now, now)),
		}
		agreed(now, fleet...)
		replace := func(i int, oldest, newest uint32) {
			fleet = append(fleet, f.start(speaking(oldest, newest)))
			f.settled(fleet...)
			if failed := f.send(20, 5*time.Millisecond, fleet...); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
			if err := fleet[i].stop(); err != nil {
				f.Error(err)
			}
			fleet = slices.Delete(fleet, i, i+1)
			if failed := f.send(20, 5*time.Millisecond, fleet...); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
		}
		replace(2, now, next)
		agreed(now, fleet...)
		replace(1, now, next)
		agreed(now, fleet...)
		late := f.start(speaking(next, later)) // while one does not speak the next version
		time.Sleep(10 * time.Second)
		if want := control.VersionsOf(first, now).Understands(
			control.VersionsOf(next, next)).Error(); !strings.Contains(
			fleet[0].log.String(), want) {
			f.Errorf("log of an agent that does not speak the next version: %s\nwant %q",
				fleet[0].log, want)
		}
		if err := late.stop(); err != nil {
			f.Error(err)
		}
		replace(0, now, next)
		agreed(next, fleet...)
		replace(0, first, now)
		agreed(now, fleet...)
	})
}
