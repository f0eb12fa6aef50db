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

// TestLanesBesideOthers: a type names the neighbours, in one form, whatever they are called.
func TestLanesBesideOthers(t *testing.T) {
	alone := NewLaneType("c5n.2xlarge", "cpu", 2)
	for _, tt := range []struct {
		models []string
		want   LaneType
	}{
		{nil, "c5n.2xlarge/cpu/2"},
		{[]string{"rm2"}, "c5n.2xlarge/cpu/2+rm2"},
		{[]string{"wnd", "rm2", "wnd"}, "c5n.2xlarge/cpu/2+rm2+wnd"},
		{[]string{"a+b@c%"}, "c5n.2xlarge/cpu/2+a%2Bb%40c%25"},
	} {
		got := alone.Beside(tt.models...)
		if got != tt.want {
			t.Errorf("beside %q: %q, want %q", tt.models, got, tt.want)
		}
		if got.IsShared() != (len(tt.models) > 0) || got.IsOwn() || !got.Own("x").IsOwn() {
			t.Errorf("%q: shared %v, own %v", got, got.IsShared(), got.IsOwn())
		}
	}
}
