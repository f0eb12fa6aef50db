package models

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// largestConfig is the most bytes that a model.yaml or config.pbtxt may have.
const largestConfig = 1 << 20

// ReadConfig reads a model.yaml. A file that does not exist gives DefaultConfig.
// All faults are reported at once, each with the file, the line, the key, what
// was found and what was expected.
func ReadConfig(path string) (Config, error) { return readConfig(path, unsetConfig()) }

// unsetConfig returns the defaults without those that depend on other settings.
func unsetConfig() Config {
	c := DefaultConfig()
	c.Deadline, c.WarmUp = 0, nil
	return c
}

// configOf reads the settings of a model in the repository dir: those of its model.yaml, and where
// that says nothing those of its config.pbtxt.
func configOf(dir, model string) (Config, error) {
	c := unsetConfig()
	for _, name := range []string{TritonFile, ConfigFile} {
		path, outside, err := resolvePath(dir, model, name)
		if err != nil {
			return Config{}, err
		}
		if name == TritonFile {
			err = readTriton(path, model, &c)
		} else {
			c, err = readConfig(path, c)
		}
		if err != nil {
			return Config{}, err
		}
		c.noteOutside(path, outside)
	}
	return c, nil
}

// readConfig reads a model.yaml, over settings that setDefaults has not completed.
func readConfig(path string, c Config) (Config, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		c.setDefaults()
		return c, nil
	}
	if err != nil {
		return Config{}, err
	}
	return parseOver(path, data, c)
}

// readFile reads a file with settings. The error wraps fs.ErrNotExist if there is none.
func readFile(path string) ([]byte, error) {
	f, info, err := files.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read model configuration: %w", err)
	}
	defer f.Close()
	if info.Size() > largestConfig {
		return nil, fmt.Errorf("read model configuration: %s has %d bytes, expected at most %d",
			path, info.Size(), largestConfig)
	}
	data, err := io.ReadAll(io.LimitReader(f, largestConfig))
	if err != nil {
		return nil, fmt.Errorf("read model configuration: %w", err)
	}
	return data, nil
}

func parseConfig(path string, data []byte) (Config, error) {
	return parseOver(path, data, unsetConfig())
}

// parseOver parses a model.yaml, over settings that setDefaults has not completed.
func parseOver(path string, data []byte, c Config) (Config, error) {
	doc, requires, err := document.SharedYAML(path, data)
	if err != nil {
		return Config{}, err
	}
	c.Requires = requires
	if doc == nil {
		c.setDefaults()
		return c, nil
	}
	p := parser{document.Faults{Path: path}}
	p.config(doc.Content[0], &c)
	return c, p.JoinFaults()
}

// A parser turns YAML nodes into settings and collects the faults. Its methods take the key that
// faults name, such as "inputs[0].name", and the key's value.
type parser struct{ document.Faults }

// addFault adds a fault: the value n of key is not what is expected.
func (p *parser) addFault(key string, n *yaml.Node, expected string) {
	p.Fault(n, "%s: got %s, expected %s", key, document.Found(n), expected)
}

// readMapping reads each key in n. Unknown and repeated keys are faults. where is the full name of
// n; it is empty for the document.
func (p *parser) readMapping(where string, n *yaml.Node, keys []document.Key) {
	if n.Kind != yaml.MappingNode {
		what := where
		if what == "" {
			what = "the document"
		}
		p.addFault(what, n, "a mapping")
		return
	}
	for e := range document.Entries(n) {
		key := e.Key.Value
		if where != "" {
			key = where + "." + key
		}
		known := document.FindKey(keys, e.Key.Value)
		switch {
		case known == nil:
			p.Fault(e.Key, "unknown key %q, expected one of %s", key,
				strings.Join(slices.Sorted(slices.Values(document.KeyNames(keys))), ", "))
		case e.First != 0:
			p.Fault(e.Key, "key %q is given twice", key)
		default:
			known.Read(key, e.Value)
		}
	}
}

// givenValues are the values of a model.yaml that others are checked against; nil where the file
// has none.
type givenValues struct {
	target, deadline, warmUp, split, merging, score, metric, measured, capture *yaml.Node

	inputs, outputs []TensorSpec
	splits          bool
	ranks           *yaml.Node // the first key or value that asks for rolesFormat
}

// rolesFormat is the first format of a model.yaml that says the roles of inputs.
const rolesFormat = 2

func (p *parser) config(n *yaml.Node, c *Config) {
	g := givenValues{splits: true}
	p.readMapping("", n, p.configKeys(c, &g))
	// Ports of config.pbtxt stay: the version checks that all that is said of a port agrees.
	c.Inputs, c.Outputs = append(c.Inputs, g.inputs...), append(c.Outputs, g.outputs...)
	c.setDefaults()
	p.checkConfig(c, &g)
}

// checkConfig checks settings against each other.
func (p *parser) checkConfig(c *Config, g *givenValues) {
	if c.SaysRoles() && c.Requires < rolesFormat {
		p.Fault(cmp.Or(g.ranks, &yaml.Node{Line: 1}),
			"the file says the roles of inputs or outputs, "+
				"which older versions of Muster do not know: it must say %s: %d, too",
			document.Requires,
			rolesFormat)
	}
	if g.capture != nil && c.Requires < captureFormat {
		p.Fault(g.capture, "capture: older versions of Muster do not know it: the file must say %s: %d, too",
			document.Requires, captureFormat)
	}
	if g.deadline != nil && c.Deadline < c.QoSTarget {
		p.addFault("deadline_ms", g.deadline,
			fmt.Sprintf("at least qos_target_ms, which is %s", milliseconds(c.QoSTarget)))
	}
	if g.deadline == nil && c.Deadline < c.QoSTarget && g.target != nil {
		p.addFault("qos_target_ms", g.target,
			fmt.Sprintf("at most default_timeout_microseconds of %s, "+
				"which is %s ms, or deadline_ms beside it", TritonFile, milliseconds(c.Deadline)))
	}
	if g.split != nil && g.splits && !c.RowsIndependent {
		p.addFault("split", g.split, "false unless rows_independent is true")
	}
	if g.merging != nil && c.Merge.Merges() && !c.RowsIndependent {
		p.addFault("merge", g.merging,
			fmt.Sprintf("%q, because rows_independent is not true", names.MergeNone))
	}
	switch {
	case g.score != nil && g.metric == nil:
		p.Fault(g.score, "score: has no metric beside it, expected %s", knownMetrics())
	case g.score == nil && g.metric != nil:
		p.Fault(g.metric, "metric: has no score beside it")
	case g.score == nil && g.measured != nil:
		p.Fault(g.measured, "measured: has no score beside it")
	}
	if g.warmUp == nil {
		c.WarmUp = slices.DeleteFunc(c.WarmUp, func(n int) bool { return n > c.LargestBatchSize })
	}
	for _, n := range c.WarmUp {
		if n > c.LargestBatchSize {
			p.Fault(
				g.warmUp,
				"warm_up: got batch size %d, expected at most largest_batch_size, which is %d", n,
				c.LargestBatchSize)
		}
	}
}

func (p *parser) text(key string, n *yaml.Node, into *string) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		p.addFault(key, n, "text")
		return
	}
	*into = n.Value
}

// readBoolean reads true or false into into, which a fault leaves as it is.
func (p *parser) readBoolean(key string, n *yaml.Node, into *bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(into) != nil {
		p.addFault(key, n, "true or false")
	}
}

// readInteger reads a whole number from 1 to largest; false after a fault.
func (p *parser) readInteger(key string, n *yaml.Node, largest int64) (int64, bool) {
	var i int64
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&i) != nil || i < 1 ||
		i > largest {
		expected := fmt.Sprintf("a whole number from 1 to %d", largest)
		if largest == math.MaxInt64 {
			expected = "a whole number of at least 1"
		}
		p.addFault(key, n, expected)
		return 0, false
	}
	return i, true
}

// readFloat reads a number above 0 and at most largest into into, which a fault leaves as it is.
func (p *parser) readFloat(key string, n *yaml.Node, largest float64, into *float64) {
	var f float64
	if n.Kind != yaml.ScalarNode || (n.Tag != "!!int" && n.Tag != "!!float") ||
		n.Decode(&f) != nil || !(f > 0 && f <= largest) {
		p.addFault(key, n, "a number above 0 and up to "+strconv.FormatFloat(largest, 'f', -1, 64))
		return
	}
	*into = f
}

func (p *parser) readMilliseconds(key string, n *yaml.Node, largest time.Duration,
	into *time.Duration) {
	var ms float64
	before := p.CountFaults()
	p.readFloat(key, n, float64(largest/time.Millisecond), &ms)
	if d := time.Duration(math.Round(ms * float64(time.Millisecond))); d > 0 {
		*into = d
	} else if p.CountFaults() == before {
		p.addFault(key, n, "at least 0.000001, a nanosecond")
	}
}

// readList calls read for each element of n, with the element's key, such as "inputs[0]".
func (p *parser) readList(key string, n *yaml.Node, expected string,
	read func(key string, element *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.addFault(key, n, expected)
		return
	}
	for i, element := range n.Content {
		read(fmt.Sprintf("%s[%d]", key, i), element)
	}
}

func (p *parser) readIntegers(key string, n *yaml.Node, expected string, largest int64) []int64 {
	var all []int64
	p.readList(key, n, expected, func(key string, element *yaml.Node) {
		if i, ok := p.readInteger(key, element, largest); ok {
			all = append(all, i)
		}
	})
	return all
}

func (p *parser) versions(key string, n *yaml.Node, policy *VersionPolicy) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Value == "all":
		policy.All = true
	case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
		policy.Specific = p.readIntegers(key, n, "", math.MaxInt64)
	case n.Kind == yaml.MappingNode:
		p.readMapping(key, n, p.versionKeys(policy))
	default:
		p.addFault(key, n, `"all", {latest: N} or a list of versions`)
	}
}

func (p *parser) readPorts(key string, n *yaml.Node, areInputs bool, into *[]TensorSpec) {
	p.readList(key, n, "a list, each with a name", func(key string, n *yaml.Node) {
		var port TensorSpec
		before := p.CountFaults()
		p.readMapping(key, n, p.portKeys(&port, areInputs))
		switch {
		case p.CountFaults() > before:
		case port.Name == "":
			p.Fault(n, "%s: has no name", key)
		case slices.ContainsFunc(*into,
			func(other TensorSpec) bool { return other.Name == port.Name }):
			p.Fault(n, "%s: %q is given twice", key, port.Name)
		default:
			*into = append(*into, port)
		}
	})
}

// readShape reads a list of dimensions. The first is the batch size and must be -1; others may be.
func (p *parser) readShape(key string, n *yaml.Node) []int64 {
	var shape []int64
	p.readList(key, n, "a list of dimensions", func(key string, n *yaml.Node) {
		var d int64
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&d) != nil || d < Dynamic {
			p.addFault(key, n, "a whole number of at least 0, or -1 for a dynamic dimension")
		} else if len(shape) == 0 && d != Dynamic {
			p.addFault(key, n, "-1, the batch size")
		}
		shape = append(shape, d)
	})
	return shape
}

func (p *parser) readTable(key string, n *yaml.Node, c *Config) {
	var t EmbeddingTable
	p.readMapping(key, n, p.tableKeys(&t))
	c.Tables = append(c.Tables, t)
}

// sentOnce reads the list of the user's inputs, or false.
func (p *parser) sentOnce(key string, n *yaml.Node, c *Config, g *givenValues) {
	g.ranks = cmp.Or(g.ranks, n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" && n.Value == "false" {
		c.NeverSentOnce = true
		return
	}
	p.readList(key, n, "a list of inputs, or false", func(key string, n *yaml.Node) {
		var name string
		if p.text(key, n, &name); name != "" {
			c.SentOnce = append(c.SentOnce, name)
		}
	})
}

func (p *parser) readRagged(key string, n *yaml.Node, c *Config, g *givenValues) {
	g.ranks = cmp.Or(g.ranks, n)
	p.readList(key, n, "a list of ragged features", func(key string, n *yaml.Node) {
		f := roles.Feature{Per: roles.Row}
		before := p.CountFaults()
		p.readMapping(key, n, p.featureKeys(&f))
		switch {
		case p.CountFaults() > before:
		case f.Values == "" || f.Index == "":
			p.Fault(n, "%s: expected values, and one of %s, %s and %s", key, roles.Lengths,
				roles.Offsets,
				roles.RowSplits)
		case f.LastOffset && f.Form != roles.Offsets:
			p.Fault(n, "%s: last_offset is of %s, the feature has %s", key, roles.Offsets, f.Form)
		default:
			c.Ragged = append(c.Ragged, f)
		}
	})
}

// sizeOf reads NAME or NAME:DIMENSION. A name with a colon needs the dimension.
func (p *parser) sizeOf(key string, n *yaml.Node, c *Config, g *givenValues) {
	g.ranks = cmp.Or(g.ranks, n)
	var text string
	if p.text(key, n, &text); text == "" {
		return
	}
	c.SizeOf = SizeDimension{Input: text}
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		dim, err := strconv.Atoi(text[i+1:])
		if c.SizeOf = (SizeDimension{text[:i], dim}); err != nil || dim < 0 || i == 0 {
			p.addFault(key, n, "the name of an input, or NAME:DIMENSION")
			c.SizeOf = SizeDimension{}
		}
	}
}

func (p *parser) readSeed(key string, n *yaml.Node, into *uint64) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(into) != nil {
		p.addFault(key, n, "a whole number of at least 0")
	}
}

func (p *parser) readMeasurement(key string, n *yaml.Node, m *Measurement) {
	before := p.CountFaults()
	p.readMapping(key, n, p.measurementKeys(m))
	if p.CountFaults() == before && (m.Against == "" || m.Rows == 0) {
		p.Fault(n, "%s: expected at least against and rows", key)
	}
}

// YAML encodes c in the form of a model.yaml. It leaves out settings with their zero value.
func (c Config) YAML() ([]byte, error) {
	type table struct {
		Name    string `yaml:"name,omitempty"`
		Rows    int64  `yaml:"rows,omitempty"`
		Dim     int64  `yaml:"dim,omitempty"`
		Lookups int64  `yaml:"lookups,omitempty"`
	}
	type port struct {
		Name     string          `yaml:"name"`
		DataType tensor.DataType `yaml:"data_type,omitempty"`
		Shape    []int64         `yaml:"shape,omitempty,flow"`
		IDBounds []int64         `yaml:"id_bounds,omitempty,flow"`
		Role     roles.Role      `yaml:"role,omitempty"`
	}
	type provenance struct {
		Generator    string `yaml:"generator,omitempty"`
		Architecture string `yaml:"architecture,omitempty"`
		Scale        string `yaml:"scale,omitempty"`
		Seed         uint64 `yaml:"seed"`
		From         string `yaml:"from,omitempty"`
		Variant      string `yaml:"variant,omitempty"`
	}
	document := struct {
		Requires         uint64            `yaml:"requires,omitempty"`
		QoSTarget        milliseconds      `yaml:"qos_target_ms,omitempty"`
		QoSPercentile    float64           `yaml:"qos_percentile,omitempty"`
		Deadline         milliseconds      `yaml:"deadline_ms,omitempty"`
		LargestBatchSize int               `yaml:"largest_batch_size,omitempty"`
		RowsIndependent  *bool             `yaml:"rows_independent,omitempty"`
		Split            *bool             `yaml:"split,omitempty"`
		Merge            names.MergePolicy `yaml:"merge,omitempty"`
		TF32             bool              `yaml:"tf32,omitempty"`
		Late             LatePolicy        `yaml:"late,omitempty"`
		WarmUp           *[]int            `yaml:"warm_up,omitempty,flow"`
		Versions         any               `yaml:"versions,omitempty"`
		Family           string            `yaml:"family,omitempty"`
		Accuracy         float64           `yaml:"accuracy,omitempty"`
		Score            float64           `yaml:"score,omitempty"`
		Metric           Metric            `yaml:"metric,omitempty"`
		Measured         *measurement      `yaml:"measured,omitempty,flow"`
		SentOnce         any               `yaml:"sent_once,omitempty,flow"`
		Ragged           []yamlFeature     `yaml:"ragged,omitempty,flow"`
		SizeOf           string            `yaml:"size_of,omitempty"`
		Capture          *Capture          `yaml:"capture,omitempty,flow"`
		Inputs           []port            `yaml:"inputs,omitempty"`
		Outputs          []port            `yaml:"outputs,omitempty"`
		Tables           []table           `yaml:"tables,omitempty"`
		Generated        *provenance       `yaml:"generated,omitempty"`
	}{
		Requires:         c.Requires,
		QoSTarget:        milliseconds(c.QoSTarget),
		QoSPercentile:    c.QoSPercentile,
		Deadline:         milliseconds(c.Deadline),
		LargestBatchSize: c.LargestBatchSize,
		RowsIndependent:  c.statedIndependence(),
		Merge:            c.Merge,
		TF32:             c.TF32,
		Late:             c.Late,
		SentOnce:         c.yamlSentOnce(),
		Ragged:           yamlFeatures(c.Ragged),
		SizeOf:           c.SizeOf.String(),
		Capture:          c.yamlCapture(),
		Family:           c.Family,
		Accuracy:         c.Accuracy,
		Score:            c.Score,
		Metric:           c.Metric,
		Generated:        (*provenance)(c.Generated),
	}
	if c.WarmUp != nil { // an empty list says that nothing runs
		document.WarmUp = &c.WarmUp
	}
	if c.Measured != (Measurement{}) {
		document.Measured = (*measurement)(&c.Measured)
	}
	switch v := c.Versions; {
	case v.All:
		document.Versions = "all"
	case v.Specific != nil:
		document.Versions = v.Specific
	case v.Latest > 0:
		document.Versions = map[string]int{"latest": v.Latest}
	}
	if c.KeepWhole {
		document.Split = new(bool)
	}
	written := func(p TensorSpec) port {
		return port{p.Name, p.DataType, p.Shape, p.IDBounds,
			p.Role}
	}
	for _, p := range c.Inputs {
		document.Inputs = append(document.Inputs, written(p))
	}
	for _, p := range c.Outputs {
		document.Outputs = append(document.Outputs, written(p))
	}
	for _, t := range c.Tables {
		document.Tables = append(document.Tables, table(t))
	}
	return yaml.Marshal(document)
}

// statedIndependence returns what the settings say of rows_independent; nil: nothing.
func (c *Config) statedIndependence() *bool {
	if c.RowsIndependent && !c.InferredIndependence || c.StatesIndependence {
		return &c.RowsIndependent
	}
	return nil
}

// yamlSentOnce returns the value of sent_once; nil: it is left out.
func (c *Config) yamlSentOnce() any {
	switch {
	case c.NeverSentOnce:
		return false
	case len(c.SentOnce) > 0:
		return c.SentOnce
	}
	return nil
}

// yamlFeature is a ragged feature as YAML shows it.
type yamlFeature struct {
	Values     string     `yaml:"values"`
	Lengths    string     `yaml:"lengths,omitempty"`
	Offsets    string     `yaml:"offsets,omitempty"`
	RowSplits  string     `yaml:"row_splits,omitempty"`
	Weights    string     `yaml:"weights,omitempty"`
	Per        roles.Role `yaml:"per,omitempty"`
	Keys       int        `yaml:"keys,omitempty"`
	Layout     string     `yaml:"layout,omitempty"`
	LastOffset bool       `yaml:"last_offset,omitempty"`
	Table      string     `yaml:"table,omitempty"`
}

// yamlFeatures returns ragged features as YAML shows them.
func yamlFeatures(all []roles.Feature) (written []yamlFeature) {
	for _, f := range all {
		w := yamlFeature{Values: f.Values, Weights: f.Weights, Per: f.Per, Keys: f.Keys,
			LastOffset: f.LastOffset, Table: f.Table}
		switch f.Form {
		case roles.Lengths:
			w.Lengths = f.Index
		case roles.Offsets:
			w.Offsets = f.Index
		case roles.RowSplits:
			w.RowSplits = f.Index
		}
		if f.KeyMajor {
			w.Layout = "key_major"
		}
		written = append(written, w)
	}
	return written
}

// measurement is a Measurement as YAML shows it.
type measurement struct {
	Against string  `yaml:"against"`
	Rows    int64   `yaml:"rows"`
	Seed    uint64  `yaml:"seed,omitempty"`
	Error   float64 `yaml:"error"`
}

// milliseconds is a duration that YAML shows as a number of milliseconds.
type milliseconds time.Duration

func (d milliseconds) String() string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64)
}

func (d milliseconds) MarshalYAML() (any, error) {
	return float64(d) / float64(time.Millisecond), nil
}
