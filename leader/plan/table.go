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

// A MeasuredTable is an [Evaluator] that looks up measurements of every configuration: the share of
// queries within QoS at one load.
type MeasuredTable struct {
	name   string
	types  []Type // Max is the table's largest count of the type
	shares map[string]float64
	// priced is, by type, the largest error, in $/hr, of a price that was taken from the table; 0
	// if the price is the catalogue's.
	priced []float64
}

// A tableRow is a row of the file.
type tableRow struct {
	name  string
	c     Configuration
	price float64 // $/hr
}

const (
	// largestCount bounds the number of instances of a type in a table; a larger number is a typing
	// error.
	largestCount = 1000
	// centsRounded is the largest error of a price in a table, in $/hr, because prices there are
	// rounded to cents.
	centsRounded = 0.0101
)

// ReadTable reads a table as published with RIBBON: JSON, for every configuration, the counts of
// the types in their order, the price in $/hr and the percentage of queries within QoS:
//
//	{"4, 0, 1": [2.25, 99.24], ...}
//
// Prices in the file are rounded, so ReadTable takes the catalogue's. For a type that the catalogue
// lacks it takes the price from the row with the most instances of that type alone. The file must
// have a row for every configuration up to the largest count of each type, except the empty one.
// Errors call the file name, and say which row is wrong, what was found and what to do.
func ReadTable(name string, r io.Reader, types []profiles.InstanceType,
	catalogue *profiles.Catalogue) (*MeasuredTable, error) {
	t := &MeasuredTable{name: name, shares: map[string]float64{}}
	for _, instanceType := range types {
		i, _ := catalogue.Lookup(instanceType)
		t.types = append(t.types, Type{Name: instanceType, Price: i.PriceUSDPerHour})
	}
	t.priced = make([]float64, len(types))
	if len(types) == 0 {
		return nil, fmt.Errorf(
			"table %s: name the instance types, in the order of the table's counts", name)
	}
	rows, err := t.read(json.NewDecoder(r))
	if err == nil {
		err = t.fillPrices(rows)
	}
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", name, err)
	}
	return t, t.checkComplete()
}

// Priced returns the types whose prices come from the table, because the catalogue has none.
func (t *MeasuredTable) Priced() (types []profiles.InstanceType) {
	for i, off := range t.priced {
		if off > 0 {
			types = append(types, t.types[i].Name)
		}
	}
	return types
}

// fillPrices takes from the table the prices that the catalogue lacks, and checks the prices of all
// rows.
func (t *MeasuredTable) fillPrices(rows []tableRow) error {
	for i := range t.types {
		if t.types[i].Price > 0 {
			continue
		}
		most := 0
		for _, row := range rows {
			if n := row.c[i]; n > most && n == row.c.Count() {
				most, t.types[i].Price = n, row.price/float64(n)
			}
		}
		if !(t.types[i].Price > 0) {
			return fmt.Errorf(
				"no price of %s is known: the catalogue has none, and the table no row of %s "+
					"alone with a price above 0: "+
					"say it in a file of your own, --catalogue FILE", t.types[i].Name,
				t.types[i].Name)
		}
		t.priced[i] = centsRounded / float64(most)
	}
	for _, row := range rows {
		price, off := 0.0, centsRounded
		for i, n := range row.c {
			price += float64(n) * t.types[i].Price
			off += float64(n) * t.priced[i]
		}
		if math.Abs(row.price-price) > off {
			return fmt.Errorf(
				"row %q: found a price of %v $/hr, by the catalogue it is %.4g: name the types "+
					"in the table's order, or correct the catalogue's prices",
				row.name, row.price, price)
		}
	}
	return nil
}

// read reads the rows one by one: decoding into a map would hide duplicate rows.
func (t *MeasuredTable) read(d *json.Decoder) (rows []tableRow, err error) {
	const form = `want {"4, 0, 1": [2.25, 99.24], ...}: counts, price in $/hr, percent within QoS`
	if token, err := d.Token(); err != nil {
		return nil, fmt.Errorf("byte %d: %w: %s", d.InputOffset(), err, form)
	} else if token != json.Delim('{') {
		return nil, fmt.Errorf("found %v, %s", token, form)
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w: %s", d.InputOffset(), err, form)
		}
		row, _ := token.(string)
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return nil, fmt.Errorf("row %q: %w: %s", row, err, form)
		}
		var values []float64
		if json.Unmarshal(text, &values) != nil { // its error is about Go's types
			return nil, fmt.Errorf("row %q: found %.80s, %s", row, text, form)
		}
		c, err := t.add(row, values)
		if err != nil {
			return nil, err
		}
		rows = append(rows, tableRow{row, c, values[0]})
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("byte %d: %w: the file ends too early", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("byte %d: more after the table's end: remove it", d.InputOffset())
	}
	return rows, nil
}

// add adds a row, without its price.
func (t *MeasuredTable) add(row string, values []float64) (Configuration, error) {
	counts := strings.Split(row, ",")
	if len(counts) != len(t.types) {
		return nil, fmt.Errorf(
			"row %q has %d counts for %d instance types: name as many types as the table has", row,
			len(counts), len(t.types))
	}
	c := make(Configuration, len(counts))
	for i, s := range counts {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > largestCount {
			return nil, fmt.Errorf("row %q: found count %q, want an integer in 0..%d", row,
				strings.TrimSpace(s), largestCount)
		}
		c[i] = n
	}
	if len(values) != 2 {
		return nil, fmt.Errorf(
			"row %q has %d values, want two: price in $/hr and percent within QoS", row,
			len(values))
	}
	if percent := values[1]; !(percent >= 0 && percent <= 100) {
		return nil, fmt.Errorf("row %q: found %v %% within QoS, want 0..100", row, percent)
	}
	key, share := c.String(), values[1]/100
	if before, twice := t.shares[key]; twice && before != share {
		return nil, fmt.Errorf(
			"row %q contradicts one before it: found %v %% after %v %%: remove one", row, values[1],
			100*before)
	}
	t.shares[key] = share
	if c.Count() > 0 {
		for i, n := range c {
			t.types[i].Max = max(t.types[i].Max, n)
		}
	}
	return c, nil
}

// checkComplete checks that no row is missing; its error names some that are.
func (t *MeasuredTable) checkComplete() error {
	size := 1
	for _, one := range t.types {
		if one.Max == 0 {
			return fmt.Errorf(
				"table %s: no row has an instance of %s: leave that type out, with its count",
				t.name, one.Name)
		}
		if size *= one.Max + 1; size > MaxConfigurations {
			return fmt.Errorf("table %s: rows up to %s are more than %d: limit the counts", t.name,
				t.largestConfiguration(), MaxConfigurations)
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
		return fmt.Errorf(
			"table %s: %d of %d rows up to %s are missing, such as %s: add them, or leave out "+
				"all rows with as many of a type",
			t.name, n, len(space), t.largestConfiguration(), strings.Join(missing[:min(n, 5)], " "))
	}
	return nil
}

func (t *MeasuredTable) largestConfiguration() Configuration {
	c := make(Configuration, len(t.types))
	for i, one := range t.types {
		c[i] = one.Max
	}
	return c
}

// Problem returns the problem of the least cost for the table's load, with the counts limited to
// those in the table. target is [Problem.Target].
func (t *MeasuredTable) Problem(target float64) *Problem {
	return &Problem{Types: slices.Clone(t.types), Objective: LeastCost, Target: target}
}

// Evaluate implements [Evaluator]: it looks up the share of queries within QoS.
func (t *MeasuredTable) Evaluate(_ context.Context, c Configuration) (Estimate, error) {
	share, ok := t.shares[c.String()]
	if !ok {
		return Estimate{}, fmt.Errorf(
			"table %s has no row for %s, only up to %s: limit the counts to those", t.name, c,
			t.largestConfiguration())
	}
	return Estimate{Value: share}, nil
}
