package plan

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
)

// publishedTable opens a table that was published with RIBBON.
func publishedTable(t testing.TB, name string, types ...profiles.InstanceType) *MeasuredTable {
	t.Helper()
	f, err := published.Files(published.RIBBON).Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := ReadTable(name, f, types, profiles.DefaultCatalogue())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func mtwnd(t testing.TB) *MeasuredTable {
	return publishedTable(t, "mtwnd.json", "g4dn.xlarge", "c5.2xlarge", "r5n.large")
}

func dien(t testing.TB) *MeasuredTable {
	return publishedTable(t, "dien.json", "g4dn.xlarge", "r5n.large", "c5.2xlarge")
}

func TestPublishedTables(t *testing.T) {
	for _, tt := range []struct {
		table *MeasuredTable
		space int
		c     Configuration
		share float64
	}{{mtwnd(t), 857, Configuration{4, 0, 1}, 0.9924},
		{dien(t), 846, Configuration{5, 1, 0}, 0.992}} {
		p := tt.table.Problem(0.99)
		space, err := p.Space()
		if err != nil || len(space) != tt.space {
			t.Errorf("%d configurations, want %d: %v", len(space), tt.space, err)
		}
		if e, err := tt.table.Evaluate(t.Context(), tt.c); err != nil || e.Value != tt.share {
			t.Errorf("%s: %v, %v", tt.c, e, err)
		}
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		if _, err := tt.table.Evaluate(t.Context(), Configuration{9, 99, 9}); err == nil ||
			!strings.Contains(err.Error(), "no row for (9,99,9)") {
			t.Errorf("beyond the table: %v", err)
		}
	}
}

const smallTable = `{"1, 0": [0.53, 50], "0, 1": [0.15, 3], "1, 1": [0.68, 99.5]}`

func TestReadTable(t *testing.T) {
	types := []profiles.InstanceType{"g4dn.xlarge", "r5n.large"}
	read := func(s string, types ...profiles.InstanceType) error {
		_, err := ReadTable("T", strings.NewReader(s), types, profiles.DefaultCatalogue())
		return err
	}
	if err := read(smallTable, types...); err != nil {
		t.Fatal(err)
	}
	if err := read(strings.Replace(smallTable, "{", `{"0, 0": [0, 0], "1,0": [0.53, 50],`, 1),
		types...); err != nil {
		t.Errorf("the empty configuration, and a row that stands twice: %v", err)
	}
	for want, s := range map[string]string{
		`row "1, 1": found a price of 1.68`: strings.Replace(smallTable, "0.68", "1.68", 1),
		`row "1, 1": found 199.5 % within QoS`: strings.Replace(smallTable, "99.5", "199.5",
			1),
		`row "1, x": found count "x"`: strings.Replace(smallTable, "1, 1", "1, x", 1),
		`row "1, -1": found count "-1"`: strings.Replace(smallTable, "1, 1", "1, -1",
			1),
		`row "1" has 1 counts for 2 instance types`: strings.Replace(smallTable, "1, 0", "1", 1),
		`row "1,0" contradicts one before it: found 51 % after 50`: strings.Replace(smallTable, "}",
			`, "1,0": [0.53, 51]}`, 1),
		`1 of 3 rows up to (1,1) are missing, such as (1,0)`: strings.Replace(smallTable,
			`"1, 0": [0.53, 50], `, "", 1),
		`row "1, 1" has 1 values`:             strings.Replace(smallTable, "0.68, ", "", 1),
		`row "1, 1": found ["x", 99.5], want`: strings.Replace(smallTable, "0.68", `"x"`, 1),
		"no row has an instance of r5n.large": `{"1, 0": [0.53, 50]}`,
		"the file ends too early":             strings.TrimSuffix(smallTable, "}"),
		"more after the table's end":          smallTable + "{}",
		"found [, want {":                     "[]",
		"byte 0: EOF: want {":                 "",
		"byte 0: invalid character 'c'":       "count,price\n",
	} {
		if err := read(s, types...); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "table T") {
			t.Errorf("%s: got %v, want %q", s, err, want)
		}
	}
	if err := read(smallTable, "r5n.large", "g4dn.xlarge"); err == nil ||
		!strings.Contains(err.Error(), "in the table's order") {
		t.Errorf("types in another order: %v", err)
	}
	if err := read(`{"0, 1": [0.15, 3], "1, 1": [0.68, 99.5]}`, "x9.large",
		"r5n.large"); err == nil ||
		!strings.Contains(err.Error(),
			"no price of x9.large is known: the catalogue has none, and the table no row of "+
				"x9.large alone") {
		t.Errorf("no price anywhere: %v", err)
	}
	if err := read(`{"1000, 1000, 1000": [1015, 1]}`, "g4dn.xlarge", "r5n.large",
		"c5.2xlarge"); err == nil || !strings.Contains(err.Error(), "are more than") {
		t.Errorf("too many rows: %v", err)
	}
	if err := read(smallTable); err == nil ||
		!strings.Contains(err.Error(), "name the instance types") {
		t.Errorf("no types: %v", err)
	}
}

// TestReadTablePrices: the price of a type that the catalogue lacks is the table's, as exactly as
// its cents allow, and what contradicts it is found.
func TestReadTablePrices(t *testing.T) {
	const rows = `{"1, 0": [0.53, 50], "0, 1": [0.13, 3], "1, 1": [0.65, 99.5], "0, 2": [0.26, 5], "1, 2": [0.78, 99.9],
		"0, 3": [0.38, 6], "1, 3": [0.90, 99.9], "0, 4": [0.51, 7], "1, 4": [1.03, 99.9]}`
	read := func(s string) (*MeasuredTable, error) {
		return ReadTable("T", strings.NewReader(s),
			[]profiles.InstanceType{"g4dn.xlarge", "x9.large"}, profiles.DefaultCatalogue())
	}
	table, err := read(rows)
	if err != nil {
		t.Fatal(err)
	}
	p := table.Problem(0.99)
	if p.Types[0].Price != 0.526 || math.Abs(p.Types[1].Price-0.1275) > 1e-9 ||
		p.Validate() != nil {
		t.Errorf("prices %+v, want the catalogue's 0.526 and a fourth of the table's 0.51", p.Types)
	}
	if got := table.Priced(); len(got) != 1 || got[0] != "x9.large" {
		t.Errorf("priced by the table: %v, want x9.large", got)
	}
	if _, err := read(strings.Replace(rows, "0.78", "0.98", 1)); err == nil ||
		!strings.Contains(err.Error(), `row "1, 2": found a price of 0.98`) {
		t.Errorf("a row of another price: %v", err)
	}
}

// FuzzReadTable checks that what is read can be planned on, whatever it was.
func FuzzReadTable(f *testing.F) {
	f.Add([]byte(smallTable))
	f.Add([]byte(`{"1, 0": [0.53, 50`))
	f.Add([]byte(`{"2,2": [1.35, 1e2], "": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := ReadTable("fuzz", bytes.NewReader(data),
			[]profiles.InstanceType{"g4dn.xlarge", "x9.large"}, profiles.DefaultCatalogue())
		if err != nil {
			return
		}
		p := table.Problem(0.5)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		space, err := p.Space()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range space {
			if e, err := table.Evaluate(t.Context(), c); err != nil ||
				!(e.Value >= 0 && e.Value <= 1) {
				t.Fatalf("%s: %v, %v", c, e, err)
			}
		}
	})
}
