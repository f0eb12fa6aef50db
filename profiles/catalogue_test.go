package profiles_test

import (
	"bytes"
	"encoding/csv"
	"io/fs"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
)

func TestDefaultCatalogueHasThePricesOfThePapers(t *testing.T) {
	catalogue := profiles.DefaultCatalogue()
	data, err := fs.ReadFile(published.Files(published.KAIROS), "price.csv")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 17 {
		t.Fatalf("%d lines of prices, want 17", len(rows))
	}
	for _, row := range rows[1:] {
		instance, err := catalogue.Lookup(profiles.InstanceType(row[0]))
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := strconv.ParseFloat(row[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		if instance.PriceUSDPerHour != want {
			t.Errorf("%s costs %v $/hr, want %v", instance.Type, instance.PriceUSDPerHour, want)
		}
	}
}

// TestDefaultCatalogueHasCurrentTypes: tables of what RIBBON measured need no prices by hand, and
// what a lane's provider and cores are read from is right.
func TestDefaultCatalogueHasCurrentTypes(t *testing.T) {
	catalogue := profiles.DefaultCatalogue()
	for _, want := range []struct {
		name     profiles.InstanceType
		vcpus    int // 0: the data set does not say
		provider string
	}{
		{"c5a.4xlarge", 16, "cpu"}, {"m5.2xlarge", 8, "cpu"}, {"t3.2xlarge", 8, "cpu"}, {
			"c5n.2xlarge", 8, "cpu",
		},
		{"r5n.large", 2, "cpu"}, {"t3.xlarge", 4, "cpu"}, {"g4dn.xlarge", 4, "cuda"}, {
			"p3.2xlarge", 8, "cuda",
		},
		{"g5g.xlarge", 4, "cuda"}, {"g4ad.xlarge", 4, "cpu"}, {"c8i.large", 0, "cpu"}, {
			"g6f.large", 0, "cuda",
		},
	} {
		got, err := catalogue.Lookup(want.name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got.VCPUs != want.vcpus || got.Provider() != want.provider ||
			!(got.PriceUSDPerHour > 0) {
			t.Errorf("got %+v with provider %s, want %+v", got, got.Provider(), want)
		}
	}
	if n := len(catalogue.Types()); n < 1000 {
		t.Errorf("%d types, want those of the c, g, m, r and t families", n)
	}
	for _, name := range catalogue.Types() {
		got, err := catalogue.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if !(got.PriceUSDPerHour > 0) || got.VCPUs < 0 ||
			(got.VCPUs == 0) != (got.MemoryGiB == 0) ||
			(got.Class == profiles.Accelerated) != (got.GPU != "") {
			t.Errorf("got %+v", got)
		}
		// A vCPU costs cents: a price that is out by ten shows.
		if got.VCPUs > 0 && got.GPU == "" && (got.PriceUSDPerHour/float64(got.VCPUs) < 0.002 ||
			got.PriceUSDPerHour/float64(got.VCPUs) > 0.2) {
			t.Errorf("%s costs %v $/hr for %d vCPUs", name, got.PriceUSDPerHour, got.VCPUs)
		}
	}
}

func TestCatalogueExtend(t *testing.T) {
	base := profiles.DefaultCatalogue()
	extended, err := base.Extend("mine.yaml", strings.NewReader(`
instance_types:
  - type: x5.xlarge
    price_usd_per_hour: 1.006
    vcpus: 4
    memory_gib: 16
    class: accelerated
    gpu: NVIDIA A10G
  - {type: r5n.large, price_usd_per_hour: 0.05, vcpus: 2, memory_gib: 16, class: memory-optimized}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(extended.Types()), len(base.Types())+1; got != want {
		t.Errorf("%d types, want %d", got, want)
	}
	x5, err := extended.Lookup("x5.xlarge")
	if err != nil {
		t.Fatal(err)
	}
	if want := (profiles.Instance{
		Type: "x5.xlarge", PriceUSDPerHour: 1.006, VCPUs: 4, MemoryGiB: 16,
		Class: profiles.Accelerated, GPU: "NVIDIA A10G",
	}); x5 != want || x5.Provider() != "cuda" {
		t.Errorf("got %+v, want %+v", x5, want)
	}
	if r5n, _ := extended.Lookup("r5n.large"); r5n.PriceUSDPerHour != 0.05 ||
		r5n.Provider() != "cpu" {
		t.Errorf("override gave %+v", r5n)
	}
	if r5n, _ := base.Lookup("r5n.large"); r5n.PriceUSDPerHour != 0.149 {
		t.Errorf("the catalogue extended was changed: %+v", r5n)
	}
	for of, want := range map[profiles.InstanceType]string{
		"x5.xlarge":  `instance type "x5.xlarge" is not in the catalogue, so it has no price: add it in a file`,
		"c5a.3large": `no price: known types of that family are c5a.12xlarge, c5a.16xlarge`,
	} {
		if _, err := base.Lookup(of); err == nil || !strings.Contains(err.Error(), want) ||
			len(err.Error()) > 300 {
			t.Errorf("unknown type: %v, want %s", err, want)
		}
	}
}

func TestCatalogueExtendErrors(t *testing.T) {
	const good = "{type: x.large, price_usd_per_hour: 1, vcpus: 2, memory_gib: 8, class: " +
		"general-purpose}"
	entry := func(old, new string) string {
		return "instance_types:\n- " + strings.Replace(good, old, new, 1) + "\n"
	}
	if _, err := profiles.DefaultCatalogue().Extend("f",
		strings.NewReader(entry("", ""))); err != nil {
		t.Fatal(err)
	}
	bare, err := profiles.DefaultCatalogue().Extend("f",
		strings.NewReader(entry(" vcpus: 2, memory_gib: 8,", "")))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := bare.Lookup("x.large"); err != nil || got.VCPUs != 0 || got.MemoryGiB != 0 {
		t.Errorf("without vCPUs and memory: %+v, %v", got, err)
	}
	for _, c := range []struct{ in, want string }{
		{"", "mine.yaml: empty"},
		{"instance_types: []\n", "no entry"},
		{"instances: []\n", `mine.yaml:1: found the key "instances", want YAML with the key`},
		{"instance_types:\n- a\n", `mine.yaml:2: found "a", want an instance type: a mapping`},
		{"instance_types: 5\n", `mine.yaml:1: instance_types is "5", want a list`},
		{"type,price_usd_per_hour\nx.large,1\n",
			`mine.yaml:1: found "type,price_usd_per_hour x.large,1", want YAML with the key`},
		{"- type: x.large\n", "mine.yaml:1: found a list, want YAML with the key instance_types"},
		{entry("hour: 1", "hour: 1") + "---\nfoo: 1\n", "mine.yaml: more than one document"},
		{"\t", "mine.yaml"},
		{entry("vcpus", "vcpu"), `mine.yaml:2: unknown key "vcpu"; known are type, price_usd_per_hour`},
		{entry("x.large", `""`), "mine.yaml:2: instance type \"\": no type named"},
		{entry("hour: 1", "hour: 0"),
			`mine.yaml:2: instance type "x.large": price_usd_per_hour is 0`},
		{entry("hour: 1", "hour: -3"), "price_usd_per_hour is -3"},
		{entry("hour: 1", "hour: .nan"), "price_usd_per_hour is NaN"},
		{entry("hour: 1", "hour: .inf"), "price_usd_per_hour is +Inf"},
		{entry("hour: 1", "hour: much"),
			`mine.yaml:2: price_usd_per_hour is "much", want a number above 0`},
		{entry("vcpus: 2", "vcpus: [2]"), "mine.yaml:2: vcpus is a list, want a whole number"},
		{entry("vcpus: 2", "vcpus: 2, vcpus: 3"), "mine.yaml:2: vcpus is given twice"},
		{entry("vcpus: 2", "vcpus: 0"), "vcpus is 0"},
		{entry("memory_gib: 8", "memory_gib: -8"), "memory_gib is -8"},
		{entry("general-purpose", "cheap"), `class is "cheap", want one of general-purpose`},
		{entry("general-purpose", "accelerated"), "gpu is not named"},
		{entry("class", "gpu: T4, class"), "class must be accelerated"},
		{"instance_types:\n- " + good + "\n- " + good + "\n",
			`mine.yaml:3: instance type "x.large": is already given at line 2`},
	} {
		_, err := profiles.DefaultCatalogue().Extend("mine.yaml", strings.NewReader(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "mine.yaml") || strings.Contains(err.Error(), "profiles.") {
			t.Errorf("reading %q: %v, want %q", c.in, err, c.want)
		}
	}
	if _, err := profiles.DefaultCatalogue().ExtendFile("no/such/file.yaml"); err == nil ||
		!strings.Contains(err.Error(), "no/such/file.yaml") {
		t.Errorf("missing file: %v", err)
	}
}

func TestLocal(t *testing.T) {
	for _, c := range []struct {
		model string
		cores int
		want  profiles.InstanceType
	}{
		{"Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", 8,
			"local:intel-r-xeon-r-platinum-8375c-cpu-2.90ghz:8"},
		{"AMD EPYC 7R13", 4, "local:amd-epyc-7r13:4"},
		{"", 1, "local:unknown:1"},
	} {
		if got := profiles.Local(c.model, c.cores); got != c.want {
			t.Errorf("Local(%q, %d) = %q, want %q", c.model, c.cores, got, c.want)
		}
	}
}

func FuzzCatalogueExtend(f *testing.F) {
	f.Add("instance_types:\n- {type: x, price_usd_per_hour: 1, vcpus: 2, memory_gib: 8, class: " +
		"general-purpose}\n")
	f.Add("instance_types:\n- &a {type: x}\n- *a\n- {<<: *a}\n")
	f.Fuzz(func(t *testing.T, in string) {
		c, err := (&profiles.Catalogue{}).Extend("f", strings.NewReader(in))
		if err != nil {
			return
		}
		for _, name := range c.Types() {
			if i, err := c.Lookup(name); err != nil || !(i.PriceUSDPerHour > 0) || i.VCPUs < 0 ||
				i.MemoryGiB < 0 {
				t.Errorf("accepted %+v (%v)", i, err)
			}
		}
	})
}
