//go:build fleet

package k8s

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// workerPod is what the pods of TestServing are made from: %[1]s is where they join, %[2]s the
// models.
const workerPod = `spec:
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: muster
      image: localhost/muster:dev
      args: [agent, --executor, emulated, --profile, shipped, --leader, never, --join, "%[1]s",
        --model-dir, "%[2]s"]
      resources: {requests: {cpu: "3"}}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// servingFleet is a fleet whose first choice no node of the cluster can be.
const servingFleet = `fleet: %[1]s
mode: auto
limits:
  max_price_usd_per_hour: 4
  types: {c5n.2xlarge: {min: 1, max: 2}, g4dn.xlarge: {max: 3}, r5n.large: {max: 6}}
calm: 6s
kubernetes: {server: "%[2]s", namespace: %[1]s, template: worker, nodes: eks, launch_timeout: 3s}
`

// A kubelet starts an agent on this machine for each pod of a namespace that is on a node, and ends
// it with the pod.
type kubelet struct {
	c         *cluster
	namespace string
	running   map[string]*harness.Agent // by UID
	ending    sync.WaitGroup
}

// A boundPod is what a kubelet reads of a pod.
type boundPod struct {
	Metadata struct {
		Name, UID         string
		DeletionTimestamp *time.Time
	}
	Spec struct {
		NodeName   string
		Containers []struct {
			Args []string
			Env  []struct{ Name, Value string }
		}
	}
}

// follow runs until ctx ends; then all agents have ended.
func (k *kubelet) follow(ctx context.Context, t *testing.T) {
	runtime.LockOSThread() // the kernel stops agents when the thread that started them ends
	for ctx.Err() == nil {
		if err := k.watch(ctx); err != nil && ctx.Err() == nil {
			t.Logf("kubelet: %v", err)
		}
		select {
		case <-time.After(time.Second): // while the API server is away
		case <-ctx.Done():
		}
	}
	for uid := range k.running {
		k.end(uid)
	}
	k.ending.Wait()
}

// watch takes what there is, and then each change until the watch breaks.
func (k *kubelet) watch(ctx context.Context) error {
	var list struct{ Items []boundPod }
	text, err := k.c.kubectl("-n", k.namespace, "get", "pods", "-o", "json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return err
	}
	there := map[string]bool{}
	for _, p := range list.Items {
		there[p.Metadata.UID] = true
		if err := k.see(&p); err != nil {
			return err
		}
	}
	for uid := range k.running {
		if !there[uid] {
			k.end(uid)
		}
	}
	watch := exec.CommandContext(ctx, filepath.Join(os.Getenv("MUSTER_K8S_CLIENTS"), "kubectl"),
		"--kubeconfig", k.c.config, "-n", k.namespace, "get", "pods", "--watch",
		"--output-watch-events", "-o", "json")
	watch.SysProcAttr = harness.ChildAttributes()
	out, err := watch.StdoutPipe()
	if err != nil {
		return err
	}
	if err := watch.Start(); err != nil {
		return err
	}
	defer watch.Wait()
	for events := json.NewDecoder(out); ; {
		var e struct {
			Type   string
			Object boundPod
		}
		if err := events.Decode(&e); err != nil {
			return err
		}
		if e.Type == "DELETED" {
			k.end(e.Object.Metadata.UID)
		} else if err := k.see(&e.Object); err != nil {
			return err
		}
	}
}

// see starts the pod's agent if a node has just got it, and ends it if the pod is deleted.
func (k *kubelet) see(p *boundPod) error {
	uid := p.Metadata.UID
	switch {
	case p.Metadata.DeletionTimestamp != nil:
		k.end(uid)
		return nil
	case p.Spec.NodeName == "" || k.running[uid] != nil:
		return nil
	}
	agent := p.Spec.Containers[0]
	var env []string
	for _, e := range agent.Env {
		env = append(env, e.Name+"="+strings.ReplaceAll(e.Value, "$(POD_UID)", uid))
	}
	a, err := harness.Start(harness.Config{
		Muster: *musterFile, Log: k.c.path(p.Metadata.Name + ".log"), Env: env,
		Args: append(slices.Clone(agent.Args[1:]), "--state-dir", k.c.path("state-"+uid)),
	})
	if err != nil {
		return err
	}
	k.running[uid] = a
	go func() { // an agent that has drained ends, and the pod with it
		<-a.Exited()
		_, _ = k.c.kubectl("-n", k.namespace, "patch", "pod", p.Metadata.Name, "--subresource=status",
			"--type=merge", "--patch", fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Succeeded"}}`,
				uid)) // it may be gone
	}()
	return nil
}

// end ends a pod's agent as a kubelet does, with time to drain.
func (k *kubelet) end(uid string) {
	if a := k.running[uid]; a != nil {
		delete(k.running, uid)
		k.ending.Go(func() { _ = a.Stop() })
	}
}

// proxy runs kubectl's proxy as a service account, and returns its URL.
func (c *cluster) proxy(t *testing.T, namespace, account string) string {
	t.Helper()
	token := must(t)(c.kubectl("-n", namespace, "create", "token", account))
	cmd := exec.Command(filepath.Join(os.Getenv("MUSTER_K8S_CLIENTS"), "kubectl"), "--kubeconfig",
		c.config, "--token", token, "proxy", "--port=0")
	cmd.SysProcAttr = harness.ChildAttributes()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, ok := strings.Cut(strings.TrimSpace(line), "Starting to serve on ")
	if !ok {
		t.Fatalf("kubectl proxy says %q, %v", line, err)
	}
	return "http://" + address
}

// TestServing: a leader with the rights that `muster fleet policy` prints rents pods, leaves a type
// alone that no node is of, and replaces a node that is taken; without the API server the fleet
// serves on; at the end all is returned. No query fails meanwhile.
func TestServing(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits for minutes")
	}
	runtime.LockOSThread()
	c, ns := shared, shared.use(t).newNamespace(t)
	must(t)(c.kubectl("-n", ns, "create", "serviceaccount", "muster-keeper"))
	dir := c.path("serving")
	f := &harness.Fleet{
		Muster: *musterFile, Dir: dir, Models: []string{"rm2"}, Args: harness.Emulated(),
	}
	t.Cleanup(f.Stop)
	if err := f.GenerateSmall(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "fleet.yaml")
	text := fmt.Sprintf(servingFleet, ns, c.proxy(t, ns, "muster-keeper"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	muster := func(args ...string) (string, error) {
		out, err := exec.Command(*musterFile, args...).Output()
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("muster %v: %w: %s", args, err, failed.Stderr)
		}
		return string(out), err
	}
	if _, err := muster("fleet", "check", file); err == nil ||
		strings.Count(err.Error(), "right to") != 7 {
		t.Errorf("a check without rights says %v", err)
	}
	role := must(t)(muster("fleet", "policy", file))
	must(t)(c.apply(role))
	must(t)(c.kubectl("-n", ns, "create", "rolebinding", "muster-rent", "--role=muster-rent",
		"--serviceaccount="+ns+":muster-keeper"))
	if _, err := f.Add(t.Context(), "g4dn.xlarge", "--rent", file); err != nil {
		t.Fatal(err)
	}
	// With a second one what waits for rented machines is not refused.
	if _, err := f.Add(t.Context(), "g4dn.xlarge", "--leader", "never"); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitComplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t)(c.apply(fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: worker,
namespace: %s}, data: {pod.yaml: %q}}`, ns, fmt.Sprintf(workerPod, f.Nodes[0].Gossip,
		filepath.Join(dir, "models")))))
	must(t)(muster("fleet", "check", file))

	ctx, stop := context.WithCancel(context.Background())
	k := &kubelet{c: c, namespace: ns, running: map[string]*harness.Agent{}}
	done := make(chan struct{})
	go func() { defer close(done); k.follow(ctx, t) }()
	t.Cleanup(func() { stop(); <-done })

	sdk, err := client.New(f.Addresses())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sdk.Close() })
	driver, err := harness.NewDriver(t.Context(), sdk, map[string]float64{"rm2": 1}, harness.Patience)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := driver.Start(t.Context(), harness.Load{Rate: 25, Seed: 163}); err != nil {
		t.Fatal(err)
	}
	serving := func() map[string]int { // by instance
		n := map[string]int{}
		s, err := sdk.Fleet(t.Context())
		for _, m := range s.GetMachines() {
			if m.GetPhase() == "serving" && err == nil {
				n[m.GetInstance()]++
			}
		}
		return n
	}
	await := func(what string, good func() bool) {
		t.Helper()
		if err := c.await(what, func() error {
			if good() {
				return nil
			}
			s, err := sdk.Fleet(t.Context())
			return fmt.Errorf("the fleet is %v, %v", s, err)
		}); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s after %.0f s", what, time.Since(begin).Seconds())
	}
	await("a type is left alone", func() bool {
		out, err := muster("fleet", "status", "--server", f.Nodes[0].GRPC)
		return err == nil && strings.Contains(out, "c5n.2xlarge") &&
			strings.Contains(out, "nodes are available")
	})

	await("machines of the next type serve", func() bool { return len(serving()) > 0 })

	// A node is taken: its pod is evicted.
	var before []string
	for id := range serving() {
		before = append(before, id)
	}
	node := must(t)(c.kubectl("-n", ns, "get", "pods", "-o",
		"jsonpath={.items[?(@.metadata.uid=='"+before[0]+"')].spec.nodeName}"))
	must(t)(c.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout=60s"))
	await("another machine serves in its place", func() bool {
		n := serving()
		return n[before[0]] == 0 && len(n) >= len(before)
	})
	must(t)(c.kubectl("uncordon", node))

	c.takeAway(t, func() {
		away := 15 * time.Second
		if !testing.Short() {
			away = time.Minute
		}
		sent := driver.Sent()
		if err := harness.Settle(t.Context(), away); err != nil {
			t.Error(err)
		}
		if n := driver.Sent() - sent; n < int(away.Seconds())*8 {
			t.Errorf("%d queries were sent meanwhile", n)
		}
	})
	await("machines serve, and the API server is back", func() bool { return len(serving()) > 0 })
	if _, err := sdk.SetFleet(t.Context(), &control.SetFleetRequest{
		Change: &control.SetFleetRequest_Destroy{Destroy: true}}); err != nil {
		t.Fatal(err)
	}
	await("nothing is rented", func() bool {
		s, err := sdk.Fleet(t.Context())
		// One whose agent has drained is listed for an hour.
		out, podsErr := c.kubectl("-n", ns, "get", "pods", "-o", "name", "--field-selector",
			"status.phase!=Succeeded,status.phase!=Failed")
		return errors.Join(err, podsErr) == nil && len(s.GetMachines()) == 0 && out == ""
	})
	if err := driver.Stop(); err != nil {
		t.Error(err)
	}
	count := driver.Between(begin, time.Now())
	t.Logf("all: %v", count)
	if count.Failed > 0 || count.Wrong > 0 {
		t.Errorf("%d queries failed and %d answers were wrong, want none", count.Failed, count.Wrong)
	}
}
