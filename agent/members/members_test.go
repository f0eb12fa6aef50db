package members

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
)

// newLone returns Members of an agent with a description, which has learned nothing, and which follow
// nobody.
func newLone(self *control.Member) *Members {
	ms := New(Config{Leading: stillLeading{}})
	ms.Represent(testSelf{describe: func() *control.Member { return self }})
	return ms
}

// A testSelf is an agent that is described so.
type testSelf struct {
	*sampleEstimates
	describe func() *control.Member
}

func (s testSelf) Describe() (*control.Member, map[string]string) {
	return s.describe(), map[string]string{}
}

func (s testSelf) Load() (int, []time.Duration) { return 0, nil }
func (s testSelf) TellMember(*control.Member)   {}

func (s testSelf) Learned() uint64 {
	if s.sampleEstimates == nil {
		return 0
	}
	return s.sampleEstimates.Learned()
}

func (s testSelf) Complete(v *control.View) {
	if s.sampleEstimates != nil {
		s.sampleEstimates.Complete(v)
	}
}

// TestMembersForget: a member forgets profiles of lanes and versions that are gone only after
// a while.
func TestMembersForget(t *testing.T) {
	self := &control.Member{
		Name: "a", InstanceType: "box", Provider: "cpu", Cores: 1, Models: []*control.Model{
			{Name: "m", Version: 1},
		},
	}
	ms := newLone(self)
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
