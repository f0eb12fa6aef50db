package variants

import (
	"reflect"
	"strings"
	"testing"

	"github.com/muster-serve/muster/sim"
)

func TestParse(t *testing.T) {
	got, err := Parse("ctr=wnd:1,wnd-int8:.985:wnd*.4@2")
	want := FamilySpec{"ctr", 2, []VariantSpec{{"wnd", 1, "wnd", 1}, {"wnd-int8", .985, "wnd", .4}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for text, want := range map[string]string{
		"ctr": "want NAME=", "=a:1": "want NAME=", "ctr=": "got the variant \"\"",
		"ctr=a":   "variant",
		"ctr=a:2": "a has accuracy \"2\"", "ctr=a:0": "accuracy", "ctr=a:1:b*0": "MODEL*FACTOR",
		"ctr=a:1:b*x": "MODEL*FACTOR", "ctr=a:1,a:.5": "twice", "ctr=a:1@x": "share",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestParseHolding(t *testing.T) {
	got, err := ParseHolding("a=2:x,y")
	want := sim.HeldModels{Type: "a", Count: 2, Models: []string{"x", "y"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, text := range []string{"a=2", "a:x", "a=2:", "a=1,b=2:x"} {
		if _, err := ParseHolding(text); err == nil || !strings.Contains(err.Error(), "hold: got") {
			t.Errorf("%s: got %v", text, err)
		}
	}
}
