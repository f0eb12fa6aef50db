package members

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
)

// noEstimates know of nothing.
type noEstimates struct{}

func (noEstimates) Learned() uint64        { return 0 }
func (noEstimates) Complete(*control.View) {}

// TestMembersForget: a member forgets profiles of lanes and versions that are gone only after
// a while.
func TestMembersForget(t *testing.T) {
	self := &control.Member{
		Name: "a", InstanceType: "box", Provider: "cpu", Cores: 1, Models: []*control.Model{
			{Name: "m", Version: 1},
		},
	}
	ms := New(Config{
		Leading: stillLeading{}, Estimates: noEstimates{},
		Describe: func() (*control.Member, map[string]string) { return self, map[string]string{} },
	})
	tell := func(model, typ string) {
		ms.ToldByLeader(&control.LeaderMessage{
			Profiles: []*control.Profile{{Model: model, Type: typ}},
		})
	}
	tell("m/1", "box/cpu/1")
	tell("m/1", "box/cpu/1@a")
	tell("m/1", "box/cpu/1@b")
	tell("m/2", "box/cpu/1")
	tell("n/1", "box/cpu/1")
	now := time.Unix(0, 0)
	ms.Forget(now)
	ms.Forget(now.Add(KeepTold - 1))
	if n := len(ms.View().Profiles); n != 5 {
		t.Errorf("before their time %d profiles are left, want all 5", n)
	}
	ms.Forget(now.Add(KeepTold))
	var left []string
	for _, p := range ms.View().Profiles {
		left = append(left, p.Model+" on "+p.Type)
	}
	if got := strings.Join(left, ", "); got != "m/1 on box/cpu/1, m/1 on box/cpu/1@a" {
		t.Errorf("left are %s", got)
	}
}
