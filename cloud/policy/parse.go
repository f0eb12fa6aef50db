package policy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
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
//	calm: 10m
//	change: {launches: 8, drains: 10%, threshold: 5%, window: always}
//	spare: 1
//	spot: {share: 50%, max_pool: 30%}
//	ec2: {region: us-east-1, template: muster-worker, template_version: "7", subnets: [subnet-a]}
//
// docs/rent.md describes the keys. A file that uses keys of a later version of Muster has
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
	r.readSection(doc.Content[0], "", keys{
		"fleet": func(n *yaml.Node) { p.Fleet = r.readText(n) },
		"mode": func(n *yaml.Node) {
			p.Mode = Mode(r.oneOf(n, "off", "advise", "approve", "auto"))
		},
		"objective": func(n *yaml.Node) { r.readObjective(n, p) },
		"limits":    func(n *yaml.Node) { r.readLimits(n, p) },
		"calm":      func(n *yaml.Node) { p.Calm = r.readDuration(n) },
		"change":    func(n *yaml.Node) { r.readChange(n, p) },
		"spare": func(n *yaml.Node) {
			if p.Spare = r.readCount(n); p.Spare > 1 {
				r.Fault(n, "spare: %d, want 0 or 1", p.Spare)
			}
		},
		"spot":    func(n *yaml.Node) { r.readSpot(n, p) },
		"ec2":     func(n *yaml.Node) { p.EC2 = r.readEC2(n) },
		"process": func(n *yaml.Node) { p.Process = r.readProcess(n) },
	})
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

type keys map[string]func(*yaml.Node)

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
func (r *reader) readSection(n *yaml.Node, name string, known keys) {
	if name != "" {
		name += ": "
	}
	r.readMapping(n, name, func(key, value *yaml.Node) {
		read, ok := known[key.Value]
		if !ok {
			r.Fault(key, "%sunknown key %q, want one of %s", name, key.Value,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			return
		}
		read(value)
	})
}

func (r *reader) readObjective(n *yaml.Node, p *Policy) {
	r.readSection(n, "objective", keys{
		"rate": func(n *yaml.Node) {
			if n.Value != "auto" {
				p.Rate = r.readNumber(n, 0, 1e9, "auto, or queries/s above 0")
			}
		},
		"headroom": func(n *yaml.Node) { p.Headroom = r.readNumber(n, 1, 10, "1 to 10") },
		"budget":   func(n *yaml.Node) { p.Budget = r.readNumber(n, 0, 1e6, "$/hr above 0") },
	})
}

func (r *reader) readLimits(n *yaml.Node, p *Policy) {
	r.readSection(n, "limits", keys{
		"max_price_usd_per_hour": func(n *yaml.Node) {
			p.MaxPrice = r.readNumber(n, 0, 1e6, "$/hr above 0")
		},
		"min_instances": func(n *yaml.Node) { p.MinInstances = r.readCount(n) },
		"types": func(n *yaml.Node) {
			p.Types = map[profiles.InstanceType]choose.Limits{}
			r.readMapping(n, "limits.types: ", func(key, value *yaml.Node) {
				var l choose.Limits
				r.readSection(value, "limits.types."+key.Value, keys{
					"min": func(n *yaml.Node) { l.Min = r.readCount(n) },
					"max": func(n *yaml.Node) {
						if l.Max = r.readCount(n); l.Max == 0 {
							r.Fault(n, "max: 0, want 1 or more; leave the type out to have none")
						}
					},
					"spot": func(n *yaml.Node) {
						l.OnDemand = r.oneOf(n, "true",
							"false") == "false"
					},
				})
				p.Types[profiles.InstanceType(key.Value)] = l
			})
		},
	})
}

func (r *reader) readChange(n *yaml.Node, p *Policy) {
	r.readSection(n, "change", keys{
		"launches": func(n *yaml.Node) {
			if p.Launches = r.readCount(n); p.Launches == 0 {
				r.Fault(n, "launches: 0, want 1 or more")
			}
		},
		"drains":    func(n *yaml.Node) { p.Drains = r.readShare(n) },
		"threshold": func(n *yaml.Node) { p.Threshold = r.readShare(n) },
		"window": func(n *yaml.Node) {
			var err error
			if p.Window, err = ParseWindow(n.Value); err != nil {
				r.Fault(n, "window: %v", err)
			}
		},
	})
}

func (r *reader) readSpot(n *yaml.Node, p *Policy) {
	r.readSection(n, "spot", keys{
		"share": func(n *yaml.Node) {
			if n.Value != "0" && n.Value != "0%" {
				p.SpotShare = r.readShare(n)
			}
		},
		"max_pool": func(n *yaml.Node) { p.MaxPool = r.readShare(n) },
	})
}

func (r *reader) readEC2(n *yaml.Node) *EC2 {
	e := &EC2{}
	r.readSection(n, "ec2", keys{
		"region":   func(n *yaml.Node) { e.Region = r.readText(n) },
		"template": func(n *yaml.Node) { e.Template = r.readText(n) },
		"template_version": func(n *yaml.Node) {
			e.TemplateVersion = n.Value
			if v, err := strconv.ParseUint(n.Value, 10, 32); err != nil || v == 0 {
				r.Fault(n, "template_version: %q, want the number of a version: with $Latest or "+
					"$Default a fleet would change without being told to", n.Value)
			}
		},
		"subnets": func(n *yaml.Node) { e.Subnets = r.list(n) },
	})
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

func (r *reader) readProcess(n *yaml.Node) *Process {
	p := &Process{}
	r.readSection(n, "process", keys{
		"dir":    func(n *yaml.Node) { p.Dir = r.readText(n) },
		"models": func(n *yaml.Node) { p.Models = r.readText(n) },
		"boots":  func(n *yaml.Node) { p.Boots = r.readDuration(n) },
		"short": func(n *yaml.Node) {
			for _, t := range r.list(n) {
				p.Short = append(p.Short, profiles.InstanceType(t))
			}
		},
	})
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
