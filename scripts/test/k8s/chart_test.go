//go:build fleet

package k8s

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// values are those of a fleet with a pool that rents.
const values = `
modelStore: s3://bucket/models
pools: [{name: g4dn, instanceType: g4dn.xlarge, replicas: 2}]
rent:
  enabled: true
  resources: {requests: {cpu: "3", memory: 12Gi}, limits: {cpu: "3", memory: 12Gi}}
  policy:
    mode: advise
    limits: {max_price_usd_per_hour: 60, types: {r5n.large: {max: 400}, g4dn.xlarge: {max: 100}}}
    kubernetes: {nodes: karpenter, prices: {r5n.large@spot: 0.05}}
`

// helm runs helm for the release m of a namespace, with values.
func (c *cluster) helm(t *testing.T, verb, namespace, values string, more ...string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := c.call("", "helm", append([]string{
		verb, "m", chart, "--namespace", namespace, "--values", file}, more...)...)
	return err
}

// install installs the chart, with a volume for each keeper, until the test ends.
func (c *cluster) install(t *testing.T, namespace, values string) {
	t.Helper()
	for i := range 3 {
		must(t)(c.apply(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %[1]s-%[2]d},
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /none},
claimRef: {namespace: %[1]s, name: state-m-keeper-%[2]d}}}`, namespace, i)))
	}
	t.Cleanup(func() {
		for i := range 3 {
			name := fmt.Sprintf("%s-%d", namespace, i)
			_, _ = c.kubectl("delete", "persistentvolume", name, "--wait=false")
		}
	})
	if err := c.helm(t, "install", namespace, values); err != nil {
		t.Fatal(err)
	}
}

// rollOut waits until all keepers and the pool have the pods that they want.
func (c *cluster) rollOut(t *testing.T, namespace string) {
	t.Helper()
	for _, what := range []string{"statefulset/m-keeper", "deployment/m-g4dn"} {
		must(t)(c.kubectl("-n", namespace, "rollout", "status", what, "--timeout=120s"))
	}
}

// objects are the names of all that a namespace has, but for what every namespace has.
func (c *cluster) objects(t *testing.T, namespace string) (all []string) {
	t.Helper()
	kinds := must(t)(c.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name"))
	kept := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool {
		return strings.HasPrefix(kind, "events")
	})
	found := must(t)(c.kubectl("-n", namespace, "get", strings.Join(kept, ","), "-o", "name",
		"--ignore-not-found"))
	for _, name := range strings.Fields(found) {
		if name != "configmap/kube-root-ca.crt" && name != "serviceaccount/default" {
			all = append(all, name)
		}
	}
	return all
}

// TestChart: a cluster takes the chart and its changes, runs its pods under the strictest of
// Kubernetes' standards, keeps its keys, and has nothing left of it at the end.
func TestChart(t *testing.T) {
	t.Parallel()
	c, ns := shared, shared.use(t).newNamespace(t)
	definitions, err := filepath.Glob(filepath.Join(os.Getenv("MUSTER_K8S"), "crds", "*.yaml"))
	if err != nil || len(definitions) != 5 {
		t.Fatalf("definitions of others' resources: %q, %v", definitions, err)
	}
	for _, file := range definitions {
		must(t)(c.kubectl("apply", "--server-side", "-f", file))
	}
	must(t)(c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"))
	c.install(t, ns, values)
	c.rollOut(t, ns)
	installed := c.objects(t, ns)
	for _, want := range []string{
		"statefulset.apps/m-keeper", "deployment.apps/m-g4dn", "service/m", "service/m-gossip",
		"networkpolicy.networking.k8s.io/m", "poddisruptionbudget.policy/m-keeper",
		"poddisruptionbudget.policy/m-g4dn", "podmonitor.monitoring.coreos.com/m",
		"prometheusrule.monitoring.coreos.com/m", "role.rbac.authorization.k8s.io/m-rent",
		"configmap/m-worker", "configmap/m-fleet", "secret/m-tls",
		"persistentvolumeclaim/state-m-keeper-2",
	} {
		if !slices.Contains(installed, want) {
			t.Errorf("no %s; there are %q", want, installed)
		}
	}
	for _, budget := range []string{"m-keeper", "m-g4dn"} {
		if err := c.await("the budget of "+budget, func() error {
			out, err := c.kubectl("-n", ns, "get", "poddisruptionbudget", budget, "-o",
				"jsonpath={.status.disruptionsAllowed}")
			if err == nil && out != "1" {
				err = fmt.Errorf("%q disruptions are allowed, want 1", out)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	// The seed list has all agents.
	if err := c.await("the seed list", func() error {
		out, err := c.kubectl("-n", ns, "get", "endpointslices", "-l",
			"kubernetes.io/service-name=m-gossip", "-o", "jsonpath={.items[*].endpoints[*].addresses[*]}")
		if n := len(strings.Fields(out)); err == nil && n != 5 {
			err = fmt.Errorf("%d addresses, want 5: %s", n, out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}

	secrets := func() string {
		return must(t)(c.kubectl("-n", ns, "get", "secret", "m-tls", "m-admin", "m-gossip-key", "-o",
			"jsonpath={.items[*].data}"))
	}
	before := secrets()
	changed := strings.Replace(values, "replicas: 2", "replicas: 3", 1) +
		"drain: {delaySeconds: 7}\ntls: {mode: generated}\n"
	if err := c.helm(t, "upgrade", ns, changed); err != nil {
		t.Fatal(err)
	}
	c.rollOut(t, ns)
	if secrets() != before {
		t.Error("an upgrade made other keys or certificates")
	}
	args := must(t)(c.kubectl("-n", ns, "get", "pods", "-o",
		"jsonpath={.items[*].spec.containers[0].args}"))
	if n := strings.Count(args, "--drain-delay=7s"); n != 6 {
		t.Errorf("%d of 6 pods are new", n)
	}
	issued := strings.Replace(changed, "mode: generated", "mode: certManager, issuer: ca", 1)
	if err := c.helm(t, "upgrade", ns, issued); err != nil {
		t.Fatal(err)
	}
	must(t)(c.kubectl("-n", ns, "get", "certificate", "m"))

	must(t)(c.call("", "helm", "uninstall", "m", "--namespace", ns))
	if err := c.await("an empty namespace", func() error {
		if left := c.objects(t, ns); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestSchema: values that mean nothing are refused before anything is made.
func TestSchema(t *testing.T) {
	c, ns := shared, "schema"
	for _, wrong := range []string{
		"image: {repository: \"\"}", "keepers: {replicas: 0}", "keepers: {replicas: \"3\"}",
		"keeper: {}", "pools: [{name: A_B, replicas: 1}]", "pools: [{name: a}]", "tls: {mode: none}",
		"tls: {mode: secret}", "tls: {mode: certManager}", "drain: {delaySeconds: -1}",
		"rent: {policy: {fleet: mine}}", "networkPolicy: {clients: all}", "settings: {a: [b]}",
	} {
		err := c.helm(t, "template", ns, wrong)
		if err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v, want that the schema refuses it", wrong, err)
		}
	}
}

// TestExamples: a cluster with KServe's and KEDA's definitions takes the examples as they are.
func TestExamples(t *testing.T) {
	t.Parallel()
	c, ns := shared, shared.use(t).newNamespace(t)
	for _, file := range []string{
		"serving.kserve.io_clusterservingruntimes.yaml", "keda.sh_scaledobjects.yaml",
	} {
		must(t)(c.kubectl("apply", "--server-side", "-f", filepath.Join(os.Getenv("MUSTER_K8S"), "crds",
			file)))
	}
	must(t)(c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"))
	for file, kind := range map[string]string{
		"kserve.yaml": "clusterservingruntime/muster", "keda.yaml": "scaledobject/muster-r5n",
	} {
		path := filepath.Join("examples", "kubernetes", file)
		must(t)(c.kubectl("-n", ns, "apply", "--server-side", "--validate=strict", "-f", path))
		must(t)(c.kubectl("-n", ns, "get", kind))
		must(t)(c.kubectl("-n", ns, "delete", "-f", path))
	}
	// What KServe makes of the runtime is a pod with its container.
	text, err := os.ReadFile("examples/kubernetes/kserve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pod := strings.NewReplacer("apiVersion: serving.kserve.io/v1alpha1", "apiVersion: v1",
		"kind: ClusterServingRuntime", "kind: Pod").Replace(string(text))
	begin, end := strings.Index(pod, "  supportedModelFormats:"), strings.Index(pod, "  containers:")
	pod = pod[:begin] + "  securityContext: {seccompProfile: {type: RuntimeDefault}}\n" + pod[end:]
	must(t)(c.call(pod, "kubectl", "-n", ns, "apply", "--server-side", "--validate=strict",
		"--dry-run=server", "-f", "-"))
}

// rightsOf are those of a Role, as the audit log names them.
func (c *cluster) rightsOf(t *testing.T, namespace, role string) map[right]bool {
	t.Helper()
	var of struct {
		Rules []struct{ Resources, ResourceNames, Verbs []string }
	}
	text := must(t)(c.kubectl("-n", namespace, "get", "role", role, "-o", "json"))
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		t.Fatal(err)
	}
	all := map[right]bool{}
	for _, r := range of.Rules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				if len(r.ResourceNames) == 0 {
					all[right{verb, resource, ""}] = true
				}
				for _, name := range r.ResourceNames {
					all[right{verb, resource, name}] = true
				}
			}
		}
	}
	return all
}

// checkRights: the keepers of a release have used each right that they have, so that they have none
// too many, and none that they asked for was missing.
func (c *cluster) checkRights(t *testing.T, namespace string) {
	t.Helper()
	used := c.used(t, namespace, "m-keeper")
	maps.DeleteFunc(used, func(r right, _ bool) bool { // everybody may ask what they may
		return r.Resource == "selfsubjectaccessreviews" || r.Resource == ""
	})
	if has := c.rightsOf(t, namespace, "m-rent"); !maps.Equal(has, used) {
		t.Errorf("keepers have the rights %v and used %v", has, used)
	}
}
