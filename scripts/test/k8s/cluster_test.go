//go:build fleet

package k8s

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-serve/muster/cloud/kubernetes"
	"github.com/muster-serve/muster/scripts/test/harness"
)

var (
	musterFile = flag.String("muster", "bin/muster", "the binary to test")
	workFolder = flag.String("dir", "build/k8s", "directory for state and logs")
)

const (
	chart      = "deploy/helm/muster"
	adminToken = "admin-token"
)

// shared is the cluster of all tests. Each has a namespace of its own.
var shared *cluster

// TestMain starts the cluster. It runs in the repository's root, which paths are relative to.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("MUSTER_K8S") == "" {
		fmt.Println("k8s: skipped: no MUSTER_K8S; `make k8s` runs this")
		return 0
	}
	if err := harness.EnterRepository(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	begin := time.Now()
	c, err := startCluster()
	if c != nil {
		defer c.stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("a cluster of %d nodes is ready after %.1f s\n", nodeCount(), time.Since(begin).Seconds())
	shared = c
	return m.Run()
}

// A cluster is a control plane of processes, on loopback.
type cluster struct {
	dir     string
	url     string // of the API server
	ca      string // the file with its CA
	etcd    string // the URL of etcd
	port    string
	program string // of all components
	config  string // the file with the administrator's kubeconfig
	client  *http.Client

	// serves is held for reading by each test, and for writing while the API server is away.
	serves sync.RWMutex

	// starts are called one after another from a goroutine with a thread of its own: the kernel stops
	// a process when the thread that started it ends.
	starts chan func()

	mu        sync.Mutex
	processes map[string]*component
	order     []string
}

// A component is a process of the cluster.
type component struct {
	*exec.Cmd
	exited chan struct{} // closed when it has ended
}

// startCluster returns what was started, also with an error.
func startCluster() (*cluster, error) {
	dir, err := filepath.Abs(*workFolder)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	ports, err := harness.FreePorts("127.0.0.1", 4)
	if err != nil {
		return nil, err
	}
	c := &cluster{
		dir: dir, url: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), port: fmt.Sprint(ports[0]),
		etcd:    fmt.Sprintf("http://127.0.0.1:%d", ports[1]),
		ca:      filepath.Join(dir, "certificates", "apiserver.crt"),
		program: filepath.Join(os.Getenv("MUSTER_K8S"), "cluster"),
		config:  filepath.Join(dir, "kubeconfig"), processes: map[string]*component{},
		starts: make(chan func()),
	}
	go func() {
		runtime.LockOSThread()
		for start := range c.starts {
			start()
		}
	}()
	if err := c.writeFiles(); err != nil {
		return c, err
	}
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	err = c.start("etcd", "--data-dir="+c.path("etcd"), "--listen-client-urls="+c.etcd,
		"--advertise-client-urls="+c.etcd, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return c, err
	}
	if err := c.startServer(); err != nil {
		return c, err
	}
	if err := c.await("the API server", func() error { return c.get("/readyz") }); err != nil {
		return c, err
	}
	text, err := os.ReadFile(c.ca)
	if err != nil {
		return c, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	c.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	for name, args := range map[string][]string{
		"kube-controller-manager": {
			"--service-account-private-key-file=" + c.path("accounts.key"),
			"--root-ca-file=" + c.ca, "--leader-elect=false", "--secure-port=0",
			"--use-service-account-credentials=false", "--kube-api-qps=500", "--kube-api-burst=500",
			"--terminated-pod-gc-threshold=1000", "--concurrent-gc-syncs=20",
		},
		"kube-scheduler": {"--leader-elect=false", "--secure-port=0", "--kube-api-qps=500",
			"--kube-api-burst=500"},
		"kwok": {"--manage-all-nodes", "--config=" + c.path("stages.yaml"),
			fmt.Sprintf("--server-address=127.0.0.1:%d", ports[3])},
	} {
		if err := c.start(name, append(args, "--kubeconfig="+c.config)...); err != nil {
			return c, err
		}
	}
	if _, err := c.apply(nodes()); err != nil {
		return c, err
	}
	_, err = c.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
	return c, err
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// writeFiles writes what the components read.
func (c *cluster) writeFiles() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	stages, err := exec.Command(c.program, "stages").Output()
	if err != nil {
		return err
	}
	c.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // until it has written its CA
	}}
	for name, text := range map[string]string{
		"accounts.key": string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
		"stages.yaml":  string(stages),
		"tokens.csv":   adminToken + ",admin,admin,system:masters\n",
		// What service accounts ask for is kept, for the test of their rights.
		"audit.yaml": `---
{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived],
rules: [{level: Metadata, userGroups: ["system:serviceaccounts"]}, {level: None}]}`,
		"kubeconfig": fmt.Sprintf(`---
{apiVersion: v1, kind: Config, current-context: it,
clusters: [{name: it, cluster: {server: %q, certificate-authority: %q}}],
users: [{name: it, user: {token: %s}}],
contexts: [{name: it, context: {cluster: it, user: it}}]}`, c.url, c.ca, adminToken),
	} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts the API server.
func (c *cluster) startServer() error {
	return c.start("kube-apiserver", "--etcd-servers="+c.etcd, "--secure-port="+c.port,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--cert-dir="+filepath.Dir(c.ca), "--token-auth-file="+c.path("tokens.csv"),
		"--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("accounts.key"),
		"--service-account-signing-key-file="+c.path("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
		"--audit-policy-file="+c.path("audit.yaml"), "--audit-log-path="+c.path("audit.log"))
}

// start starts a component.
func (c *cluster) start(name string, args ...string) error {
	log, err := os.OpenFile(c.path(name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.program, append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, harness.ChildAttributes()
	started := make(chan error)
	c.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	of := &component{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(of.exited) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[name] = of
	c.order = append(c.order, name)
	return nil
}

// kill ends a component at once.
func (c *cluster) kill(name string) {
	c.mu.Lock()
	of := c.processes[name]
	delete(c.processes, name)
	c.mu.Unlock()
	if of != nil {
		_ = of.Process.Signal(syscall.SIGKILL)
		<-of.exited
	}
}

// hasEnded is an error if a component has ended by itself.
func (c *cluster) hasEnded() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, of := range c.processes {
		select {
		case <-of.exited:
			return fmt.Errorf("%s has ended: see %s", name, c.path(name+".log"))
		default:
		}
	}
	return nil
}

func (c *cluster) stop() {
	for i := range c.order {
		c.kill(c.order[len(c.order)-1-i])
	}
}

// use has the API server stay until the test ends.
func (c *cluster) use(t *testing.T) *cluster {
	c.serves.RLock()
	t.Cleanup(c.serves.RUnlock)
	return c
}

// takeAway kills the API server once no other test needs it, and starts it again after do. The test
// is one that uses it.
func (c *cluster) takeAway(t *testing.T, do func()) {
	t.Helper()
	c.serves.RUnlock()
	c.serves.Lock()
	defer func() { c.serves.Unlock(); c.serves.RLock() }()
	c.kill("kube-apiserver")
	do()
	if err := c.startServer(); err != nil {
		t.Fatal(err)
	}
	if err := c.await("the API server", func() error { return c.get("/readyz") }); err != nil {
		t.Fatal(err)
	}
}

// get asks the API server as the administrator.
func (c *cluster) get(path string) error {
	req, err := http.NewRequest("GET", c.url+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return nil
}

// await tries until it succeeds. It gives up after some minutes, which only a machine that does much
// else takes.
func (c *cluster) await(what string, try func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if err := c.hasEnded(); err != nil {
			return err
		}
		select {
		case <-time.After(500 * time.Millisecond): // nothing tells of it
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; logs in %s", what, err, c.dir)
		}
	}
}

// call runs kubectl or helm, and returns what it prints.
func (c *cluster) call(input, name string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(os.Getenv("MUSTER_K8S_CLIENTS"), name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.config, "KUBECACHEDIR="+c.path("cache"),
		"HELM_CACHE_HOME="+c.path("helm"), "HELM_CONFIG_HOME="+c.path("helm"),
		"HELM_DATA_HOME="+c.path("helm"))
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err,
			strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (c *cluster) kubectl(args ...string) (string, error) { return c.call("", "kubectl", args...) }

// apply applies objects in YAML. What begins with a brace Kubernetes takes for JSON.
func (c *cluster) apply(objects string, args ...string) (string, error) {
	return c.call("---\n"+objects, "kubectl", append([]string{
		"apply", "--server-side", "--validate=strict", "-f", "-"}, args...)...)
}

// must returns what a call returns that must succeed.
func must(t *testing.T) func(string, error) string {
	return func(out string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
}

// nodeCount is how many nodes there are, of which three of four are of the type r5n.large, and half
// of each type are spot machines.
func nodeCount() int {
	if testing.Short() {
		return 100
	}
	return 500
}

func nodes() string {
	var text strings.Builder
	for i := range nodeCount() {
		of, market := "r5n.large", "on-demand"
		if i%4 == 0 {
			of = "g4dn.xlarge"
		}
		if i/4%2 == 1 {
			market = "spot"
		}
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Node
metadata:
  name: node-%d
  labels:
    kubernetes.io/hostname: node-%d
    node.kubernetes.io/instance-type: %s
    topology.kubernetes.io/region: us-east-1
    topology.kubernetes.io/zone: us-east-1%c
    karpenter.sh/capacity-type: %s
    eks.amazonaws.com/capacityType: %s
status:
  allocatable: {cpu: "4", memory: 16Gi, pods: "10"}
  capacity: {cpu: "4", memory: 16Gi, pods: "10"}
`, i, i, of, 'a'+rune(i%3), market,
			strings.ToUpper(strings.ReplaceAll(market, "-", "_")))
	}
	return text.String()
}

// newNamespace makes a namespace that admits only pods that are restricted as far as Kubernetes
// knows how to, and has it deleted at the end.
func (c *cluster) newNamespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	must(t)(c.apply(fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {
pod-security.kubernetes.io/enforce: restricted}}}`, name)))
	t.Cleanup(func() {
		if _, err := c.kubectl("delete", "namespace", name, "--timeout=120s"); err != nil {
			t.Error(err)
		}
	})
	if err := c.await("the namespace's service account", func() error {
		_, err := c.kubectl("-n", name, "get", "serviceaccount", "default")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return name
}

// account is that of a pod with a service account: its token is one that the API server has made.
func (c *cluster) account(t *testing.T, namespace, name string) kubernetes.Account {
	t.Helper()
	token := must(t)(c.kubectl("-n", namespace, "create", "token", name))
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubernetes.Account{Server: c.url, TokenFile: file, CAFile: c.ca, Namespace: namespace}
}

// A right is what an account asked for.
type right struct{ Verb, Resource, Name string }

// used returns what the API server let an account do, by its audit log. The names of pods are left
// out.
func (c *cluster) used(t *testing.T, namespace, account string) map[right]bool {
	t.Helper()
	file, err := os.Open(c.path("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := map[right]bool{}
	lines := bufio.NewScanner(file)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var e struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.User.Username != "system:serviceaccount:"+namespace+":"+account ||
			e.ResponseStatus.Code == http.StatusForbidden {
			continue
		}
		if e.ObjectRef.Resource == "pods" {
			e.ObjectRef.Name = ""
		}
		all[right{e.Verb, e.ObjectRef.Resource, e.ObjectRef.Name}] = true
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
