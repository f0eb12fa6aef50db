package profiles_test

import (
	"bytes"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

func TestShippedProfilesMatchMeasurements(t *testing.T) {
	library := profiles.ShippedLibrary()
	type pair struct {
		model string
		t     profiles.InstanceType
	}
	seen := map[pair]int{}
	for _, m := range kairosLatency(t) {
		table, err := library.Table(m.model, m.instanceType)
		if err != nil {
			t.Fatal(err)
		}
		seen[pair{m.model, m.instanceType}]++
		if m.batch < 20 {
			continue
		}
		if e := math.Abs(ms(table.Mean(m.batch))/m.mean - 1); e >= 0.05 {
			t.Errorf("%s at batch size %d: mean %v, measured %.3f ms: %.1f %% off, want under 5 %%",
				table.Key(), m.batch, table.Mean(m.batch), m.mean, 100*e)
		}
		if got := table.Error(m.batch); got <= 0 || got >= 0.05 {
			t.Errorf("%s at batch size %d: error recorded as %v", table.Key(), m.batch, got)
		}
	}
	if len(seen) != 20 {
		t.Errorf("%d pairs measured, want 20", len(seen))
	}
	for _, model := range library.Models() {
		for _, it := range library.Types(model) {
			if seen[pair{model, it}] != 100 {
				t.Errorf("%s on %s: %d measured batch sizes, want 100", model, it,
					seen[pair{model, it}])
			}
		}
	}
}

// The quantiles are smooth curves through noisy ones: their median error over the
// batch sizes is bounded, not the worst.
func TestShippedQuantilesMatchMeasurements(t *testing.T) {
	library := profiles.ShippedLibrary()
	errors50, errors99 := map[profiles.Key][]float64{}, map[profiles.Key][]float64{}
	for _, m := range kairosLatency(t) {
		table, err := library.Table(m.model, m.instanceType)
		if err != nil {
			t.Fatal(err)
		}
		k := table.Key()
		errors50[k] = append(errors50[k], math.Abs(ms(table.Quantile(0.50, m.batch))/m.p50-1))
		errors99[k] = append(errors99[k], math.Abs(ms(table.Quantile(0.99, m.batch))/m.p99-1))
	}
	for k, e := range errors50 {
		limit50, limit99 := 0.03, 0.06
		if k.InstanceType == "t3.xlarge" {
			limit50, limit99 = 0.05, 0.20
		}
		if m := median(e); m > limit50 {
			t.Errorf("%s: median error of p50 is %.1f %%, want at most %.0f %%", k, 100*m,
				100*limit50)
		}
		if m := median(errors99[k]); m > limit99 {
			t.Errorf("%s: median error of p99 is %.1f %%, want at most %.0f %%", k, 100*m,
				100*limit99)
		}
	}
}

func TestShippedLibrary(t *testing.T) {
	library := profiles.ShippedLibrary()
	targets := map[string]time.Duration{"ncf": 5, "rm2": 350, "wnd": 25, "mtwnd": 25, "dien": 35}
	if got := library.Models(); len(got) != len(targets) {
		t.Errorf("models are %v", got)
	}
	for _, model := range library.Models() {
		info, err := library.Model(model)
		if err != nil {
			t.Fatal(err)
		}
		if info.QoSTarget != targets[model]*time.Millisecond || info.LargestBatchSize != 1000 {
			t.Errorf("%s: QoS target %v, largest batch size %d", model, info.QoSTarget,
				info.LargestBatchSize)
		}
		if got := library.Types(model); len(got) != 4 {
			t.Errorf("%s: instance types are %v", model, got)
		}
		for _, it := range library.Types(model) {
			table, err := library.Table(model, it)
			if err != nil {
				t.Fatal(err)
			}
			// Up to 8 knots never descend; t3.xlarge, too noisy for that, has more.
			knots := table.Knots()
			if it != "t3.xlarge" && len(knots) > 8 {
				t.Errorf("%s: %d knots", table.Key(), len(knots))
			}
			for i := 1; i < len(knots); i++ {
				if len(knots) <= 8 && knots[i].Mean < knots[i-1].Mean {
					t.Errorf("%s: mean falls from %v at %d to %v at %d", table.Key(),
						knots[i-1].Mean, knots[i-1].BatchSize, knots[i].Mean, knots[i].BatchSize)
				}
			}
			want := "cpu"
			if it == "g4dn.xlarge" {
				want = "cuda"
				if got := table.LargestBatchSize(info.QoSTarget,
					info.LargestBatchSize); got != 1000 {
					t.Errorf("%s meets the QoS target up to batch size %d only", table.Key(), got)
				}
			}
			if table.Key().Provider != want || table.Origin() != profiles.Shipped {
				t.Errorf("%s: origin %s", table.Key(), table.Origin())
			}
		}
	}
	if !strings.Contains(library.Source(), "KAIROS") {
		t.Errorf("source is %q", library.Source())
	}
	if _, err := library.Table("bert", "g4dn.xlarge"); err == nil ||
		!strings.Contains(err.Error(), "dien, mtwnd, ncf, rm2, wnd") {
		t.Errorf("unknown model: %v", err)
	}
	if _, err := library.Table("ncf", "m5.xlarge"); err == nil ||
		!strings.Contains(err.Error(), "c5n.2xlarge, g4dn.xlarge, r5n.large, t3.xlarge") {
		t.Errorf("unknown type: %v", err)
	}
}

func TestLibraryRoundTrip(t *testing.T) {
	var first, second bytes.Buffer
	if err := profiles.ShippedLibrary().Write(&first); err != nil {
		t.Fatal(err)
	}
	again, err := profiles.ReadLibrary("copy", bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(&second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("written, read and written again, the library differs")
	}
}

// TestH200: the file of docs/internals/gpu.md can be read, and has the papers' models.
func TestH200(t *testing.T) {
	f, err := os.Open("h200.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := profiles.ReadLibrary("h200.json", f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Models(), profiles.ShippedLibrary().Models(); !slices.Equal(got, want) {
		t.Errorf("it has the models %v, want %v", got, want)
	}
	for _, model := range l.Models() {
		table, err := l.Table(model, "h200")
		if err != nil {
			t.Fatal(err)
		}
		if knots := table.Knots(); knots[0].BatchSize != 1 || knots[len(knots)-1].BatchSize != 1000 {
			t.Errorf("%s is measured from %d to %d", model, knots[0].BatchSize,
				knots[len(knots)-1].BatchSize)
		}
	}
}

func TestReadLibraryErrors(t *testing.T) {
	const table = `{"model":"m","instance_type":"t","provider":"cpu","origin":"shipped",` +
		`"knots":[{"batch_size":1,"mean_ms":1,"p50_ms":1,"p90_ms":1,"p99_ms":1,"error":0}]}`
	const model = `{"name":"m","qos_target_ms":5,"largest_batch_size":10}`
	file := func(format, models, tables string) string {
		return `{"format":` + format + `,"source":"","command":"","models":[` + models +
			`],"tables":[` + tables + `]}`
	}
	if _, err := profiles.ReadLibrary("f", strings.NewReader(file("1", model, table))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ in, want string }{
		{"", "profiles.json: empty, want JSON"},
		{"{", "it ends too early"},
		{"\nmodel,p50\n", "line 2: not JSON: invalid character 'm'"},
		{"[]", "the value is a list, want an object"},
		{file("1", `"m"`, table), "models is a text, want an object"},
		{file("1.5", model, table), "format is 1.5, want a whole number"},
		{file("1", strings.Replace(model, "5", `"5"`, 1), table),
			"models.qos_target_ms is a text, want a number"},
		{file("1", model, `"t"`), "the value is a text, want an object"},
		{file("1", model, table) + "x", "more data"},
		{file("2", model, table), "format is 2, want 1"},
		{file("1", "", table), `model "m", which is not among`},
		{file("1", model+","+model, table), `model "m" occurs twice`},
		{file("1", model, table+","+table), "profile of m on t occurs twice"},
		{file("1", model, "null"), "profile 0 is null"},
		{file("1", strings.Replace(model, "5", "0", 1), table), "QoS target 0s is not positive"},
		{file("1", strings.Replace(model, "10", "0", 1), table), "largest batch size 0"},
		{file("1", model, strings.Replace(table, `"mean_ms":1`, `"mean_ms":-1`, 1)),
			"mean latency -1ms is not positive"},
		{file("1", model, strings.Replace(table, `"mean_ms":1`, `"mean_ms":1e30`, 1)),
			"is above 320255h"},
		{file("1", model, strings.Replace(table, `"p50_ms":1`, `"p50_ms":2`, 1)),
			"0 < p50 <= p90 <= p99"},
		{file("1", model, strings.Replace(table, `"p50_ms"`, `"p49_ms"`, 1)), "p49_ms"},
		{file("1", model, strings.Replace(table, `"error":0`, `"error":-1`, 1)),
			"relative error -1"},
	} {
		_, err := profiles.ReadLibrary("profiles.json", strings.NewReader(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "profiles.json") || strings.Contains(err.Error(), "Go ") {
			t.Errorf("reading %s: %v, want %q", c.in, err, c.want)
		}
	}
}
