package profiles

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
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
	VCPUs           int     // > 0
	MemoryGiB       float64 // > 0
	Class           Class
	GPU             string // its name; empty if it has none
}

// Provider returns the execution provider an instance of this type runs models
// with: "cuda" where it has a GPU, else "cpu".
func (i Instance) Provider() string {
	if i.GPU != "" {
		return "cuda"
	}
	return "cpu"
}

// A Catalogue holds what is known of instance types. It is immutable and safe for
// concurrent use.
type Catalogue struct {
	byType map[InstanceType]Instance
}

//go:embed catalogue.yaml
var catalogueYAML []byte

// DefaultCatalogue returns the instance types of the papers, on-demand prices of
// us-east-1.
func DefaultCatalogue() *Catalogue {
	c, err := (&Catalogue{}).Extend("catalogue.yaml", bytes.NewReader(catalogueYAML))
	if err != nil {
		panic(err) // embedded, and read by every test
	}
	return c
}

// Lookup returns what is known of an instance type. The error of an unknown one lists
// those there are.
func (c *Catalogue) Lookup(t InstanceType) (Instance, error) {
	i, ok := c.byType[t]
	if !ok {
		return Instance{}, fmt.Errorf("unknown instance type %q; known are %s", t, joined(c.Types()))
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

// Extend returns the catalogue with the instance types read from r, YAML as in the
// catalogue embedded in the program:
//
//	instance_types:
//	  - type: g5.xlarge            # required
//	    price_usd_per_hour: 1.006  # required, > 0
//	    vcpus: 4                   # required, > 0
//	    memory_gib: 16             # required, > 0
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
			faults = append(faults, fmt.Errorf("%s:%d: instance type %q: "+format, append([]any{name, y.line, y.Type}, args...)...))
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
		if y.VCPUs <= 0 {
			fault("vcpus is %d, want at least 1", y.VCPUs)
		}
		if !positive(y.MemoryGiB) {
			fault("memory_gib is %v, want a number above 0", y.MemoryGiB)
		}
		switch {
		case !slices.Contains(classes, y.Class):
			fault("class is %q, want one of %s", y.Class, joined(classes))
		case y.Class == Accelerated && y.GPU == "":
			fault("class is accelerated but gpu is not named")
		case y.Class != Accelerated && y.GPU != "":
			fault("gpu is %q, so class must be accelerated, not %s", y.GPU, y.Class)
		}
		extended.byType[y.Type] = Instance{y.Type, y.PriceUSDPerHour, y.VCPUs, y.MemoryGiB, y.Class, y.GPU}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("read instance types: %w", err)
	}
	return extended, nil
}

type instanceFields struct {
	Type            InstanceType `yaml:"type"`
	PriceUSDPerHour float64      `yaml:"price_usd_per_hour"`
	VCPUs           int          `yaml:"vcpus"`
	MemoryGiB       float64      `yaml:"memory_gib"`
	Class           Class        `yaml:"class"`
	GPU             string       `yaml:"gpu"`
}

// instanceYAML is an entry that knows its line.
type instanceYAML struct {
	instanceFields
	line int
}

func (y *instanceYAML) UnmarshalYAML(node *yaml.Node) error {
	y.line = node.Line
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: an instance type is a mapping with the keys type, price_usd_per_hour, vcpus, memory_gib, class and gpu", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if !slices.Contains(instanceKeys, key.Value) {
			return fmt.Errorf("line %d: unknown key %q; known are %s", key.Line, key.Value, joined(instanceKeys))
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
