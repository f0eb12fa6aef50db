package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
)

// templateKey is the key of the ConfigMap that has the pod.
const templateKey = "pod.yaml"

// A configMap is what is read of one.
type configMap struct {
	Metadata struct {
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

// newPod makes the pod of a slot from the template.
func (p *Provider) newPod(ctx context.Context, slot rent.Slot, spec cloud.Spec) (map[string]any,
	error) {
	var from configMap
	if err := p.client.get(ctx, "configmaps", p.config.Template, &from); err != nil {
		return nil, errorOf(fmt.Errorf("the template: %w", err))
	}
	made := map[string]any{}
	if err := yaml.Unmarshal([]byte(from.Data[templateKey]), &made); err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %s: %w: %w", from.Metadata.Name, templateKey,
			cloud.ErrDenied, err)
	}
	fault := p.fill(made, &from, slot, spec)
	if fault != nil {
		return nil, fmt.Errorf("ConfigMap %s: %s: %w: %w", from.Metadata.Name, templateKey,
			cloud.ErrDenied, fault)
	}
	return made, nil
}

// fill makes a template the pod of a slot.
func (p *Provider) fill(made map[string]any, from *configMap, slot rent.Slot, want cloud.Spec) error {
	spec := mappingOf(made, "spec")
	containers, _ := spec["containers"].([]any)
	if len(containers) == 0 {
		return fmt.Errorf("no spec.containers, want a pod whose first container is the agent")
	}
	agent, ok := containers[0].(map[string]any)
	if !ok {
		return fmt.Errorf("the first of spec.containers is no mapping")
	}
	made["apiVersion"], made["kind"] = "v1", "Pod"
	metadata := mappingOf(made, "metadata")
	delete(metadata, "generateName")
	metadata["name"] = p.podName(slot)
	metadata["ownerReferences"] = []any{map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "name": from.Metadata.Name,
		"uid": from.Metadata.UID,
	}}
	maps.Copy(mappingOf(metadata, "labels"), map[string]any{fleetLabel: p.config.Fleet})
	notes := map[string]any{
		slotAnnotation: slot.String(), byAnnotation: want.By,
		versionAnnotation: strconv.FormatUint(want.Version, 10),
		// Whatever moves pods to pack nodes would end a machine that the fleet counts on.
		"karpenter.sh/do-not-disrupt":                    "true",
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	}
	if p.config.TemplateVersion != "" {
		notes[templateAnnotation] = p.config.TemplateVersion
	}
	maps.Copy(mappingOf(metadata, "annotations"), notes)

	spec["restartPolicy"] = "Never" // an agent that ends is an instance that has ended
	nodes := mappingOf(spec, "nodeSelector")
	nodes[typeLabel] = string(slot.Type)
	market, labeling := "", labelings[p.config.Nodes]
	if market = labeling.onDemand; slot.Market == rent.Spot {
		market = labeling.spot
	}
	if market != "" {
		nodes[labeling.label] = market
	}
	zone := p.selectZones(spec, nodes, want.Zones)
	variables, _ := agent["env"].([]any)
	agent["env"] = append(variables,
		map[string]any{"name": "POD_UID", "valueFrom": map[string]any{
			"fieldRef": map[string]any{"fieldPath": "metadata.uid"},
		}},
		map[string]any{"name": "MUSTER_RENTED", "value": "$(POD_UID) " + slot.String() + " " + zone},
		map[string]any{"name": "MUSTER_INSTANCE_TYPE", "value": string(slot.Type)})
	return nil
}

// selectZones has the pod run in one of the zones, those of the settings if there are none. It
// returns the zone, anyZone if there are several.
func (p *Provider) selectZones(spec, nodes map[string]any, zones []string) string {
	if len(zones) == 0 {
		zones = p.config.Zones
	}
	switch {
	case len(zones) == 0 || len(zones) == 1 && zones[0] == anyZone:
		return anyZone
	case len(zones) == 1:
		nodes[zoneLabel] = zones[0]
		return zones[0]
	}
	values := make([]any, 0, len(zones))
	for _, z := range zones {
		values = append(values, z)
	}
	among := map[string]any{"key": zoneLabel, "operator": "In", "values": values}
	required := mappingOf(mappingOf(mappingOf(spec, "affinity"), "nodeAffinity"),
		"requiredDuringSchedulingIgnoredDuringExecution")
	terms, _ := required["nodeSelectorTerms"].([]any)
	if len(terms) == 0 {
		terms = []any{map[string]any{}}
	}
	for _, term := range terms { // one of them is enough, so each has the zones
		if of, ok := term.(map[string]any); ok {
			expressions, _ := of["matchExpressions"].([]any)
			of["matchExpressions"] = append(expressions, among)
		}
	}
	required["nodeSelectorTerms"] = terms
	return anyZone
}

// mappingOf returns the mapping at a key, made if there is none.
func mappingOf(of map[string]any, key string) map[string]any {
	m, ok := of[key].(map[string]any)
	if !ok {
		m = map[string]any{}
		of[key] = m
	}
	return m
}
