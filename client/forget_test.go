package client

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// TestGatewayForgets has 200 versions and 200 agents with a type of their own come and go: a
// gateway that sees the fleet all the time keeps the profiles of what is there, and for ten minutes
// of what is not.
func TestGatewayForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gateway{}
		g.members.Store(newMembers(&control.View{}))
		a := newLeaderless(g)
		member := func(name string, version int64) *control.Member {
			return &control.Member{
				Name: name, InstanceType: "box", Provider: "cpu", Cores: 1,
				Models: []*control.Model{{Name: "m", Version: version}},
			}
		}
		profile := func(version int64, typ string) *control.Profile {
			return &control.Profile{
				Model: string(names.NewModelKey("m", version)), Type: typ, Table: []byte("{}"),
			}
		}
		stays := member("a", 1)
		kept := []*control.Profile{
			profile(1, string(stays.LaneType())), profile(1, string(stays.OwnLaneType())),
		}
		a.applyView(&control.View{Members: []*control.Member{stays}, Profiles: kept})
		most := 0
		for i := range int64(200) {
			comes := member(fmt.Sprintf("b%d", i), i+2)
			a.applyView(&control.View{
				Members: []*control.Member{stays, comes},
				Profiles: append(
					[]*control.Profile{
						profile(i+2, string(comes.LaneType())),
						profile(i+2, string(comes.OwnLaneType())),
					}, kept...),
			})
			time.Sleep(30 * time.Second)
			a.applyView(&control.View{Members: []*control.Member{stays}, Profiles: kept})
			most = max(most, len(a.profiles))
			if known := a.profiles[names.TableKey{
				Model: names.NewModelKey("m", i+2), Type: comes.OwnLaneType(),
			}]; known == nil {
				t.Fatalf("what has just gone is forgotten: version %d", i+2)
			}
			time.Sleep(30 * time.Second)
		}
		if want := 2 * (2 + int(keepGone/time.Minute)); most > want+2 {
			t.Errorf("at most %d profiles are known, want up to %d", most, want)
		}
		for range (keepGone + lookGone) / time.Minute {
			time.Sleep(time.Minute)
			a.remakeAhead(time.Now()) // a gateway with queries does so all the time
		}
		var left []string
		for key := range a.profiles {
			left = append(left, string(key.Model)+" on "+string(key.Type))
		}
		if len(left) != 2 || !strings.HasPrefix(left[0], "m/1 on box/cpu/1") ||
			!strings.HasPrefix(left[1], "m/1 on box/cpu/1") {
			t.Errorf("in the end there are the profiles of %v, want those of m/1 on a's lanes",
				left)
		}
	})
}
