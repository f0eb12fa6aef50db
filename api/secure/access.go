package secure

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
)

// A Control is a right to call methods that change what agents do, or that reveal what other
// callers did.
type Control string

// The control calls.
const (
	Load   Control = "load"
	Unload Control = "unload"
	Drain  Control = "drain"
	Plan   Control = "plan"
	Rotate Control = "keys"   // list and change the gossip keys
	Events Control = "events" // read the events, with the names of callers
	// Metrics is the right to read the metrics of all models. Without it, a client reads those of
	// models that it may query.
	Metrics Control = "metrics"
	// Fleet is the right to change what agents hold and how many there are.
	Fleet Control = "fleet"
)

var controls = []Control{Load, Unload, Drain, Plan, Rotate, Events, Metrics, Fleet}

// Anyone stands, in the access file, for all clients without an entry of their own, or for all
// models.
const Anyone = "*"

// Access says which models each client may query, which control calls it may make, and its limits.
// Agents may do everything. An Access is never changed, so it may be used concurrently.
type Access struct {
	clients map[string]grant
	issuers []Issuer // of tokens; none: no token is good
}

// A grant is what one client may do.
type grant struct {
	models  map[string]bool
	control map[Control]bool
	limits  *allowance // nil: no limits
	// loadShare is the share of the agents that may hold a model only because this client asks for
	// it; 0: the client has no right to have models loaded.
	loadShare float64
}

// DefaultAccess returns rules that let every client query every model, and only the client "admin"
// control:
//
//	clients:
//	  admin: {models: ["*"], control: [load, unload, drain, plan, keys, events, metrics, fleet]}
//	  "*": {models: ["*"]}
func DefaultAccess() *Access {
	all := map[string]bool{Anyone: true}
	admin := grant{models: all, control: map[Control]bool{}}
	for _, c := range controls {
		admin.control[c] = true
	}
	return &Access{clients: map[string]grant{"admin": admin, Anyone: {models: all}}}
}

// ParseAccess reads an access file:
//
//	clients:
//	  ads:                      # the name in a certificate, or of an API key
//	    models: [ncf, wnd]      # which it may query; "*" is all
//	    load_share: .1          # of the agents, which may hold a model only because it asks for it
//	    control: [load, unload] # of load, unload, drain, plan, keys, events, metrics, fleet
//	    limits:                 # how much it may use of each agent; none, without
//	      queries_per_second: 200
//	      burst: 400            # at once after a pause; without, those of a second
//	      bytes_per_second: 50MB
//	      streams: 16           # calls open at a time, queries among them
//	  "*":                      # every other client with a name, each with limits of its own
//	    models: ["*"]
//	issuers:                    # of tokens (JWTs); none, without
//	  https://login.example.com:
//	    audience: muster        # for whom tokens must be
//	    groups: {ads-team: ads} # whose members act as a client
//	    name_claim: sub
//	    groups_claim: groups
//	    prefix: "oidc:"         # before the names of clients
//	    ca: login-ca.crt        # of the issuer's server; the system's, without
//
// A client that the file does not have, where there is no "*", may do nothing.
// A file that uses keys of a later version of Muster has `requires: N` beside clients, see
// [document.Format]. path is for errors; all faults are reported at once.
func ParseAccess(path string, data []byte) (*Access, error) {
	a := &Access{clients: map[string]grant{}}
	p := accessParser{document.Faults{Path: path}}
	doc, _, err := document.SharedYAML(path, data)
	if err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, fmt.Errorf("%s: empty, want `clients:`", path)
	}
	found := false
	keys := p.accessKeys(a)
	p.parseMapping(doc.Content[0], "`clients:`", func(key, value *yaml.Node) {
		if k := document.FindKey(keys, key.Value); k != nil {
			found = true
			k.Read(key.Value, value)
			return
		}
		p.Fault(key, "unknown key %q, want %s", key.Value, document.ListNames(keys))
	})
	p.checkGroups(doc, a)
	switch {
	case p.CountFaults() > 0:
		return nil, p.JoinFaults()
	case !found || len(a.clients) == 0:
		return nil, fmt.Errorf("%s: no clients", path)
	}
	return a, nil
}

type accessParser struct{ document.Faults }

// parseMapping calls each for every entry of the mapping n, or reports a fault.
func (p *accessParser) parseMapping(n *yaml.Node, want string, each func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.Fault(n, "want %s", want)
		return
	}
	for e := range document.Entries(n) {
		switch {
		case e.Key.Kind != yaml.ScalarNode:
			p.Fault(e.Key, "want a name before the colon")
		case e.First != 0:
			p.Fault(e.Key, "%q is set twice, first at line %d", e.Key.Value, e.First)
		default:
			each(e.Key, e.Value)
		}
	}
}

func (p *accessParser) parseGrant(client string, n *yaml.Node) grant {
	g := grant{models: map[string]bool{}, control: map[Control]bool{}}
	keys := p.grantKeys(client, &g)
	p.readKeys(n, "{models: [...], control: [...], load_share: ..., limits: {...}}", keys, "")
	return g
}

// readKeys has each key of the mapping n read by the one of keys with its name. of begins the fault
// of an unknown key.
func (p *accessParser) readKeys(n *yaml.Node, want string, keys []document.Key, of string) {
	p.parseMapping(n, want, func(key, value *yaml.Node) {
		if k := document.FindKey(keys, key.Value); k != nil {
			k.Read(key.Value, value)
			return
		}
		p.Fault(key, "%sunknown key %q, want %s", of, key.Value, document.ListNames(keys))
	})
}

// parseLimits parses a client's limits; nil if n sets none.
func (p *accessParser) parseLimits(client string, n *yaml.Node) *allowance {
	a := allowance{}
	var burst *yaml.Node
	keys := p.limitKeys(&a, &burst)
	of := func(key string) string { return fmt.Sprintf("client %q: %s", client, key) }
	p.parseMapping(n, of("limits")+
		": {queries_per_second: ..., burst: ..., bytes_per_second: ..., streams: ...}",
		func(key, value *yaml.Node) {
			if k := document.FindKey(keys, key.Value); k != nil {
				k.Read(of(key.Value), value)
				return
			}
			p.Fault(key, "client %q: unknown limit %q, want %s", client, key.Value,
				document.ListNames(keys))
		})
	switch {
	case burst == nil:
		a.burst = max(1, a.queries)
	case a.queries == 0:
		p.Fault(burst, "%s without queries_per_second, want both", of("burst"))
	}
	if a.queries == 0 && a.bytes == 0 && a.streams == 0 {
		return nil
	}
	return &a
}

// maxRate is the largest limit: larger numbers are not exact as float64.
const maxRate = 1 << 50

// parseNumber parses a scalar > 0.
func (p *accessParser) parseNumber(n *yaml.Node, of, want string) float64 {
	v, err := strconv.ParseFloat(n.Value, 64)
	if n.Kind != yaml.ScalarNode || err != nil || !(v > 0 && v <= maxRate) {
		p.Fault(n, "%s: %.40q, want %s; without one there is no limit", of, n.Value, want)
		return 0
	}
	return v
}

// units are the units of bytes, longer suffixes first.
var units = []struct {
	name  string
	bytes float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6},
	{"GB", 1e9}, {"B", 1}}

// bytes parses a number of bytes, with or without a unit.
func (p *accessParser) bytes(n *yaml.Node, of string) float64 {
	text, unit := n.Value, 1.0
	for _, u := range units {
		if before, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(before), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if v *= unit; n.Kind != yaml.ScalarNode || err != nil || !(v >= 1 && v <= maxRate) {
		p.Fault(
			n,
			"%s: %.40q, want bytes, such as 50MB or 64KiB, at least 1; without any there is no "+
				"limit", of, n.Value)
		return 0
	}
	return v
}

// list returns the elements of a list of words, or reports a fault.
func (p *accessParser) list(n *yaml.Node, of string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		p.Fault(n, "want a list of %s", of)
		return nil
	}
	var elements []*yaml.Node
	for _, e := range n.Content {
		if e.Kind != yaml.ScalarNode || e.Value == "" {
			p.Fault(e, "want the name of one of the %s", of)
			continue
		}
		elements = append(elements, e)
	}
	return elements
}

// rightsOf returns the client's rights: its own entry, else that of "*".
func (a *Access) rightsOf(client string) grant {
	if g, ok := a.clients[client]; ok {
		return g
	}
	return a.clients[Anyone]
}

// hasEntry reports whether the client has an entry, its own or that of "*".
func (a *Access) hasEntry(client string) bool {
	_, own := a.clients[client]
	_, anyone := a.clients[Anyone]
	return own || anyone
}

// MayQuery reports whether the client may query the model.
func (a *Access) MayQuery(client, model string) bool {
	g := a.rightsOf(client)
	return g.models[Anyone] || g.models[model]
}

// MayControl reports whether the client may make the control call.
func (a *Access) MayControl(client string, call Control) bool {
	return a.rightsOf(client).control[call]
}

// Models returns the names of the models in the access file, without "*", sorted.
func (a *Access) Models() []string {
	names := map[string]bool{}
	for _, g := range a.clients {
		maps.Copy(names, g.models)
	}
	delete(names, Anyone)
	return slices.Sorted(maps.Keys(names))
}
