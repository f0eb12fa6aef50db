package cloudtest

import (
	"testing"
	"testing/synctest"

	"github.com/muster-serve/muster/leader/rent"
)

func TestContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := rent.Kind{Type: "r5n.large"}
		p := &Provider{Prices: map[rent.Kind]float64{kind: 0.149}}
		defer p.Close()
		Contract(t, kind, p, p)
		if n := p.Duplicates(); n > 0 {
			t.Errorf("%d duplicates", n)
		}
	})
}
