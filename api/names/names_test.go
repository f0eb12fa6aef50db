package names

import "testing"

// TestModelKey: what a key was made of comes back, whatever the model is called.
func TestModelKey(t *testing.T) {
	for _, tt := range []struct {
		key     ModelKey
		name    string
		version int64
	}{
		{NewModelKey("ncf", 1), "ncf", 1},
		{NewModelKey("a/b", 12), "a/b", 12},
		{NewModelKey("7/7", 0), "7/7", 0},
		{NewModelKey("", 3), "", 3},
		{"ncf", "ncf", 0},
		{"ncf/one", "ncf/one", 0},
	} {
		if name, version := tt.key.Split(); name != tt.name || version != tt.version {
			t.Errorf("%q is version %d of %q, want %d of %q", tt.key, version, name, tt.version,
				tt.name)
		}
	}
}

// TestLaneType has the forms that messages and records have.
func TestLaneType(t *testing.T) {
	general := NewLaneType("g4dn.xlarge", "cuda", 4)
	if want := LaneType("g4dn.xlarge/cuda/4"); general != want {
		t.Errorf("got the type %q, want %q", general, want)
	}
	own := general.Own("alice")
	if want := LaneType("g4dn.xlarge/cuda/4@alice"); own != want {
		t.Errorf("got the own type %q, want %q", own, want)
	}
	if general.IsOwn() || !own.IsOwn() {
		t.Errorf("%q is own: %v, %q: %v; want only the second", general, general.IsOwn(), own,
			own.IsOwn())
	}
}
