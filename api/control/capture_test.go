package control

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestStricterCapture: of two rules, of which one may say nothing, less is kept.
func TestStricterCapture(t *testing.T) {
	a := &Capture{Share: .5, LeaveOut: []string{"x"}}
	b := &Capture{Share: .1, LeaveOut: []string{"y"}, Hash: []string{"z"}}
	want := &Capture{Share: .1, LeaveOut: []string{"x", "y"}, Hash: []string{"z"}}
	if got := a.Stricter(b); !proto.Equal(got, want) || !proto.Equal(b.Stricter(a), want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var none *Capture
	if none.Stricter(a) != a || a.Stricter(nil) != a || none.Stricter(nil) != nil {
		t.Error("a rule that says nothing changes another")
	}
}
