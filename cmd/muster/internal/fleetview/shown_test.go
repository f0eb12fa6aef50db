package fleetview

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/control"
)

// TestShownNames: people see display names and short types, but for what two agents or two types
// share, and for agents of before, which have none.
func TestShownNames(t *testing.T) {
	member := func(name, display, typ string) *control.Member {
		return &control.Member{Name: name, DisplayName: display, InstanceType: typ, Lanes: 1}
	}
	s := &control.FleetStatus{
		View: &control.View{
			Leadership: &control.Leadership{Leader: "vm-1-0000aaaa", Successor: "vm-2-0000bbbb"},
			Members: []*control.Member{
				member("vm-1-0000aaaa", "front", "local:intel-xeon:2"),
				member("vm-2-0000bbbb", "twin", "local:intel-xeon:2"),
				member("vm-3-0000cccc", "twin", "local:amd-epyc:4"),
				member("vm-4-0000dddd", "", "local:intel-xeon:4"),
			},
		},
		Agents:    []*control.AgentStatus{{Name: "vm-1-0000aaaa", Overdue: true}},
		Decisions: []string{"assign query=1/2 agent=vm-1-0000aaaa reason=matched"},
	}
	var b strings.Builder
	if err := Print(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{b.String(), Draw(s, 120, 0)} {
		for _, want := range []string{
			"leader front", "vm-2-0000bbbb", "vm-3-0000cccc", "vm-4-0000dddd", " local-2c ",
			" local:amd-epyc:4", " local:intel-xeon:4",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("got\n%s\nwant %q in it", text, want)
			}
		}
		if strings.Contains(text, "vm-1-0000aaaa") || strings.Contains(text, "twin") {
			t.Errorf("got\n%s\nwant the first agent as front, and no agent as twin", text)
		}
	}
	if s.View.Members[0].Name != "vm-1-0000aaaa" {
		t.Errorf("the status has changed")
	}
}
