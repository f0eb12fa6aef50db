package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

var kind = rent.Kind{Type: "r5n.large"}

// A current provider lists what there is now, and does not wait for its watch.
type current struct{ *Provider }

func (c current) List(ctx context.Context) ([]rent.Instance, error) {
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	return c.Provider.List(ctx)
}

func TestContract(t *testing.T) {
	f := newFakeServer(t)
	cloudtest.Contract(t, kind, current{f.provider(nil)}, current{f.provider(nil)})
	if f.count("watch") == 0 && f.count("list") == 0 {
		t.Error("the server was not asked")
	}
}

// eventually lists until good is content.
func eventually(t *testing.T, p *Provider, good func([]rent.Instance) bool) {
	t.Helper()
	for {
		list, err := p.List(t.Context())
		if err != nil && t.Context().Err() != nil {
			t.Fatalf("the list never became as wanted: %+v, %v", list, err)
		}
		if err == nil && good(list) {
			return
		}
		runtime.Gosched()
	}
}

// TestWatch: what happens to pods is known by the watch, without further lists; a watch from a version
// that the server does not know any more, or not yet, begins with a list again.
func TestWatch(t *testing.T) {
	f := newFakeServer(t)
	f.breaks = []int{http.StatusGone, http.StatusGatewayTimeout}
	p := f.provider(nil)
	slot := rent.Slot{Kind: kind}
	if _, err := p.Launch(t.Context(), slot, cloud.Spec{By: "us"}); err != nil {
		t.Fatal(err)
	}
	for f.count("watch") < 3 {
		runtime.Gosched()
	}
	lists := f.count("list")
	if lists < 3 {
		t.Errorf("%d lists, want one before each watch", lists)
	}
	name := p.podName(slot)
	f.set(name, map[string]any{"phase": "Running"})
	eventually(t, p, func(all []rent.Instance) bool {
		return len(all) == 1 && all[0].State == rent.Running
	})
	f.kill(name) // its node was taken
	eventually(t, p, func(all []rent.Instance) bool {
		return len(all) == 1 && all[0].State == rent.Gone
	})
	if again := f.count("list"); again > lists+1 { // one may have been under way
		t.Errorf("%d more lists while the watch ran", again-lists)
	}
	if _, err := p.Launch(t.Context(), slot, cloud.Spec{}); !errors.Is(err, cloud.ErrSpent) {
		t.Errorf("the slot of a pod that ended gives %v, want ErrSpent", err)
	}
}

// TestUnschedulable: a pod that finds no node is deleted, and its kind is short; others are not.
func TestUnschedulable(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(func(c *Config) { c.LaunchTimeout = 0 })
	slot := rent.Slot{Kind: kind}
	if _, err := p.Launch(t.Context(), slot, cloud.Spec{}); err != nil {
		t.Fatal(err)
	}
	f.set(p.podName(slot), map[string]any{"phase": "Pending", "conditions": []any{map[string]any{
		"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
		"message": "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
	}}})
	eventually(t, p, func(all []rent.Instance) bool {
		return len(all) == 1 && all[0].State == rent.Gone
	})
	slot.Generation++
	_, err := p.Launch(t.Context(), slot, cloud.Spec{})
	short, ok := errors.AsType[*cloud.ErrShort](err)
	if !ok || short.Kind != kind || !strings.Contains(short.Why, "0/3 nodes") {
		t.Errorf("the next pod of the kind: %v, want that it is short", err)
	}
	if f.count("create") != 1 {
		t.Errorf("%d pods were made, want 1", f.count("create"))
	}
	other := rent.Slot{Kind: rent.Kind{Type: kind.Type, Market: rent.Spot}}
	if _, err := p.Launch(t.Context(), other, cloud.Spec{}); err != nil {
		t.Errorf("a pod of another kind: %v", err)
	}
}

// TestErrors: what the server refuses is told apart.
func TestErrors(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(nil)
	slot := rent.Slot{Kind: kind}
	for _, tt := range []struct {
		code            int
		reason, message string
		want            error
	}{
		{403, "Forbidden", `pods "muster-1" is forbidden: exceeded quota: pods, requested: pods=1, ` +
			`used: pods=8, limited: pods=8`, cloud.ErrQuota},
		{403, "Forbidden", `pods is forbidden: User "system:serviceaccount:muster:muster" cannot ` +
			`create resource "pods" in API group "" in the namespace "muster"`, cloud.ErrDenied},
		{422, "Invalid", `Pod "muster-1" is invalid: spec.containers[0].image: Required value`,
			cloud.ErrDenied},
		{404, "NotFound", `namespaces "muster" not found`, cloud.ErrDenied},
		{429, "TooManyRequests", "The request has been throttled", cloud.ErrThrottled},
		{409, "Conflict", `Operation cannot be fulfilled on resourcequotas "pods": the object has ` +
			`been modified`, nil},
		{500, "InternalError", "etcdserver: request timed out", nil},
	} {
		f.mu.Lock()
		f.refuse = func(r *http.Request) (int, string, string) {
			if r.Method != http.MethodPost {
				return 0, "", ""
			}
			return tt.code, tt.reason, tt.message
		}
		f.mu.Unlock()
		_, err := p.Launch(t.Context(), slot, cloud.Spec{})
		if err == nil || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%d: got %v, want %s", tt.code, err, tt.message)
		}
		for _, is := range []error{cloud.ErrQuota, cloud.ErrDenied, cloud.ErrThrottled,
			cloud.ErrSpent} {
			if errors.Is(err, is) != (is == tt.want) {
				t.Errorf("%d %s: %v is %v: %t", tt.code, tt.message, err, is, errors.Is(err, is))
			}
		}
	}
	f.mu.Lock()
	f.refuse = nil
	f.mu.Unlock()
	if _, err := p.Launch(t.Context(), slot, cloud.Spec{}); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestThrottledOnce: a call that the server throttles is made again.
func TestThrottledOnce(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(nil)
	f.mu.Lock()
	f.refuse = func(r *http.Request) (int, string, string) {
		if r.Method != http.MethodPost {
			return 0, "", ""
		}
		f.refuse = nil
		return http.StatusTooManyRequests, "TooManyRequests", "too many"
	}
	f.mu.Unlock()
	if _, err := p.Launch(t.Context(), rent.Slot{Kind: kind}, cloud.Spec{}); err != nil {
		t.Error(err)
	}
}

// TestOtherFleet: pods of another fleet are neither listed, marked nor returned.
func TestOtherFleet(t *testing.T) {
	f := newFakeServer(t)
	p, other := f.provider(nil), f.provider(func(c *Config) { c.Fleet = "other" })
	ours, err := p.Launch(t.Context(), rent.Slot{Kind: kind}, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Launch(t.Context(), rent.Slot{Kind: kind}, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := current{p}.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != ours.ID {
		t.Errorf("listed %+v, %v, want %s", list, err, ours.ID)
	}
	if err := p.Return(t.Context(), ours.ID, theirs.ID); err == nil ||
		!strings.Contains(err.Error(), `fleet "other"`) {
		t.Errorf("returns another fleet's pod: %v", err)
	}
	if n := f.count("delete"); n > 0 {
		t.Errorf("%d pods were deleted", n)
	}
}

// TestPod: a pod is what the template says, on a node of the slot's type, zones and market, with an
// agent that knows what it is to the fleet.
func TestPod(t *testing.T) {
	f := newFakeServer(t)
	for _, tt := range []struct {
		name  string
		nodes string
		kind  rent.Kind
		zones []string
		want  []string // in the pod, as JSON
		lacks []string
	}{
		{"Karpenter", "karpenter", kind, []string{"us-east-1a"}, []string{
			`"karpenter.sh/capacity-type":"on-demand"`, `"topology.kubernetes.io/zone":"us-east-1a"`,
			`"node.kubernetes.io/instance-type":"r5n.large"`, `"disk":"ssd"`,
			`"$(POD_UID) r5n.large/on-demand/3/1 us-east-1a"`, `"muster-gossip:7946"`,
			`"restartPolicy":"Never"`, `"uid":"uid-of-template"`, `"muster.dev/template":"v1"`,
			`"prometheus.io/scrape":"true"`, `"app.kubernetes.io/name":"muster"`,
		}, nil},
		{"EKS, several zones", "eks", rent.Kind{Type: "r5n.large", Market: rent.Spot},
			[]string{"a", "b"}, []string{
				`"eks.amazonaws.com/capacityType":"SPOT"`, `"values":["a","b"]`,
				`r5n.large/spot/3/1 any"`,
			}, []string{`"topology.kubernetes.io/zone":`}},
		{"GKE on demand, any zone", "gke", kind, nil, []string{`r5n.large/on-demand/3/1 any"`},
			[]string{"gke-spot", "topology.kubernetes.io/zone", "affinity"}},
		{"AKS", "aks", rent.Kind{Type: "r5n.large", Market: rent.Spot}, nil,
			[]string{`"kubernetes.azure.com/scalesetpriority":"spot"`}, nil},
	} {
		p := f.provider(func(c *Config) { c.Nodes = tt.nodes })
		made, err := p.newPod(t.Context(), rent.Slot{Kind: tt.kind, Ordinal: 3, Generation: 1},
			cloud.Spec{Zones: tt.zones, By: "us", Version: 7})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(made)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tt.want {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: no %s in %s", tt.name, want, text)
			}
		}
		for _, lacks := range tt.lacks {
			if strings.Contains(string(text), lacks) {
				t.Errorf("%s: %s in %s", tt.name, lacks, text)
			}
		}
	}
}

// TestTemplateFaults: a template that is none is refused with what is wrong, and nothing is made.
func TestTemplateFaults(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(nil)
	for text, want := range map[string]string{
		"":                          "no spec.containers",
		"spec: {containers: [a]}":   "is no mapping",
		"spec: [":                   "yaml",
		"metadata: {labels: {a: b}": "yaml",
	} {
		f.mu.Lock()
		f.template = text
		f.mu.Unlock()
		_, err := p.Launch(t.Context(), rent.Slot{Kind: kind}, cloud.Spec{})
		if !errors.Is(err, cloud.ErrDenied) || !strings.Contains(err.Error(), want) {
			t.Errorf("template %q: %v, want %s", text, err, want)
		}
	}
	if f.count("create") > 0 {
		t.Error("pods were made")
	}
}

// TestCheck: rights, pods that are not admitted and prices that nobody knows are found, and nothing
// is made.
func TestCheck(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(func(c *Config) { c.Types = []profiles.InstanceType{"r5n.large", "x1.large"} })
	check := func(want ...string) {
		t.Helper()
		faults := p.Check(t.Context())
		var got []string
		for _, fault := range faults {
			got = append(got, fault.What)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %q", faults, want)
		}
	}
	check("the price of x1.large")
	f.mu.Lock()
	f.denied["watch pods"] = true
	f.refuse = func(r *http.Request) (int, string, string) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
			return 422, "Invalid", "spec.containers[0].image: Required value"
		}
		return 0, "", ""
	}
	f.mu.Unlock()
	check("right to watch pods", "a pod for r5n.large", "a pod for x1.large",
		"the price of x1.large")
	f.mu.Lock()
	f.denied["create pods"] = true
	f.mu.Unlock()
	check("right to create pods", "right to watch pods")
	if len(f.pods) > 0 {
		t.Errorf("%d pods were made", len(f.pods))
	}
	p = f.provider(func(c *Config) { c.Account.Server = "http://127.0.0.1:1" })
	check("API server http://127.0.0.1:1")
}

// TestRole: the Role has the rights that Check asks for, and no others.
func TestRole(t *testing.T) {
	const want = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: muster-rent
  namespace: serving
rules:
  - {apiGroups: [""], resources: [pods], verbs: [create, delete, get, list, patch, watch]}
  - {apiGroups: [""], resources: [configmaps], resourceNames: [worker], verbs: [get]}
`
	if got := Role("serving", "worker"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestStaleList: a pod that is made while a list is on its way is not taken for one that has ended.
func TestStaleList(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(nil)
	for f.count("watch") == 0 { // its own first list is over
		runtime.Gosched()
	}
	f.mu.Lock()
	f.listed = func() {
		if _, err := p.Launch(t.Context(), rent.Slot{Kind: kind}, cloud.Spec{}); err != nil {
			t.Error(err)
		}
	}
	f.mu.Unlock()
	if err := p.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != rent.Pending {
		t.Errorf("listed %+v, %v, want a pending pod", list, err)
	}
}

// TestLateAnswer: the answer that a pod was made is older than what the watch has said of it since.
func TestLateAnswer(t *testing.T) {
	f := newFakeServer(t)
	p := f.provider(nil)
	f.created = func(name string) {
		f.set(name, map[string]any{"phase": "Running"})
		eventually(t, p, func(all []rent.Instance) bool {
			return len(all) == 1 && all[0].State == rent.Running
		})
	}
	i, err := p.Launch(t.Context(), rent.Slot{Kind: kind}, cloud.Spec{})
	if err != nil || i.State != rent.Running {
		t.Errorf("launched %+v, %v, want that it runs", i, err)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != rent.Running {
		t.Errorf("listed %+v, %v, want a pod that runs", list, err)
	}
}

// TestLabelings: a fleet.yaml may name each labeling, and no others.
func TestLabelings(t *testing.T) {
	if got, want := Labelings(), slices.Sorted(slices.Values(policy.NodeLabels())); !slices.Equal(got,
		want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
