package fleetview

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

// TestFamilies: status and top show what families answer, and with which accuracy.
func TestFamilies(t *testing.T) {
	s := testFleet(1)
	s.Models = append(s.Models, &control.ModelStatus{Model: "ctr", Refused: 2,
		Refusals: []*control.ModelStatus_Refusals{{Reason: "deadline", Count: 2}}})
	variants := func(first, second float64) []*control.FamilyStatus_VariantShare {
		return []*control.FamilyStatus_VariantShare{
			{Model: "wnd", Version: 1, Accuracy: 1, Share: first},
			{Model: "wnd-int8", Version: 3, Accuracy: .9994, Share: second},
		}
	}
	s.Families = []*control.FamilyStatus{
		{Family: "ctr", Rate: 117.2, WithinQos: proto.Float64(.995),
			Accuracy: proto.Float64(.99976), Best: 1, Variants: variants(.61, .39)},
		{Family: "idle", Best: 1, Variants: variants(0, 0)},
	}
	var printed strings.Builder
	if err := Print(&printed, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nFAMILY  QUERIES/S  WITHIN QOS  ACCURACY  BEST    ANSWERED BY\n" +
			"ctr     117.2      99.5 %      0.9998    1.0000  wnd/1 61 %, wnd-int8/3 39 %\n" +
			"idle    0.0        -           -         1.0000  wnd/1, wnd-int8/3\n",
		"\nctr      -        0.0", "\nfailed queries of ctr: deadline 2\n",
	} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("status: got\n%s\nwant in it\n%s", &printed, want)
		}
	}
	for width, want := range map[int]string{
		100: "\nctr         117.2    0.5 %   0.9998   1.0000  wnd/1 61 %, wnd-int8/3 39 %\n",
		50:  "\nctr       0.5 %   0.9998\n",
	} {
		if top := ansi.Strip(Draw(s, width, 0)); !strings.Contains(top, want) {
			t.Errorf("top of %d columns: got\n%s\nwant in it\n%s", width, top, want)
		}
	}
}
