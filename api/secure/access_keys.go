package secure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
)

// AccessKeys describes the keys of an access file.
func AccessKeys() []document.Key {
	return append([]document.Key{document.RequiresKey()}, new(accessParser).accessKeys(nil)...)
}

// accessKeys are those of an access file, but [document.Requires].
func (p *accessParser) accessKeys(a *Access) []document.Key {
	return []document.Key{{
		Name: "clients", Type: "mapping from the names of clients",
		Meaning: "what each client may do, by the name in its certificate or of its API key. A " +
			"client without an entry has that of `\"*\"`; if there is none, it may call only what " +
			"everybody may. It must be given.",
		Read: func(_ string, n *yaml.Node) {
			p.parseMapping(n, "lines of `name: {models: [...], control: [...], limits: {...}}`",
				func(key, value *yaml.Node) {
					if key.Value != Anyone {
						if err := checkClientName(key.Value); err != nil {
							p.Fault(key, "%v", err)
						}
					}
					a.clients[key.Value] = p.parseGrant(key.Value, value)
				})
		},
		Keys: p.grantKeys("", new(grant)), Of: ".NAME",
	}, {
		Name: "issuers", Type: "mapping from the URLs of OpenID Connect providers", Default: "none",
		Meaning: "whose tokens [identify](security.md#tokens) clients. A URL must be as the " +
			"tokens' claim `iss` has it. Agents of before this key refuse a file that has it: " +
			"upgrade all of them first.",
		Read: func(_ string, n *yaml.Node) {
			p.parseMapping(n, "lines of `URL: {audience: ..., groups: {GROUP: CLIENT}}`",
				func(key, value *yaml.Node) {
					if err := checkIssuerURL(key.Value); err != nil {
						p.Fault(key, "issuer: %v", err)
					}
					a.issuers = append(a.issuers, p.parseIssuer(key, value))
				})
		},
		Keys: p.issuerKeys("", new(Issuer)), Of: ".URL",
	}}
}

// defaultPrefix is that of the names of tokens' owners. No API key's name has a colon.
const defaultPrefix = "oidc:"

func (p *accessParser) parseIssuer(name, n *yaml.Node) Issuer {
	i := Issuer{URL: name.Value, NameClaim: "sub", GroupsClaim: "groups", Prefix: defaultPrefix}
	keys := p.issuerKeys(name.Value, &i)
	p.readKeys(n, "{audience: ..., groups: {GROUP: CLIENT}}", keys,
		fmt.Sprintf("issuer %q: ", name.Value))
	if i.Audience == "" {
		p.Fault(name, "issuer %q: no audience, want the one that tokens for this fleet have: "+
			"without, a token that the issuer made for any other service would be good", name.Value)
	}
	return i
}

// issuerKeys are those of an issuer.
func (p *accessParser) issuerKeys(issuer string, i *Issuer) []document.Key {
	text := func(name, kind, byDefault, meaning string, to *string, empty bool) document.Key {
		return document.Key{
			Name: name, Type: kind, Default: byDefault, Meaning: meaning,
			Read: func(key string, n *yaml.Node) {
				*to = n.Value
				if n.Kind != yaml.ScalarNode || n.Value == "" && !empty || len(n.Value) > 1024 {
					p.Fault(n, "issuer %q: %s: %.40q, want a %s", issuer, key, n.Value, kind)
				}
			},
		}
	}
	return []document.Key{
		text("audience", "text", "", "for whom tokens must be: their claim `aud` must have it. It "+
			"must be given.", &i.Audience, false),
		{
			Name: "groups", Type: "mapping from groups to names of clients", Default: "none",
			Meaning: "the members of a group act as that client, with its rights and limits. Of " +
				"several groups the first in the file counts.",
			Read: func(_ string, n *yaml.Node) {
				p.parseMapping(n, "{GROUP: CLIENT}", func(key, value *yaml.Node) {
					i.Groups = append(i.Groups, GroupClient{key.Value, value.Value})
				})
			},
		},
		text("name_claim", "name of a claim", "`sub`", "which claim names the client.", &i.NameClaim,
			false),
		text("groups_claim", "name of a claim", "`groups`", "which claim lists the groups.",
			&i.GroupsClaim, false),
		text("prefix", "text, which may be empty", "`\"oidc:\"`", "what stands before the names "+
			"of clients without such a group, so that no token can have the name of a certificate "+
			"or an API key.", &i.Prefix, true),
		text("ca", "path of a file", "the system's CAs", "the CA of the issuer's server, in PEM.",
			&i.CAFile, false),
	}
}

// checkGroups reports groups that act as a client that the file does not have.
func (p *accessParser) checkGroups(doc *yaml.Node, a *Access) {
	for _, i := range a.issuers {
		for _, g := range i.Groups {
			if _, known := a.clients[g.Client]; !known || g.Client == Anyone {
				p.Fault(doc.Content[0], "issuer %q: group %q acts as client %q, want one of those in "+
					"clients", i.URL, g.Group, g.Client)
			}
		}
	}
}

// grantKeys are those of a client.
func (p *accessParser) grantKeys(client string, g *grant) []document.Key {
	return []document.Key{
		{
			Name: "models", Type: "list of models' names", Default: "none",
			Meaning: "which models the client may query. `\"*\"` is all.",
			Read: func(_ string, n *yaml.Node) {
				for _, model := range p.list(n, "models") {
					g.models[model.Value] = true
				}
			},
		},
		{
			Name: "control", Type: "list of " + listControls(), Default: "none",
			Meaning: "which [rights](security.md#rights) the client has.",
			Read: func(_ string, n *yaml.Node) {
				for _, call := range p.list(n, "control calls") {
					if !slices.Contains(controls, Control(call.Value)) {
						p.Fault(call, "control call %q, want one of %q", call.Value, controls)
					}
					g.control[Control(call.Value)] = true
				}
			},
		},
		{
			Name: "load_share", Type: "number above 0, at most 1",
			Default: "no right to have models loaded",
			Meaning: "the client's queries that demand more accuracy than any variant that is held " +
				"has, or name a model of a family that no agent holds, wait until the " +
				"[leader](placement.md) has had one loaded, and count as demand. At most this share " +
				"of the agents, and at least one, holds models only for such queries. Agents of " +
				"before this key refuse a file that has it: upgrade all of them first.",
			Read: func(_ string, n *yaml.Node) {
				share, err := strconv.ParseFloat(n.Value, 64)
				if g.loadShare = share; n.Kind != yaml.ScalarNode || err != nil ||
					!(share > 0 && share <= 1) {
					p.Fault(n, "client %q: load_share: %.40q, want a number above 0, at most 1",
						client, n.Value)
				}
			},
		},
		{
			Name: "limits", Type: "mapping", Default: "no limits",
			Meaning: "how much the client may use of each agent. Under `\"*\"` each client has them " +
				"by itself.",
			Read: func(_ string, n *yaml.Node) { g.limits = p.parseLimits(client, n) },
			Keys: p.limitKeys(new(allowance), new(*yaml.Node)),
		},
	}
}

// listControls lists the rights for people.
func listControls() string {
	var names []string
	for _, c := range controls {
		names = append(names, "`"+string(c)+"`")
	}
	return strings.Join(names, ", ")
}

// limitKeys are those of a client's limits. burst becomes the value of the key burst.
func (p *accessParser) limitKeys(a *allowance, burst **yaml.Node) []document.Key {
	return []document.Key{
		{
			Name: "queries_per_second", Type: "number above 0", Default: "no limit",
			Meaning: "queries that are let in, in the long run.",
			Read: func(key string, n *yaml.Node) {
				a.queries = p.parseNumber(n, key, "a number above 0, such as 200")
			},
		},
		{
			Name: "burst", Type: "number of at least 1", Default: "the queries of a second",
			Meaning: "queries that are let in at once after a pause. It needs `queries_per_second`.",
			Read: func(key string, n *yaml.Node) {
				*burst = n
				if a.burst = p.parseNumber(n, key,
					"a number of at least 1"); a.burst > 0 && a.burst < 1 {
					p.Fault(n, "%s: %s, want a number of at least 1: below that no query is let in",
						key, n.Value)
				}
			},
		},
		{
			Name: "bytes_per_second", Type: "number of bytes of at least 1, with or without a unit (" +
				listUnits() + ")", Default: "no limit",
			Meaning: "bytes of queries.",
			Read:    func(key string, n *yaml.Node) { a.bytes = p.bytes(n, key) },
		},
		{
			Name: "streams", Type: "whole number of at least 1", Default: "no limit",
			Meaning: "calls open at a time, by gRPC and REST, queries included.",
			Read: func(key string, n *yaml.Node) {
				streams, err := strconv.ParseInt(n.Value, 10, 32)
				if n.Kind != yaml.ScalarNode || err != nil || streams < 1 {
					p.Fault(n, "%s: %.40q, want a whole number above 0; without one there is no limit",
						key, n.Value)
				}
				a.streams = int(streams)
			},
		},
	}
}

// listUnits lists the units of bytes for people.
func listUnits() string {
	var names []string
	for _, u := range units {
		names = append(names, "`"+u.name+"`")
	}
	return strings.Join(names, ", ")
}
