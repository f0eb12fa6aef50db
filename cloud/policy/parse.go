package policy

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
)

// largest is the most bytes that a file may have; agents send it to each other.
const largest = 64 << 10

// Read reads a file, which Parse describes, and returns its text too.
func Read(path string) (*Policy, string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	p, err := Parse(path, string(text))
	return p, string(text), err
}

// Parse reads the text of a fleet.yaml, such as
//
//	fleet: prod-us-east-1
//	mode: approve
//	objective: {rate: auto, headroom: 1.15}
//	limits:
//	  max_price_usd_per_hour: 6.0
//	  min_instances: 3
//	  types: {g4dn.xlarge: {min: 1, max: 4}, r5n.large: {max: 20}}
//	calm: 5m
//	change: {launches: 8, drains: 10%, threshold: 5%, window: always}
//	spare: 1
//	spot: {share: 50%, max_pool: 30%}
//	ec2: {region: us-east-1, template: muster-worker, template_version: "7", subnets: [subnet-a]}
//
// [Keys] describes the keys. A file that uses keys of a later version of Muster has
// `requires: N`; the error wraps [document.FormatError] if this program does not know them. path is
// for errors; all faults are reported at once, with their lines.
func Parse(path, text string) (*Policy, error) {
	if len(text) > largest {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", path, len(text), largest)
	}
	r := reader{document.Faults{Path: path}}
	p := Default()
	doc, _, err := document.SharedYAML(path, []byte(text))
	if err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, fmt.Errorf("%s: empty, want `fleet: NAME` and more", path)
	}
	r.readSection(doc.Content[0], "", r.policyKeys(p))
	if err := r.JoinFaults(); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// A reader reads the values of a document and gathers faults.
type reader struct{ document.Faults }

// readMapping calls each for every entry of n.
func (r *reader) readMapping(n *yaml.Node, name string, each func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.Fault(n, "%swant keys and values", name)
		return
	}
	for e := range document.Entries(n) {
		if e.First != 0 {
			r.Fault(e.Key, "%s%q is set twice, first at line %d", name, e.Key.Value, e.First)
			continue
		}
		each(e.Key, e.Value)
	}
}

// readSection reads a mapping of known keys.
func (r *reader) readSection(n *yaml.Node, name string, known []document.Key) {
	if name != "" {
		name += ": "
	}
	r.readMapping(n, name, func(key, value *yaml.Node) {
		k := document.FindKey(known, key.Value)
		if k == nil {
			r.Fault(key, "%sunknown key %q, want one of %s", name, key.Value,
				strings.Join(slices.Sorted(slices.Values(document.KeyNames(known))), ", "))
			return
		}
		k.Read(name+key.Value, value)
	})
}

func (r *reader) readEC2(n *yaml.Node) *EC2 {
	e := &EC2{}
	r.readSection(n, "ec2", r.ec2Keys(e))
	for _, x := range []struct {
		key   string
		given bool
	}{
		{"region", e.Region != ""}, {"template", e.Template != ""},
		{"template_version", e.TemplateVersion != ""}, {"subnets", len(e.Subnets) > 0},
	} {
		if !x.given {
			r.Fault(n, "ec2: no %s", x.key)
		}
	}
	return e
}

// newKubernetes has the defaults. The renter gives a machine six minutes to join, and a pod that
// finds no node must not take all of them.
func newKubernetes() *Kubernetes {
	return &Kubernetes{Nodes: "karpenter", LaunchTimeout: 4 * time.Minute}
}

func (r *reader) readKubernetes(n *yaml.Node) *Kubernetes {
	k := newKubernetes()
	r.readSection(n, "kubernetes", r.kubernetesKeys(k))
	if k.Template == "" {
		r.Fault(n, "kubernetes: no template, want the name of a ConfigMap")
	}
	return k
}

func (r *reader) readProcess(n *yaml.Node) *Process {
	p := &Process{}
	r.readSection(n, "process", r.processKeys(p))
	if p.Dir == "" {
		r.Fault(n, "process: no dir, want a directory for the agents' state")
	}
	if p.Models == "" {
		r.Fault(n, "process: no models, want the directory of a model repository")
	}
	return p
}

func (r *reader) readText(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		r.Fault(n, "want a word")
	}
	return n.Value
}

func (r *reader) list(n *yaml.Node) (all []string) {
	if n.Kind != yaml.SequenceNode {
		r.Fault(n, "want a list, such as [a, b]")
		return nil
	}
	for _, c := range n.Content {
		all = append(all, r.readText(c))
	}
	return all
}

func (r *reader) oneOf(n *yaml.Node, of ...string) string {
	// YAML reads a bare off as false; its text is what counts.
	if n.Kind != yaml.ScalarNode || !slices.Contains(of, n.Value) {
		r.Fault(n, "%q, want one of %s", n.Value, strings.Join(of, ", "))
	}
	return n.Value
}

// readNumber reads a number above 0 and in [least, most].
func (r *reader) readNumber(n *yaml.Node, least, most float64, want string) float64 {
	v, err := strconv.ParseFloat(n.Value, 64)
	if n.Kind != yaml.ScalarNode || err != nil || !(v > 0 && v >= least && v <= most) {
		r.Fault(n, "%.40q, want %s", n.Value, want)
	}
	return v
}

func (r *reader) readCount(n *yaml.Node) int {
	v, err := strconv.ParseUint(n.Value, 10, 16)
	if n.Kind != yaml.ScalarNode || err != nil {
		r.Fault(n, "%.40q, want a whole number from 0 to 65535", n.Value)
	}
	return int(v)
}

// readShare reads "10%" or 0.1.
func (r *reader) readShare(n *yaml.Node) float64 {
	text, percent := strings.CutSuffix(n.Value, "%")
	v, err := strconv.ParseFloat(text, 64)
	if percent {
		v /= 100
	}
	if n.Kind != yaml.ScalarNode || err != nil || !(v > 0 && v <= 1) {
		r.Fault(n, "%.40q, want a share, such as 10%%", n.Value)
	}
	return v
}

func (r *reader) readDuration(n *yaml.Node) time.Duration {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < 0 {
		r.Fault(n, "%.40q, want a duration, such as 10m", n.Value)
	}
	return d
}
