package profiles

import (
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// An InstanceType names what an agent runs on, as its provider does: "g4dn.xlarge".
type InstanceType string

// Local returns the instance type of a machine that no provider names: its CPU
// model and number of cores, for latency depends on both. "local:intel-xeon-8375c:8".
func Local(cpuModel string, cores int) InstanceType {
	words := strings.FieldsFunc(strings.ToLower(cpuModel), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '.'
	})
	if len(words) == 0 {
		words = []string{"unknown"}
	}
	return InstanceType(fmt.Sprintf("local:%s:%d", strings.Join(words, "-"), cores))
}

// A Class is the kind of machine an instance type is, by what it has more of.
type Class string

// The classes of instance types.
const (
	GeneralPurpose   Class = "general-purpose"
	ComputeOptimized Class = "compute-optimized"
	MemoryOptimized  Class = "memory-optimized"
	Accelerated      Class = "accelerated" // has a GPU
)

var classes = []Class{GeneralPurpose, ComputeOptimized, MemoryOptimized, Accelerated}

// An Instance is what the catalogue knows of one instance type.
type Instance struct {
	Type            InstanceType
	PriceUSDPerHour float64 // > 0
	VCPUs           int     // 0: not known
	MemoryGiB       float64 // 0: not known
	Class           Class
	GPU             string // its name; empty if it has none
}

// Provider returns the execution provider an instance of this type runs models
// with: "cuda" where it has a GPU, but for AMD's, which have no CUDA; else "cpu".
func (i Instance) Provider() string {
	if i.GPU != "" && !strings.HasPrefix(i.GPU, "AMD") {
		return "cuda"
	}
	return "cpu"
}

// A Catalogue holds what is known of instance types. It is immutable and safe for
// concurrent use.
type Catalogue struct {
	byType map[InstanceType]Instance
}

// catalogueCSV is made by scripts/catalogue. It is no YAML, of which a thousand types take 50 ms of
// every process to read; this takes 1 ms.
//
//go:embed catalogue.csv
var catalogueCSV string

// DefaultCatalogue returns the instance types of EC2's c, g, m, r and t families, with
// on-demand prices of us-east-1, Linux; CATALOGUE-SOURCE says from where and when.
func DefaultCatalogue() *Catalogue { return defaultCatalogue() }

var defaultCatalogue = sync.OnceValue(func() *Catalogue {
	rows, err := csv.NewReader(strings.NewReader(catalogueCSV)).ReadAll()
	if err != nil {
		panic(err) // embedded, and read by every test
	}
	c := &Catalogue{byType: make(map[InstanceType]Instance, len(rows))}
	for _, row := range rows[1:] { // type, price_usd_per_hour, vcpus, memory_gib, class, gpu
		i := Instance{Type: InstanceType(row[0]), Class: Class(row[4]), GPU: row[5]}
		// What is empty is not known, and 0.
		i.PriceUSDPerHour, _ = strconv.ParseFloat(row[1], 64)
		i.VCPUs, _ = strconv.Atoi(row[2])
		i.MemoryGiB, _ = strconv.ParseFloat(row[3], 64)
		c.byType[i.Type] = i
	}
	return c
})

// Lookup returns what is known of an instance type. The error of an unknown one lists
// those of its family, if there are any.
func (c *Catalogue) Lookup(t InstanceType) (Instance, error) {
	i, ok := c.byType[t]
	if !ok {
		family, _, _ := strings.Cut(string(t), ".")
		known := slices.DeleteFunc(c.Types(), func(t InstanceType) bool {
			f, _, _ := strings.Cut(string(t), ".")
			return f != family
		})
		of := ""
		if len(known) > 0 {
			of = " of that family are known: " + joined(known) + ";"
		}
		return Instance{}, fmt.Errorf(
			"instance type %q is not in the catalogue, so it has no price:%s "+
				"say it in a file of your own, --catalogue FILE", t, of)
	}
	return i, nil
}

// Types returns the instance types in alphabetical order.
func (c *Catalogue) Types() []InstanceType { return slices.Sorted(maps.Keys(c.byType)) }

// ExtendFile is Extend with the file at path.
func (c *Catalogue) ExtendFile(path string) (*Catalogue, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read instance types: %w", err)
	}
	defer f.Close()
	return c.Extend(path, f)
}

// Extend returns the catalogue with the instance types read from r, YAML:
//
//	instance_types:
//	  - type: g5.xlarge            # required
//	    price_usd_per_hour: 1.006  # required, > 0
//	    vcpus: 4                   # > 0; none: not known
//	    memory_gib: 16             # > 0; none: not known
//	    class: accelerated         # required: general-purpose, compute-optimized, memory-optimized, accelerated
//	    gpu: NVIDIA A10G           # required for accelerated and only there
//
// A type the catalogue holds already is replaced; one that stands twice in r is an
// error, and so are unknown keys and values out of range. Errors name the file and
// every faulty line.
func (c *Catalogue) Extend(name string, r io.Reader) (*Catalogue, error) {
	var file struct {
		InstanceTypes []instanceYAML `yaml:"instance_types"`
	}
	d := yaml.NewDecoder(r)
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("empty; want a list instance_types")
		}
		return nil, fmt.Errorf("read instance types from %s: %w", name, err)
	}
	if len(file.InstanceTypes) == 0 {
		return nil, fmt.Errorf("read instance types from %s: no entry under instance_types", name)
	}
	extended := &Catalogue{byType: maps.Clone(c.byType)}
	if extended.byType == nil {
		extended.byType = map[InstanceType]Instance{}
	}
	lines := map[InstanceType]int{}
	var faults []error
	for _, y := range file.InstanceTypes {
		fault := func(format string, args ...any) {
			faults = append(faults,
				fmt.Errorf("%s:%d: instance type %q: "+format,
					append([]any{name, y.line, y.Type}, args...)...))
		}
		if y.Type == "" {
			fault("no type named")
		} else if before, twice := lines[y.Type]; twice {
			fault("stands already at line %d", before)
		}
		lines[y.Type] = y.line
		if !positive(y.PriceUSDPerHour) {
			fault("price_usd_per_hour is %v, want a number above 0", y.PriceUSDPerHour)
		}
		if y.VCPUs != nil && *y.VCPUs <= 0 {
			fault("vcpus is %d, want at least 1", *y.VCPUs)
		}
		if y.MemoryGiB != nil && !positive(*y.MemoryGiB) {
			fault("memory_gib is %v, want a number above 0", *y.MemoryGiB)
		}
		switch {
		case !slices.Contains(classes, y.Class):
			fault("class is %q, want one of %s", y.Class, joined(classes))
		case y.Class == Accelerated && y.GPU == "":
			fault("class is accelerated but gpu is not named")
		case y.Class != Accelerated && y.GPU != "":
			fault("gpu is %q, so class must be accelerated, not %s", y.GPU, y.Class)
		}
		extended.byType[y.Type] = y.instance()
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("read instance types: %w", err)
	}
	return extended, nil
}

type instanceFields struct {
	Type            InstanceType `yaml:"type"`
	PriceUSDPerHour float64      `yaml:"price_usd_per_hour"`
	VCPUs           *int         `yaml:"vcpus"`
	MemoryGiB       *float64     `yaml:"memory_gib"`
	Class           Class        `yaml:"class"`
	GPU             string       `yaml:"gpu"`
}

func (y *instanceFields) instance() Instance {
	i := Instance{Type: y.Type, PriceUSDPerHour: y.PriceUSDPerHour, Class: y.Class, GPU: y.GPU}
	if y.VCPUs != nil {
		i.VCPUs = *y.VCPUs
	}
	if y.MemoryGiB != nil {
		i.MemoryGiB = *y.MemoryGiB
	}
	return i
}

// instanceYAML is an entry that knows its line.
type instanceYAML struct {
	instanceFields
	line int
}

func (y *instanceYAML) UnmarshalYAML(node *yaml.Node) error {
	y.line = node.Line
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf(
			"line %d: an instance type is a mapping with the keys type, price_usd_per_hour, "+
				"vcpus, memory_gib, class and gpu", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if !slices.Contains(instanceKeys, key.Value) {
			return fmt.Errorf("line %d: unknown key %q; known are %s", key.Line, key.Value,
				joined(instanceKeys))
		}
	}
	return node.Decode(&y.instanceFields)
}

var instanceKeys = []string{"type", "price_usd_per_hour", "vcpus", "memory_gib", "class", "gpu"}

func positive(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// joined lists names for an error message.
func joined[S ~string](names []S) string {
	if len(names) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(n))
	}
	return b.String()
}
