package models

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/tensor"
)

// captureFormat is the first format of a model.yaml that says what is kept of queries.
const captureFormat = 3

// CapturedClient stands for the name of the client among the columns of a Capture.
const CapturedClient = "client"

// A Capture says which of a model's queries are kept with their answers, and what of them, if an
// agent has a place for them. The zero value keeps nothing.
type Capture struct {
	Share float64 `yaml:"share"` // of the queries, in (0, 1]; 0: none
	// LeaveOut and Hash name inputs and outputs, or CapturedClient: columns that are not kept, and
	// columns of which only a keyed hash is. Numbers with a fraction have no hash.
	LeaveOut []string `yaml:"leave_out,omitempty,flow"`
	Hash     []string `yaml:"hash,omitempty,flow"`
}

// yamlCapture returns the value of capture; nil: it is left out.
func (c *Config) yamlCapture() *Capture {
	if c.Capture.Share == 0 {
		return nil
	}
	return &c.Capture
}

// captureConfigKeys are those that say what is kept of queries.
func (p *parser) captureConfigKeys(c *Config, g *givenValues) []document.Key {
	return []document.Key{{
		Name: "capture", Type: "mapping", Default: "nothing is kept",
		Meaning: "which queries agents with `--capture` keep, with their answers " +
			"([tenants](tenants.md#keep-traffic)). It needs `requires: 3`.",
		Read: func(key string, v *yaml.Node) {
			g.capture = v
			p.readCapture(key, v, &c.Capture)
		},
		Keys: p.captureKeys(new(Capture)),
	}}
}

func (p *parser) captureKeys(c *Capture) []document.Key {
	names := func(into *[]string) func(string, *yaml.Node) {
		return func(key string, n *yaml.Node) {
			p.readList(key, n, "a list of names", func(key string, n *yaml.Node) {
				var name string
				if p.text(key, n, &name); name != "" {
					*into = append(*into, name)
				}
			})
		}
	}
	return []document.Key{
		{
			Name: "share", Type: share, Meaning: "how many of the queries are kept. It must be given.",
			Read: func(key string, n *yaml.Node) { p.readFloat(key, n, 1, &c.Share) },
		},
		{
			Name: "leave_out", Type: "list of names", Default: "none",
			Meaning: "inputs and outputs that are not kept, or `client`, the name of who asked.",
			Read:    names(&c.LeaveOut),
		},
		{
			Name: "hash", Type: "list of names", Default: "none",
			Meaning: "those of strings and whole numbers that are kept as a hash by the agent's " +
				"`--capture-key`, so that equals stay equal.",
			Read: names(&c.Hash),
		},
	}
}

func (p *parser) readCapture(key string, n *yaml.Node, c *Capture) {
	before := p.CountFaults()
	p.readMapping(key, n, p.captureKeys(c))
	if p.CountFaults() > before {
		return
	}
	if c.Share == 0 {
		p.Fault(n, "%s: has no share, expected a %s", key, share)
	}
	for _, name := range c.Hash {
		if slices.Contains(c.LeaveOut, name) {
			p.Fault(n, "%s: %q is in leave_out and in hash, expected one of them", key, name)
		}
	}
}

// checkCapture returns what is wrong with the columns that the settings name.
func (v *Version) checkCapture() (errs []error) {
	c := &v.Config.Capture
	ports := slices.Concat(v.Inputs, v.Outputs)
	for _, name := range slices.Concat(c.LeaveOut, c.Hash) {
		i := slices.IndexFunc(ports, func(p TensorSpec) bool { return p.Name == name })
		switch {
		case i < 0 && name != CapturedClient:
			errs = append(errs, fmt.Errorf("capture: the model has no %q, expected %q or one of %s", name,
				CapturedClient, namesOf(ports)))
		case i >= 0 && slices.Contains(c.Hash, name) && !CanHash(ports[i].DataType):
			errs = append(errs, fmt.Errorf("capture: %q is %s, and hash is for strings and whole numbers: "+
				"leave it out", name, ports[i].DataType))
		}
	}
	return errs
}

// CanHash reports whether values of a type may be replaced by hashes: they are names of something.
func CanHash(t tensor.DataType) bool {
	switch t {
	case tensor.Bool, tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64:
		return false
	}
	return true
}
