package control

import "testing"

// TestShownNames: people know agents and types by names that no two share; of leaders of before,
// which send no display names, by the agents' names.
func TestShownNames(t *testing.T) {
	view := &View{}
	for _, m := range [][3]string{
		{"vm-1-0000aaaa", "front", "local:intel-xeon:2"},
		{"vm-2-0000bbbb", "twin", "local:intel-xeon:2"},
		{"vm-3-0000cccc", "twin", "local:amd-epyc:4"},
		{"vm-4-0000dddd", "", "local:intel-xeon:4"},
		{"vm-5-0000eeee", "vm-1-0000aaaa", "c5n.large"},
	} {
		view.Members = append(view.Members, &Member{Name: m[0], DisplayName: m[1], InstanceType: m[2]})
	}
	for _, names := range []ShownNames{view.ShownNames(), NewFleet(view, nil, nil).ShownNames()} {
		for name, want := range map[string]string{
			"vm-1-0000aaaa": "front", "vm-2-0000bbbb": "vm-2-0000bbbb",
			"vm-3-0000cccc": "vm-3-0000cccc", "vm-4-0000dddd": "vm-4-0000dddd",
			"vm-5-0000eeee": "vm-5-0000eeee", "gone": "gone",
		} {
			if got := names.Agent(name); got != want {
				t.Errorf("agent %s is shown as %q, want %q", name, got, want)
			}
		}
		for name, want := range map[string]string{
			"local:intel-xeon:2": "local-2c", "local:amd-epyc:4": "local:amd-epyc:4",
			"local:intel-xeon:4": "local:intel-xeon:4", "c5n.large": "c5n.large",
		} {
			if got := names.Type(name); got != want {
				t.Errorf("type %s is shown as %q, want %q", name, got, want)
			}
		}
	}
	if got := (ShownNames{}).Agent("a"); got != "a" {
		t.Errorf("without a fleet: %q, want a", got)
	}
}
