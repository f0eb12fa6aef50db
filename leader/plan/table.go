package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/profiles"
)

// A Table is an [Evaluator] that looks up what was measured of every configuration: the share of queries within QoS at one load.
type Table struct {
	name   string
	types  []Type // with the most instances of each that the table has
	shares map[string]float64
}

const (
	// largestCount bounds the number of instances of a type in a table: beyond it is a typing error.
	largestCount = 1000
	// A price in a table may be off by this much in $/hr: they are rounded to cents.
	centsRounded = 0.0101
)

// ReadTable reads a table as published with RIBBON: JSON, for every configuration, the counts of the types in their order,
// the price in $/hr and the percentage of queries within QoS:
//
//	{"4, 0, 1": [2.25, 99.24], ...}
//
// Prices are rounded there, so those of the catalogue are taken. Every configuration up to the largest count of each type
// must be there, but for that of no instance. Errors call the file name, and name the row, what was found and what to do.
func ReadTable(name string, r io.Reader, types []profiles.InstanceType, catalogue *profiles.Catalogue) (*Table, error) {
	t := &Table{name: name, shares: map[string]float64{}}
	for _, instanceType := range types {
		i, err := catalogue.Lookup(instanceType)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		t.types = append(t.types, Type{Name: instanceType, Price: i.PriceUSDPerHour})
	}
	if len(types) == 0 {
		return nil, fmt.Errorf("table %s: name the instance types, in the order of the table's counts", name)
	}
	if err := t.read(json.NewDecoder(r)); err != nil {
		return nil, fmt.Errorf("table %s: %w", name, err)
	}
	return t, t.complete()
}

// read takes in the rows one by one: an unmarshalled map would hide rows that stand twice.
func (t *Table) read(d *json.Decoder) error {
	const form = `want {"4, 0, 1": [2.25, 99.24], ...}: counts, price in $/hr, percent within QoS`
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return fmt.Errorf("found %v at byte %d (%w): %s", token, d.InputOffset(), orNone(err), form)
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return fmt.Errorf("byte %d: %w: %s", d.InputOffset(), err, form)
		}
		row, _ := token.(string)
		var values []float64
		if err := d.Decode(&values); err != nil {
			return fmt.Errorf("row %q: %w: %s", row, err, form)
		}
		if err := t.add(row, values); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("byte %d: %w: the file ends too early", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("byte %d: more after the table's end: remove it", d.InputOffset())
	}
	return nil
}

var errNone = errors.New("no opening brace")

func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

func (t *Table) add(row string, values []float64) error {
	counts := strings.Split(row, ",")
	if len(counts) != len(t.types) {
		return fmt.Errorf("row %q has %d counts for %d instance types: name as many types as the table has", row, len(counts), len(t.types))
	}
	c := make(Configuration, len(counts))
	price := 0.0
	for i, s := range counts {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > largestCount {
			return fmt.Errorf("row %q: found count %q, want an integer in 0..%d", row, strings.TrimSpace(s), largestCount)
		}
		c[i] = n
		price += float64(n) * t.types[i].Price
	}
	if len(values) != 2 {
		return fmt.Errorf("row %q has %d values, want two: price in $/hr and percent within QoS", row, len(values))
	}
	if percent := values[1]; !(percent >= 0 && percent <= 100) {
		return fmt.Errorf("row %q: found %v %% within QoS, want 0..100", row, percent)
	}
	if math.Abs(values[0]-price) > centsRounded {
		return fmt.Errorf("row %q: found a price of %v $/hr, by the catalogue it is %.4g: name the types in the table's order, or correct the catalogue's prices",
			row, values[0], price)
	}
	key, share := c.String(), values[1]/100
	if before, twice := t.shares[key]; twice && before != share {
		return fmt.Errorf("row %q contradicts one before it: found %v %% after %v %%: remove one", row, values[1], 100*before)
	}
	t.shares[key] = share
	if c.Count() > 0 {
		for i, n := range c {
			t.types[i].Max = max(t.types[i].Max, n)
		}
	}
	return nil
}

// complete names rows that are missing.
func (t *Table) complete() error {
	size := 1
	for _, one := range t.types {
		if one.Max == 0 {
			return fmt.Errorf("table %s: no row has an instance of %s: leave that type out, with its count", t.name, one.Name)
		}
		if size *= one.Max + 1; size > MaxConfigurations {
			return fmt.Errorf("table %s: rows up to %s are more than %d: limit the counts", t.name, t.largest(), MaxConfigurations)
		}
	}
	space, err := t.Problem(0).Space()
	if err != nil {
		return fmt.Errorf("table %s: %w", t.name, err)
	}
	var missing []string
	for _, c := range space {
		if _, ok := t.shares[c.String()]; !ok {
			missing = append(missing, c.String())
		}
	}
	if n := len(missing); n > 0 {
		return fmt.Errorf("table %s: %d of %d rows up to %s are missing, such as %s: add them, or leave out all rows with as many of a type",
			t.name, n, len(space), t.largest(), strings.Join(missing[:min(n, 5)], " "))
	}
	return nil
}

func (t *Table) largest() Configuration {
	c := make(Configuration, len(t.types))
	for i, one := range t.types {
		c[i] = one.Max
	}
	return c
}

// Problem is that of the least cost of the table's load, the counts limited to those that the table has. Target is the
// share of queries within QoS that is asked for, in (0, 1); 0 means DefaultTarget.
func (t *Table) Problem(target float64) *Problem {
	return &Problem{Types: slices.Clone(t.types), Objective: LeastCost, Target: target}
}

// Evaluate looks up the share of queries within QoS.
func (t *Table) Evaluate(_ context.Context, c Configuration) (Estimate, error) {
	share, ok := t.shares[c.String()]
	if !ok {
		return Estimate{}, fmt.Errorf("table %s has no row for %s, only up to %s: limit the counts to those", t.name, c, t.largest())
	}
	return Estimate{Value: share}, nil
}
