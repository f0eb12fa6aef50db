//go:build fleet

package k8s

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/cloud/kubernetes"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

var (
	onDemand = rent.Kind{Type: "r5n.large"}
	spot     = rent.Kind{Type: "r5n.large", Market: rent.Spot}
	missing  = rent.Kind{Type: "c5n.2xlarge"} // no node is of this type
)

// A rented fleet is one whose keepers rent pods, as the chart makes it.
type rented struct {
	*cluster
	t         *testing.T
	namespace string
	account   kubernetes.Account // of a keeper
}

// newRented installs the chart in a namespace.
func newRented(t *testing.T) *rented {
	t.Helper()
	ns := shared.use(t).newNamespace(t)
	shared.install(t, ns, values)
	return &rented{shared, t, ns, shared.account(t, ns, "m-keeper")}
}

// open returns a provider, as a keeper has it, whose settings change changes.
func (r *rented) open(change func(*kubernetes.Config)) *kubernetes.Provider {
	r.t.Helper()
	config := kubernetes.Config{
		Fleet: r.namespace + ".m", Account: r.account, Template: "m-worker", Nodes: "karpenter",
		Prices: map[string]float64{
			"r5n.large": 0.149, "r5n.large@spot": 0.05, "g4dn.xlarge": 0.526, "c5n.2xlarge": 0.432,
		},
		LaunchTimeout: 2 * time.Second,
		Types:         []profiles.InstanceType{"r5n.large", "g4dn.xlarge"},
		Log:           slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	p, err := kubernetes.New(config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

// settle lists until good is content.
func (r *rented) settle(p cloud.Provider, what string, good func([]rent.Instance) bool) {
	r.t.Helper()
	var list []rent.Instance
	if err := r.await(what, func() (err error) {
		if list, err = p.List(context.Background()); err == nil && !good(list) {
			err = fmt.Errorf("listed %v", countStates(list))
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
}

func countStates(list []rent.Instance) map[rent.InstanceState]int {
	n := map[rent.InstanceState]int{}
	for _, i := range list {
		n[i.State]++
	}
	return n
}

// pods are the names of the fleet's rented pods.
func (r *rented) pods() []string {
	r.t.Helper()
	return strings.Fields(must(r.t)(r.kubectl("-n", r.namespace, "get", "pods", "-l",
		"muster.dev/fleet", "-o", "name")))
}

// A current provider lists what there is now: its list is a new provider's first.
type current struct {
	*kubernetes.Provider
	r *rented
}

func (c current) List(ctx context.Context) ([]rent.Instance, error) {
	p := c.r.open(nil)
	defer p.Close()
	return p.List(ctx)
}

// TestProvider: the contract of providers, and then each answer of the API server that means
// something.
func TestProvider(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	t.Run("contract", func(t *testing.T) {
		cloudtest.Contract(t, onDemand, current{r.open(nil), r}, current{r.open(nil), r})
	})
	t.Run("hundreds", func(t *testing.T) { testHundreds(t, r) })
	t.Run("taken", func(t *testing.T) { testTaken(t, r) })
	t.Run("short", func(t *testing.T) { testShort(t, r) })
	t.Run("refused", func(t *testing.T) { testRefused(t, r) })
	t.Run("uid", func(t *testing.T) { testUID(t, r) })
	t.Run("check", func(t *testing.T) { testCheck(t, r) })
	r.checkRights(t, r.namespace)
	t.Run("away", func(t *testing.T) { testAway(t, r) })
	t.Run("watch", func(t *testing.T) { testWatch(t, r) })
	t.Run("uninstalled", func(t *testing.T) {
		p := r.open(nil)
		if _, err := p.Launch(t.Context(), rent.Slot{Kind: spot, Ordinal: 900}, cloud.Spec{}); err != nil {
			t.Fatal(err)
		}
		must(t)(r.call("", "helm", "uninstall", "m", "--namespace", r.namespace))
		if err := r.await("an empty namespace", func() error {
			if left := r.objects(t, r.namespace); len(left) > 0 {
				return fmt.Errorf("left: %q", left)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// testHundreds: two leaders that rent the same machines at once get one pod for each, on nodes of
// the slot's type and market; one of them returns all.
func testHundreds(t *testing.T, r *rented) {
	n := nodeCount() / 4 // of the 3/8 that are of each kind
	one, other := r.open(nil), r.open(nil)
	var slots []rent.Slot
	for i := range n {
		kind := onDemand
		if i%2 == 1 {
			kind = spot
		}
		slots = append(slots, rent.Slot{Kind: kind, Ordinal: 10 + i/2})
	}
	begin := time.Now()
	var mu sync.Mutex
	ids := map[string]rent.Slot{}
	var group errgroup.Group
	group.SetLimit(16)
	for _, slot := range slots {
		for _, p := range []*kubernetes.Provider{one, other} {
			group.Go(func() error {
				i, err := p.Launch(t.Context(), slot, cloud.Spec{By: "us", Version: 7})
				mu.Lock()
				defer mu.Unlock()
				if err == nil && ids[i.ID] != slot && ids[i.ID] != (rent.Slot{}) {
					err = fmt.Errorf("%s is the instance of %s and %s", i.ID, slot, ids[i.ID])
				}
				ids[i.ID] = slot
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(ids) != n {
		t.Errorf("%d instances for %d slots", len(ids), n)
	}
	running := func(list []rent.Instance) bool { return countStates(list)[rent.Running] == n }
	r.settle(one, "all run", running)
	t.Logf("%d pods run %.1f s after the first was asked for", n, time.Since(begin).Seconds())
	list, err := one.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.State == rent.Running && (ids[i.ID] != i.Slot || i.Zone == "any" || i.Price == 0) {
			t.Errorf("listed %+v, want %s, a zone and a price", i, ids[i.ID])
		}
	}
	r.checkNodes(t, n)
	begin = time.Now()
	if err := other.Return(t.Context(), slices.Collect(maps.Keys(ids))...); err != nil {
		t.Fatal(err)
	}
	r.settle(one, "all have gone", func(list []rent.Instance) bool {
		return countStates(list)[rent.Gone] >= n && countStates(list)[rent.Running] == 0
	})
	t.Logf("all are known to have gone %.1f s after they were returned", time.Since(begin).Seconds())
}

// checkNodes: the nodes of n rented pods are of the types and markets of their slots, and none has
// two.
func (r *rented) checkNodes(t *testing.T, n int) {
	t.Helper()
	labels := map[string]string{}
	for _, line := range strings.Split(must(t)(r.kubectl("get", "nodes", "-o", "jsonpath={range .items[*]}"+
		`{.metadata.name} {.metadata.labels.node\.kubernetes\.io/instance-type}/`+
		`{.metadata.labels.karpenter\.sh/capacity-type}{"\n"}{end}`)), "\n") {
		name, label, _ := strings.Cut(line, " ")
		labels[name] = label
	}
	taken := map[string]bool{}
	for _, line := range strings.Split(must(t)(r.kubectl("-n", r.namespace, "get", "pods", "-l",
		"muster.dev/fleet", "-o", "jsonpath={range .items[*]}{.spec.nodeName} "+
			`{.metadata.annotations.muster\.dev/slot}{"\n"}{end}`)), "\n") {
		node, slot, _ := strings.Cut(line, " ")
		if taken[node] || !strings.HasPrefix(slot, labels[node]+"/") {
			t.Errorf("%s is on the node %q of %s, which has one already: %t", slot, node, labels[node],
				taken[node])
		}
		taken[node] = true
	}
	if len(taken) != n {
		t.Errorf("%d nodes have pods, want %d", len(taken), n)
	}
}

// testTaken: a spot node that is drained, as it is when it is taken back, ends its pod, and so does
// one that vanishes.
func testTaken(t *testing.T, r *rented) {
	p := r.open(nil)
	for ordinal, take := range []func(node string){
		func(node string) {
			must(t)(r.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data",
				"--timeout=60s"))
			t.Cleanup(func() { must(t)(r.kubectl("uncordon", node)) })
		},
		func(node string) { // its pod is an orphan to the controllers after 40 s
			if !testing.Short() {
				must(t)(r.kubectl("delete", "node", node))
			}
		},
	} {
		if ordinal == 1 && testing.Short() {
			continue
		}
		slot := rent.Slot{Kind: spot, Ordinal: 500 + ordinal}
		made, err := p.Launch(t.Context(), slot, cloud.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		is := func(state rent.InstanceState) func([]rent.Instance) bool {
			return func(list []rent.Instance) bool {
				return slices.ContainsFunc(list, func(i rent.Instance) bool {
					return i.ID == made.ID && i.State == state
				})
			}
		}
		r.settle(p, "it runs", is(rent.Running))
		take(must(t)(r.kubectl("-n", r.namespace, "get", "pods", "-l", "muster.dev/fleet", "-o",
			"jsonpath={.items[?(@.metadata.uid=='"+made.ID+"')].spec.nodeName}")))
		r.settle(p, "it has gone", is(rent.Gone))
		if _, err := p.Launch(t.Context(), slot, cloud.Spec{}); !errors.Is(err, cloud.ErrSpent) {
			t.Errorf("the slot of a machine that was taken gives %v, want ErrSpent", err)
		}
	}
}

// testShort: a type that no node has is short after the launch timeout, in the scheduler's words.
func testShort(t *testing.T, r *rented) {
	p := r.open(nil)
	slot := rent.Slot{Kind: missing}
	made, err := p.Launch(t.Context(), slot, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	r.settle(p, "it is given up", func(list []rent.Instance) bool {
		return slices.ContainsFunc(list, func(i rent.Instance) bool {
			return i.ID == made.ID && i.State == rent.Gone
		})
	})
	slot.Generation++
	_, err = p.Launch(t.Context(), slot, cloud.Spec{})
	short, ok := errors.AsType[*cloud.ErrShort](err)
	if !ok || !strings.Contains(short.Why, "nodes are available") {
		t.Errorf("%v, want that it is short", err)
	}
	if left := r.pods(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// testRefused: what the API server refuses is told apart.
func testRefused(t *testing.T, r *rented) {
	check := func(what string, p cloud.Provider, kind error, words string) {
		t.Helper()
		_, err := p.Launch(t.Context(), rent.Slot{Kind: onDemand, Ordinal: 700}, cloud.Spec{})
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %v, %s", what, err, kind, words)
		}
	}
	reader := r.newAccount(t, "reader", `[{apiGroups: [""], resources: [configmaps], verbs: [get]}]`)
	check("no rights", r.open(func(c *kubernetes.Config) { c.Account = reader }), cloud.ErrDenied,
		"cannot create resource")
	check("no template", r.open(func(c *kubernetes.Config) { c.Template = "none" }), cloud.ErrDenied,
		"none")
	gone := r.account
	gone.TokenFile = "/dev/null"
	check("no token", r.open(func(c *kubernetes.Config) { c.Account = gone }), cloud.ErrDenied,
		"forbidden")

	must(t)(r.apply(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: few, namespace: ` +
		r.namespace + `}, spec: {hard: {pods: "3"}}}`))
	if err := r.await("the quota", func() error {
		out, err := r.kubectl("-n", r.namespace, "get", "resourcequota", "few", "-o",
			"jsonpath={.status.used.pods}")
		if err == nil && out == "" {
			err = errors.New("not counted yet")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	check("a quota", r.open(nil), cloud.ErrQuota, "exceeded quota: few")
	must(t)(r.kubectl("-n", r.namespace, "delete", "resourcequota", "few"))

	// One whose template asks for more than the namespace admits, and whose calls are too many.
	must(t)(r.apply(fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: loose, namespace: %s},
data: {pod.yaml: "spec: {containers: [{name: muster, image: muster}]}"}}`, r.namespace)))
	t.Cleanup(func() { must(t)(r.kubectl("-n", r.namespace, "delete", "configmap", "loose")) })
	loose := r.newAccount(t, "loose", `[{apiGroups: [""], resources: [configmaps, pods], verbs: ["*"]}]`)
	p := r.open(func(c *kubernetes.Config) { c.Account, c.Template = loose, "loose" })
	check("a pod security standard", p, cloud.ErrDenied, "violates PodSecurity")
	name := "muster-" + r.namespace
	must(t)(r.apply(fmt.Sprintf(`{apiVersion: flowcontrol.apiserver.k8s.io/v1, metadata: {name: %[1]s},
kind: PriorityLevelConfiguration, spec: {type: Limited, limited: {nominalConcurrencyShares: 0, borrowingLimitPercent: 0,
limitResponse: {type: Reject}}}}
---
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: %[1]s}, spec: {
matchingPrecedence: 2, priorityLevelConfiguration: {name: %[1]s}, rules: [{subjects: [{
kind: ServiceAccount, serviceAccount: {name: loose, namespace: %[2]s}}], resourceRules: [{
verbs: [create], apiGroups: [""], resources: [pods], namespaces: ["*"]}]}]}}`, name, r.namespace)))
	t.Cleanup(func() {
		must(t)(r.kubectl("delete", "flowschema,prioritylevelconfiguration", name))
	})
	if err := r.await("a launch that is throttled", func() error {
		var group errgroup.Group // one at a time is admitted whatever the limit
		for i := range 40 {
			group.Go(func() error {
				slot := rent.Slot{Kind: onDemand, Ordinal: 700 + i}
				if _, err := p.Launch(t.Context(), slot, cloud.Spec{}); errors.Is(err, cloud.ErrThrottled) {
					return err
				}
				return nil
			})
		}
		if group.Wait() == nil {
			return errors.New("none")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// newAccount makes a service account with rights in the namespace.
func (r *rented) newAccount(t *testing.T, name, rules string) kubernetes.Account {
	t.Helper()
	must(t)(r.apply(fmt.Sprintf(`{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[1]s,
namespace: %[2]s}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: %[1]s, namespace: %[2]s},
rules: %[3]s}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: %[1]s, namespace: %[2]s},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s},
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: %[2]s}]}`, name, r.namespace, rules)))
	t.Cleanup(func() {
		must(t)(r.kubectl("-n", r.namespace, "delete", "serviceaccount,role,rolebinding", name))
	})
	return r.cluster.account(t, r.namespace, name)
}

// testUID: a pod is ended by its UID: the one that came after it with its name stays.
func testUID(t *testing.T, r *rented) {
	p := r.open(nil)
	slot := rent.Slot{Kind: onDemand, Ordinal: 800}
	made, err := p.Launch(t.Context(), slot, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	// Another provider knows the pod, and has not heard of its end.
	name := strings.TrimPrefix(r.pods()[0], "pod/")
	text := must(t)(r.kubectl("-n", r.namespace, "get", "pod", name, "-o", "json"))
	var pod map[string]any
	if err := json.Unmarshal([]byte(text), &pod); err != nil {
		t.Fatal(err)
	}
	must(t)(r.kubectl("-n", r.namespace, "delete", "pod", name, "--grace-period=0", "--force"))
	metadata := pod["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "managedFields", "creationTimestamp"} {
		delete(metadata, key)
	}
	delete(pod, "status")
	delete(pod["spec"].(map[string]any), "nodeName")
	again, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	must(t)(r.call(string(again), "kubectl", "-n", r.namespace, "create", "-f", "-"))
	if err := p.Return(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	if left := r.pods(); len(left) != 1 {
		t.Errorf("left: %q, want the second pod", left)
	}
	must(t)(r.kubectl("-n", r.namespace, "delete", "pod", name))
}

// A relay stands between a provider and the API server, and changes what a watch asks for.
type relay struct {
	mu        sync.Mutex
	lists     int
	bookmarks int
	codes     []int    // of errors that a watch ended with
	versions  []string // that the next watches ask for
}

func newRelay(t *testing.T, r *rented) (*relay, string) {
	to, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	y := &relay{}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval = r.client.Transport, -1
	proxy.ModifyResponse = func(resp *http.Response) error {
		if resp.Request.URL.Query().Get("watch") != "" {
			resp.Body = y.readEvents(resp.Body)
		}
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		query := req.URL.Query()
		y.mu.Lock()
		if query.Get("watch") != "" {
			query.Set("timeoutSeconds", "4") // a bookmark comes before the end
			if len(y.versions) > 0 {
				query.Set("resourceVersion", y.versions[0])
				y.versions = y.versions[1:]
			}
			req.URL.RawQuery = query.Encode()
		} else if req.Method == http.MethodGet && query.Has("labelSelector") {
			y.lists++
		}
		y.mu.Unlock()
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	return y, server.URL
}

// readEvents counts the events of a watch as they pass.
func (y *relay) readEvents(from io.ReadCloser) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		defer from.Close()
		lines := bufio.NewReader(from)
		for {
			line, err := lines.ReadBytes('\n')
			var e struct {
				Type   string
				Object struct{ Code int }
			}
			if json.Unmarshal(bytes.TrimSpace(line), &e) == nil {
				y.mu.Lock()
				if e.Type == "BOOKMARK" {
					y.bookmarks++
				} else if e.Type == "ERROR" {
					y.codes = append(y.codes, e.Object.Code)
				}
				y.mu.Unlock()
			}
			if _, writeErr := in.Write(line); err != nil || writeErr != nil {
				in.CloseWithError(err)
				return
			}
		}
	}()
	return out
}

// testWatch: a watch that ends goes on where it was, after the last bookmark, and one whose version
// is too old begins with a list; nothing is lost.
func testWatch(t *testing.T, r *rented) {
	y, at := newRelay(t, r)
	count := func(of *int) int {
		y.mu.Lock()
		defer y.mu.Unlock()
		return *of
	}
	p := r.open(func(c *kubernetes.Config) { c.Account.Server, c.Account.CAFile = at, "" })
	// A server that has just begun sends none before the first event.
	made, err := p.Launch(t.Context(), rent.Slot{Kind: onDemand, Ordinal: 810}, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.await("two bookmarks", func() error {
		if n := count(&y.bookmarks); n < 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := count(&y.lists); n != 1 {
		t.Errorf("%d lists, want one: watches go on where the last one ended", n)
	}
	// The API server has just begun anew, so it knows no event of the time before.
	lists := count(&y.lists)
	y.mu.Lock()
	y.versions = []string{"1"}
	y.mu.Unlock()
	if err := r.await("a list", func() error {
		if count(&y.lists) == lists {
			return errors.New("none")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	y.mu.Lock()
	if !slices.Equal(y.codes, []int{http.StatusGone}) {
		t.Errorf("watches ended with the errors %v, want 410", y.codes)
	}
	y.mu.Unlock()
	if err := p.Return(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	r.settle(p, "its end is known", func(list []rent.Instance) bool {
		return countStates(list)[rent.Gone] == len(list) && len(list) > 0
	})
}

// testCheck: what renting needs is there, by the API server's own authorizer and dry runs, and what
// is not there is named.
func testCheck(t *testing.T, r *rented) {
	faults := func(change func(*kubernetes.Config)) string {
		return fmt.Sprint(r.open(change).Check(t.Context()))
	}
	if got := faults(func(c *kubernetes.Config) { c.Nodes = "eks" }); got != "[]" {
		t.Errorf("faults %s", got)
	}
	if got := faults(nil); !strings.Contains(got, "does not know karpenter.sh") ||
		strings.Contains(got, "right to") {
		t.Errorf("without Karpenter: %s", got)
	}
	worker := shared.account(t, r.namespace, "m-worker")
	got := faults(func(c *kubernetes.Config) { c.Account = worker })
	if n := strings.Count(got, "right to"); n != 7 {
		t.Errorf("%d rights are missing to a worker, want 7: %s", n, got)
	}
	if left := r.pods(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// testAway: while the API server is away lists fail, and nothing is taken to have ended; when it is
// back all goes on.
func testAway(t *testing.T, r *rented) {
	p := r.open(nil)
	slot := rent.Slot{Kind: spot, Ordinal: 820}
	made, err := p.Launch(t.Context(), slot, cloud.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	running := func(list []rent.Instance) bool { return countStates(list)[rent.Running] == 1 }
	r.settle(p, "it runs", running)
	r.takeAway(t, func() {
		if err := r.await("that lists fail", func() error {
			if _, err := p.List(t.Context()); err != nil {
				return nil
			}
			return errors.New("they succeed")
		}); err != nil {
			t.Error(err)
		}
		_, err = p.Launch(t.Context(), rent.Slot{Kind: spot, Ordinal: 821}, cloud.Spec{})
		for _, kind := range []error{cloud.ErrDenied, cloud.ErrQuota, cloud.ErrSpent,
			cloud.ErrThrottled} {
			if err == nil || errors.Is(err, kind) {
				t.Errorf("a launch while nobody answers: %v", err)
			}
		}
	})
	r.settle(p, "it still runs", running)
	if again, err := p.Launch(t.Context(), slot, cloud.Spec{}); err != nil || again.ID != made.ID {
		t.Errorf("the slot is %+v, %v, want %s", again, err, made.ID)
	}
	if err := p.Return(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	r.settle(p, "it has gone", func(list []rent.Instance) bool {
		return countStates(list)[rent.Gone] == len(list)
	})
}
