package match

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/internal/lines"
)

// A Price is the worth of an instance type's time. The aliases are for importers of this package
// that may not import package fluid.
type (
	Price      = fluid.Price
	ClassPrice = fluid.ClassPrice
)

// A lanePrice is the fluid program's price of a lane's time: of 1 ms, and how long, in ms, the
// queries take that the program sends there; NaN and 0 if it is unknown.
type lanePrice struct{ price, service float64 }

var unpriced = lanePrice{price: math.NaN()}

// laneClasses are the classes of a type: lanes that hold different models have different prices.
type laneClasses struct {
	models []names.ModelKey // that tell them apart, in order
	// prices are by what a lane holds: a byte for each of models, 1 if it holds it.
	prices map[string]lanePrice
}

// validatePrice says what is wrong with a price, or nil.
func validatePrice(p *fluid.Price) error {
	bad := func(perMs float64, ns int64) bool {
		return !(perMs >= 0 && perMs <= math.MaxFloat64) || ns < 0
	}
	if bad(p.PerMs, int64(p.Service)) {
		return fmt.Errorf("price of %s is %v a ms, service %v; want both >= 0", p.Type, p.PerMs,
			p.Service)
	}
	for _, c := range p.Classes {
		if bad(c.PerMs, int64(c.Service)) {
			return fmt.Errorf("price of %s with the models %q is %v a ms, service %v; want both "+
				">= 0", p.Type, c.Models, c.PerMs, c.Service)
		}
	}
	return nil
}

// SetPriceField sets a field of a price that is read from its serial form, in which the fields of a
// class follow the number of its models, after those of its type: "per_ms" and "service", or of a
// class "class", "holds" for each model, "per_ms" and "service".
func SetPriceField(p *fluid.Price, key, value string) (err error) {
	perMs, service := &p.PerMs, &p.Service
	var class *fluid.ClassPrice
	if n := len(p.Classes); n > 0 {
		class = &p.Classes[n-1]
		perMs, service = &class.PerMs, &class.Service
	}
	switch key {
	case "class":
		p.Classes = append(p.Classes, fluid.ClassPrice{})
		_, err = strconv.ParseUint(value, 10, 31)
	case "holds":
		if class == nil {
			return errors.New("got a model before any class")
		}
		class.Models = append(class.Models, names.ModelKey(value))
	case "service":
		*service, err = time.ParseDuration(value)
	default:
		if *perMs, err = strconv.ParseFloat(value, 64); err == nil &&
			!(*perMs >= 0 && *perMs <= math.MaxFloat64) {
			err = fmt.Errorf("got %s, want a price >= 0", value)
		}
	}
	return err
}

// AppendPriceFields appends the serial form of p without its type.
func AppendPriceFields(b []byte, p *fluid.Price) []byte {
	b = appendPriceFields(b, p.PerMs, p.Service)
	for _, c := range p.Classes {
		b = lines.Number(b, "class", len(c.Models))
		for _, model := range c.Models {
			b = lines.Item(b, "holds", model)
		}
		b = appendPriceFields(b, c.PerMs, c.Service)
	}
	return b
}

func appendPriceFields(b []byte, perMs float64, service time.Duration) []byte {
	b = append(b, " per_ms="...)
	b = strconv.AppendFloat(b, perMs, 'g', -1, 64)
	return lines.Duration(b, "service", service)
}

// setPrice sets the price of t and of its classes.
func (t *instanceType) setPrice(p *fluid.Price) {
	t.lanePrice, t.classes = lanePrice{p.PerMs, toMs(p.Service)}, laneClasses{}
	if len(p.Classes) == 0 {
		return
	}
	for _, c := range p.Classes {
		t.classes.models = append(t.classes.models, c.Models...)
	}
	slices.Sort(t.classes.models)
	t.classes.models = slices.Compact(t.classes.models)
	t.classes.prices = make(map[string]lanePrice, len(p.Classes))
	for _, c := range p.Classes {
		held := make([]byte, len(t.classes.models))
		for _, model := range c.Models {
			i, _ := slices.BinarySearch(t.classes.models, model)
			held[i] = 1
		}
		t.classes.prices[string(held)] = lanePrice{c.PerMs, toMs(c.Service)}
	}
}

// unsetPrice makes t's price unknown.
func (t *instanceType) unsetPrice() { t.lanePrice, t.classes = unpriced, laneClasses{} }

// classModels are the indices of the models that tell t's classes apart; -1 of those that are
// unknown.
func (c *catalogue) classModels(t *instanceType) []int {
	indices := make([]int, len(t.classes.models))
	for i, name := range t.classes.models {
		if k, ok := c.byName[name]; ok {
			indices[i] = k
		} else {
			indices[i] = -1
		}
	}
	return indices
}

// setPrice sets the price of a lane to that of its class, else to that of its type. classModels is
// that of the type.
func (l *laneSpec) setPrice(classModels []int) {
	if l.lanePrice = l.typ.lanePrice; l.typ.classes.prices == nil {
		return
	}
	var room [64]byte
	held := room[:0]
	for _, i := range classModels {
		if i >= 0 && l.holds[i] {
			held = append(held, 1)
		} else {
			held = append(held, 0)
		}
	}
	if p, ok := l.typ.classes.prices[string(held)]; ok {
		l.lanePrice = p
	}
}

// setPrices sets the prices of lanes after those of their types have changed.
func (c *catalogue) setPrices(all func(yield func(*laneSpec) bool)) {
	models := map[*instanceType][]int{}
	for l := range all {
		of, ok := models[l.typ]
		if !ok {
			of = c.classModels(l.typ)
			models[l.typ] = of
		}
		l.setPrice(of)
	}
}

// timePrice is the price of 1 ms of l: the fluid program's, or until there is one a guess in
// proportion to C_j.
func (l *laneSpec) timePrice(model int) float64 {
	if !math.IsNaN(l.price) {
		return l.price
	}
	largest := l.typ.tables[model]
	if largest == nil {
		return 0
	}
	return 1 / largest.mean[largest.Largest()]
}
