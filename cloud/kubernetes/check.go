package kubernetes

import (
	"context"
	"fmt"
	"strings"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
)

// rights are what renting needs, by resource.
var rights = []struct {
	resource string
	verbs    []string
	template bool // only to the template
}{
	{"pods", []string{"create", "delete", "get", "list", "patch", "watch"}, false},
	{"configmaps", []string{"get"}, true},
}

// Check implements [cloud.Provider]. It asks the API server what this account may do, and has it
// admit a pod of each type without making one. It cannot see whether there is a node.
func (p *Provider) Check(ctx context.Context) []cloud.Fault {
	var faults []cloud.Fault
	denied := map[string]bool{}
	for _, r := range rights {
		for _, verb := range r.verbs {
			name := ""
			if r.template {
				name = p.config.Template
			}
			allowed, why, err := p.client.may(ctx, verb, r.resource, name)
			if err != nil { // nothing else can succeed, and all would say the same
				return []cloud.Fault{{What: "API server " + p.client.server, Why: err.Error()}}
			}
			if !allowed {
				denied[verb+" "+r.resource] = true
				faults = append(faults, cloud.Fault{
					What: fmt.Sprintf("right to %s %s", verb, r.resource),
					Why: strings.TrimSpace(fmt.Sprintf("the service account has none in the "+
						"namespace %s: `muster fleet policy` prints its Role. %s",
						p.client.namespace, why)),
				})
			}
		}
	}
	if denied["get configmaps"] || denied["create pods"] {
		return faults
	}
	for _, t := range p.config.Types {
		slot := rent.Slot{Kind: rent.Kind{Type: t}}
		made, err := p.newPod(ctx, slot, cloud.Spec{})
		if err != nil { // the same for all types
			return append(faults, cloud.Fault{What: "template " + p.config.Template, Why: err.Error()})
		}
		mappingOf(made, "metadata")["name"] = "muster-check" // the slot's pod may be there
		if err := p.client.create(ctx, "pods", true, made, nil); err != nil {
			faults = append(faults, cloud.Fault{
				What: fmt.Sprintf("a pod for %s", t), Why: errorOf(err).Error(),
			})
		}
		if p.config.Prices[slot.Kind.String()] <= 0 {
			faults = append(faults, cloud.Fault{
				What: fmt.Sprintf("the price of %s", t),
				Why:  "the catalogue has none: give it in kubernetes.prices",
			})
		}
	}
	if p.config.Nodes == "karpenter" {
		err := p.client.call(ctx, "GET", "/apis/karpenter.sh", "", nil, nil)
		if err != nil {
			faults = append(faults, cloud.Fault{What: "Karpenter", Why: fmt.Sprintf("the cluster "+
				"does not know karpenter.sh (%v): install it, or say with kubernetes.nodes whose "+
				"labels the nodes have: %q", err, Labelings())})
		}
	}
	return faults
}

// Role is the Role that an account needs that rents from a template, as YAML. namespace may be empty.
func Role(namespace, template string) string {
	var b strings.Builder
	b.WriteString("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n" +
		"  name: muster-rent\n")
	if namespace != "" {
		fmt.Fprintf(&b, "  namespace: %s\n", namespace)
	}
	b.WriteString("rules:\n")
	for _, r := range rights {
		only := ""
		if r.template {
			only = fmt.Sprintf("resourceNames: [%s], ", template)
		}
		fmt.Fprintf(&b, "  - {apiGroups: [\"\"], resources: [%s], %sverbs: [%s]}\n", r.resource, only,
			strings.Join(r.verbs, ", "))
	}
	return b.String()
}
