package policy

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
)

// What values keys have.
const (
	anyText  = "text"
	count    = "whole number, 0 to 65535"
	aboveOne = "whole number, 1 to 65535"
	share    = "share above 0 and up to 1, such as `10%` or `0.1`"
	duration = "duration, such as `10m`"
	dollars  = "$/hr, a number above 0 and up to 1000000"
)

// Keys describes the keys of a fleet.yaml, in the order in which people read of them.
func Keys() []document.Key {
	return append([]document.Key{document.RequiresKey()}, new(reader).policyKeys(Default())...)
}

// percent formats a share.
func percent(share float64) string { return fmt.Sprintf("%g%%", 100*share) }

// inMinutes formats whole minutes as people write them.
func inMinutes(d time.Duration) string { return fmt.Sprintf("%dm", d/time.Minute) }

// policyKeys are those of a fleet.yaml, of a policy that is the default so far.
func (r *reader) policyKeys(p *Policy) []document.Key {
	return []document.Key{
		{
			Name: "fleet", Type: "name of up to 63 small letters, digits, dots and hyphens",
			Meaning: "the fleet's. The provider's machines carry it, so no two fleets may have it. " +
				"It must be given.",
			Read: func(_ string, n *yaml.Node) { p.Fleet = r.readText(n) },
		},
		{
			Name: "mode", Type: "`off`, `advise`, `approve` or `auto`",
			Default: "`" + string(p.Mode) + "`",
			Meaning: "what the leader does: with `off` it plans, rents and returns nothing; with " +
				"`advise` it plans, and shows what it would do; with `approve` it makes the fleet " +
				"what a person has approved, or said with `--count`, and keeps it so; with `auto` " +
				"it makes the fleet what it plans.",
			Read: func(_ string, n *yaml.Node) {
				p.Mode = Mode(r.oneOf(n, "off", "advise", "approve", "auto"))
			},
		},
		{
			Name: "objective", Type: "mapping", Meaning: "what the fleet is planned for.",
			Read: r.section("objective", r.objectiveKeys(p)), Keys: r.objectiveKeys(p),
		},
		{
			Name: "limits", Type: "mapping",
			Meaning: "what the fleet never leaves. It must be given.",
			Read:    r.section("limits", r.limitKeys(p)), Keys: r.limitKeys(p),
		},
		{
			Name: "families", Type: "mapping from the names of families",
			Meaning: "what is stated for [families](families.md), beside what their model.yaml " +
				"state: the largest counts. Agents of before this key refuse a file that has it, " +
				"and as the leader rent nothing by it and take no other one: upgrade all of them " +
				"first, and apply a file without it before you go back.",
			Read: func(_ string, n *yaml.Node) {
				p.Families = map[string]Accuracy{}
				r.readMapping(n, "families: ", func(key, value *yaml.Node) {
					var a Accuracy
					r.readSection(value, "families."+key.Value, r.accuracyKeys(&a))
					p.Families[key.Value] = a
				})
			},
			Keys: r.accuracyKeys(new(Accuracy)), Of: ".FAMILY",
		},
		{
			Name: "spare", Type: "0 or 1", Default: strconv.Itoa(p.Spare),
			Meaning: "with 1 the rest of the fleet can serve the whole load after the loss of any " +
				"one machine, or of all spot machines of one type.",
			Read: func(_ string, n *yaml.Node) {
				if p.Spare = r.readCount(n); p.Spare > 1 {
					r.Fault(n, "spare: %d, want 0 or 1", p.Spare)
				}
			},
		},
		{
			Name: "spot", Type: "mapping", Meaning: "which load spot machines may serve.",
			Read: r.section("spot", r.spotKeys(p)), Keys: r.spotKeys(p),
		},
		{
			Name: "calm", Type: duration, Default: inMinutes(p.Calm),
			Meaning: "how long the leader remembers the busiest minute: nothing is returned that was " +
				"needed within, unless the load repeats and will not need it for longer than a boot.",
			Read: func(_ string, n *yaml.Node) { p.Calm = r.readDuration(n) },
		},
		{
			Name: "change", Type: "mapping", Meaning: "how fast the fleet may change, and when.",
			Read: r.section("change", r.changeKeys(p)), Keys: r.changeKeys(p),
		},
		{
			Name: "ec2", Type: "mapping",
			Meaning: "from what machines are launched on [EC2](ec2.md). One of `ec2`, `kubernetes` " +
				"and `process` must be given.",
			Read: func(_ string, n *yaml.Node) { p.EC2 = r.readEC2(n) },
			Keys: r.ec2Keys(new(EC2)),
		},
		{
			Name: "kubernetes", Type: "mapping",
			Meaning: "from what pods are made on [Kubernetes](kubernetes.md).",
			Read:    func(_ string, n *yaml.Node) { p.Kubernetes = r.readKubernetes(n) },
			Keys:    r.kubernetesKeys(newKubernetes()),
		},
		{
			Name: "process", Type: "mapping",
			Meaning: "how emulated agents are started on the leader's machine, to try things.",
			Read:    func(_ string, n *yaml.Node) { p.Process = r.readProcess(n) },
			Keys:    r.processKeys(new(Process)),
		},
	}
}

// section returns what reads a mapping with the keys.
func (r *reader) section(name string, keys []document.Key) func(string, *yaml.Node) {
	return func(_ string, n *yaml.Node) { r.readSection(n, name, keys) }
}

func (r *reader) objectiveKeys(p *Policy) []document.Key {
	return []document.Key{
		{
			Name: "rate", Type: "`auto`, or queries/s, a number above 0", Default: "`auto`",
			Meaning: "the rate to plan for. With `auto` it is that of the busiest minute within " +
				"`calm`.",
			Read: func(_ string, n *yaml.Node) {
				if n.Value != "auto" {
					p.Rate = r.readNumber(n, 0, 1e9, "auto, or queries/s above 0")
				}
			},
		},
		{
			Name: "headroom", Type: "number, 1 to 10", Default: fmt.Sprint(p.Headroom),
			Meaning: "by which factor the plan can serve more than `rate`.",
			Read: func(_ string, n *yaml.Node) {
				p.Headroom = r.readNumber(n, 1, 10, "1 to 10")
			},
		},
		{
			Name: "budget", Type: dollars,
			Meaning: "is spent for the highest rate, in place of planning for `rate`.",
			Read: func(_ string, n *yaml.Node) {
				p.Budget = r.readNumber(n, 0, 1e6, "$/hr above 0")
			},
		},
	}
}

func (r *reader) accuracyKeys(a *Accuracy) []document.Key {
	return []document.Key{
		{
			Name: "min_accuracy", Type: share,
			Meaning: "the least accuracy of a variant that answers for the family.",
			Read: func(_ string, n *yaml.Node) {
				a.Min = r.readShare(n)
			},
		},
		{
			Name: "target_accuracy", Type: share,
			Meaning: "the mean accuracy of the family's answers that plans aim at.",
			Read: func(_ string, n *yaml.Node) {
				a.Target = r.readShare(n)
			},
		},
	}
}

func (r *reader) limitKeys(p *Policy) []document.Key {
	return []document.Key{
		{
			Name: "max_price_usd_per_hour", Type: dollars,
			Meaning: "the most that all that is rented may cost, with what drains. It must be given.",
			Read: func(_ string, n *yaml.Node) {
				p.MaxPrice = r.readNumber(n, 0, 1e6, "$/hr above 0")
			},
		},
		{
			Name: "min_instances", Type: count, Default: strconv.Itoa(p.MinInstances),
			Meaning: "how many machines are rented at least.",
			Read:    func(_ string, n *yaml.Node) { p.MinInstances = r.readCount(n) },
		},
		{
			Name: "types", Type: "mapping from the names of instance types",
			Meaning: "the types to choose from. At least one must be given.",
			Read: func(_ string, n *yaml.Node) {
				p.Types = map[profiles.InstanceType]choose.Limits{}
				r.readMapping(n, "limits.types: ", func(key, value *yaml.Node) {
					var l choose.Limits
					r.readSection(value, "limits.types."+key.Value, r.typeKeys(&l))
					p.Types[profiles.InstanceType(key.Value)] = l
				})
			},
			Keys: r.typeKeys(new(choose.Limits)), Of: ".TYPE",
		},
	}
}

func (r *reader) typeKeys(l *choose.Limits) []document.Key {
	return []document.Key{
		{
			Name: "min", Type: count, Default: "0",
			Meaning: "how many of the type are rented at least.",
			Read:    func(_ string, n *yaml.Node) { l.Min = r.readCount(n) },
		},
		{
			Name: "max", Type: aboveOne, Meaning: "how many of the type are rented at most.",
			Read: func(_ string, n *yaml.Node) {
				if l.Max = r.readCount(n); l.Max == 0 {
					r.Fault(n, "max: 0, want 1 or more; leave the type out to have none")
				}
			},
		},
		{
			Name: "spot", Type: "true or false", Default: "true",
			Meaning: "whether spot machines of the type may be rented, if `spot.share` allows any.",
			Read: func(_ string, n *yaml.Node) {
				l.OnDemand = r.oneOf(n, "true", "false") == "false"
			},
		},
	}
}

func (r *reader) spotKeys(p *Policy) []document.Key {
	return []document.Key{
		{
			Name: "share", Type: "0, or a " + share, Default: "0",
			Meaning: "of the load that all spot machines may serve.",
			Read: func(_ string, n *yaml.Node) {
				if n.Value != "0" && n.Value != "0%" {
					p.SpotShare = r.readShare(n)
				}
			},
		},
		{
			Name: "max_pool", Type: share, Default: percent(p.MaxPool),
			Meaning: "of the load that the spot machines of one type may serve.",
			Read:    func(_ string, n *yaml.Node) { p.MaxPool = r.readShare(n) },
		},
	}
}

func (r *reader) changeKeys(p *Policy) []document.Key {
	return []document.Key{
		{
			Name: "launches", Type: aboveOne, Default: strconv.Itoa(p.Launches),
			Meaning: "how many machines may start at a time.",
			Read: func(_ string, n *yaml.Node) {
				if p.Launches = r.readCount(n); p.Launches == 0 {
					r.Fault(n, "launches: 0, want 1 or more")
				}
			},
		},
		{
			Name: "drains", Type: share, Default: percent(p.Drains),
			Meaning: "of the machines that serve: how many may drain at a time.",
			Read:    func(_ string, n *yaml.Node) { p.Drains = r.readShare(n) },
		},
		{
			Name: "threshold", Type: share, Default: percent(p.Threshold),
			Meaning: "of the price: what a change must save.",
			Read:    func(_ string, n *yaml.Node) { p.Threshold = r.readShare(n) },
		},
		{
			Name: "window", Type: "`always`, or such as `mon-fri 06:00-22:00 UTC`",
			Default: "`always`",
			Meaning: "when machines that serve may be returned. The days may be left out.",
			Read: func(_ string, n *yaml.Node) {
				var err error
				if p.Window, err = ParseWindow(n.Value); err != nil {
					r.Fault(n, "window: %v", err)
				}
			},
		},
	}
}

func (r *reader) ec2Keys(e *EC2) []document.Key {
	return []document.Key{
		{
			Name: "region", Type: anyText, Meaning: "such as `us-east-1`. It must be given.",
			Read: func(_ string, n *yaml.Node) { e.Region = r.readText(n) },
		},
		{
			Name: "template", Type: anyText,
			Meaning: "the launch template's name. It must be given.",
			Read:    func(_ string, n *yaml.Node) { e.Template = r.readText(n) },
		},
		{
			Name: "template_version", Type: "whole number of at least 1",
			Meaning: "the launch template's version. It must be given: with `$Latest` a fleet would " +
				"change without being told to.",
			Read: func(_ string, n *yaml.Node) {
				e.TemplateVersion = n.Value
				if v, err := strconv.ParseUint(n.Value, 10, 32); err != nil || v == 0 {
					r.Fault(n, "template_version: %q, want the number of a version: with $Latest or "+
						"$Default a fleet would change without being told to", n.Value)
				}
			},
		},
		{
			Name: "subnets", Type: "list of texts",
			Meaning: "where machines are launched. At least one must be given.",
			Read:    func(_ string, n *yaml.Node) { e.Subnets = r.list(n) },
		},
	}
}

func (r *reader) kubernetesKeys(k *Kubernetes) []document.Key {
	return []document.Key{
		{
			Name: "template", Type: anyText,
			Meaning: "the ConfigMap whose key `pod.yaml` is a pod with the agent as its first " +
				"container. It must be given.",
			Read: func(_ string, n *yaml.Node) { k.Template = r.readText(n) },
		},
		{
			Name: "template_version", Type: anyText,
			Meaning: "marks the pods: those with another mark are replaced, one after another.",
			Read:    func(_ string, n *yaml.Node) { k.TemplateVersion = r.readText(n) },
		},
		{
			Name: "namespace", Type: anyText, Meaning: "of the pods; by default the agent's.",
			Read: func(_ string, n *yaml.Node) { k.Namespace = r.readText(n) },
		},
		{
			Name: "nodes", Type: "`karpenter`, `eks`, `gke` or `aks`", Default: "`" + k.Nodes + "`",
			Meaning: "whose labels of nodes tell spot from on demand.",
			Read:    func(_ string, n *yaml.Node) { k.Nodes = r.oneOf(n, NodeLabels()...) },
		},
		{
			Name: "zones", Type: "list of texts",
			Meaning: "the zones to choose from; by default the cluster's scheduler chooses.",
			Read:    func(_ string, n *yaml.Node) { k.Zones = r.list(n) },
		},
		{
			Name: "prices", Type: "mapping from types, or `TYPE@spot`, to " + dollars,
			Meaning: "on demand the catalogue has prices of its own. Spot machines without a price " +
				"are not rented.",
			Read: func(_ string, n *yaml.Node) {
				k.Prices = map[string]float64{}
				r.readMapping(n, "kubernetes.prices: ", func(key, value *yaml.Node) {
					if _, err := rent.ParseKind(key.Value); err != nil {
						r.Fault(key, "kubernetes.prices: %v", err)
					}
					k.Prices[key.Value] = r.readNumber(value, 0, 1e6, "$/hr above 0")
				})
			},
		},
		{
			Name: "launch_timeout", Type: duration, Default: inMinutes(k.LaunchTimeout),
			Meaning: "how long a pod may find no node. Then it is deleted, and the next type tried.",
			Read:    func(_ string, n *yaml.Node) { k.LaunchTimeout = r.readDuration(n) },
		},
		{
			Name: "server", Type: anyText,
			Meaning: "the API server's URL, for `muster fleet check` outside the cluster, such as " +
				"that of `kubectl proxy`; by default the agent's cluster's.",
			Read: func(_ string, n *yaml.Node) { k.Server = r.readText(n) },
		},
	}
}

func (r *reader) processKeys(p *Process) []document.Key {
	return []document.Key{
		{
			Name: "dir", Type: anyText, Meaning: "the folder of the agents' files. It must be given.",
			Read: func(_ string, n *yaml.Node) { p.Dir = r.readText(n) },
		},
		{
			Name: "models", Type: anyText, Meaning: "the model repository. It must be given.",
			Read: func(_ string, n *yaml.Node) { p.Models = r.readText(n) },
		},
		{
			Name: "boots", Type: duration, Default: "0s", Meaning: "the time until an agent starts.",
			Read: func(_ string, n *yaml.Node) { p.Boots = r.readDuration(n) },
		},
		{
			Name: "short", Type: "list of texts",
			Meaning: "instance types that cannot be had.",
			Read: func(_ string, n *yaml.Node) {
				for _, t := range r.list(n) {
					p.Short = append(p.Short, profiles.InstanceType(t))
				}
			},
		},
	}
}
