package lead

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// TestPricesOf: prices of classes stand beside those of types, and are left out if all prices would
// be too large for a message.
func TestPricesOf(t *testing.T) {
	prices := []fluid.Price{
		{Type: "x", PerMs: 1, Service: time.Millisecond, Classes: []fluid.ClassPrice{
			{Models: []names.ModelKey{"m/1", "n/1"}, PerMs: 2, Service: 3 * time.Millisecond}, {},
		}},
		{Type: "y", PerMs: 4},
	}
	want := []*control.TypePrice{
		{Type: "x", PerMs: 1, ServiceMs: 1, Classes: []*control.ClassPrice{
			{Models: []string{"m/1", "n/1"}, PerMs: 2, ServiceMs: 3}, {},
		}},
		{Type: "y", PerMs: 4},
	}
	same := func(got []*control.TypePrice) bool {
		return len(got) == 2 && proto.Equal(got[0], want[0]) && proto.Equal(got[1], want[1])
	}
	if got := pricesOf(prices); !same(got) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range 2000 {
		prices[1].Classes = append(prices[1].Classes, fluid.ClassPrice{
			Models: []names.ModelKey{names.ModelKey(fmt.Sprintf("%0100d", i))}, PerMs: 1,
		})
	}
	want[0].Classes = nil
	if got := pricesOf(prices); !same(got) {
		t.Errorf("of too many classes: got %d and %d, of types %v", len(got[0].GetClasses()),
			len(got[1].GetClasses()), got[0])
	}
}
