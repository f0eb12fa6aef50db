package control

import (
	"fmt"
	"testing"
)

func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		a, b       Versions
		understand bool
	}{
		{VersionsOf(2, 0), VersionsOf(2, 0), true},
		{VersionsOf(2, 3), VersionsOf(2, 0), true},
		{VersionsOf(2, 3), VersionsOf(3, 4), true},
		{VersionsOf(2, 2), VersionsOf(3, 4), false},
		{VersionsOf(2, 3), VersionsOf(4, 5), false},
		{VersionsOf(2, 3), VersionsOf(0, 0), false},
	} {
		if err := tt.a.Understands(tt.b); (err == nil) != tt.understand {
			t.Errorf("%v and %v: got %v", tt.a, tt.b, err)
		}
		if err := tt.b.Understands(tt.a); (err == nil) != tt.understand {
			t.Errorf("%v and %v: got %v", tt.b, tt.a, err)
		}
	}
	if got := fmt.Sprint(VersionsOf(2, 0), " ",
		VersionsOf(2, 3)); got != "version 2 versions 2 to 3" {
		t.Errorf("got %q", got)
	}
	all := []*Member{
		{Lanes: 1, Protocol: 2, NewestProtocol: 4}, {Protocol: 1}, {Lanes: 1, Protocol: 3},
	}
	if got := Agreed(all); got != 3 {
		t.Errorf("got %d, want 3, for who has not said what it is does not count", got)
	}
	if got := Agreed(nil); got != 0 {
		t.Errorf("of nobody: got %d, want 0", got)
	}
}
