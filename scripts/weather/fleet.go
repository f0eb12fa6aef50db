package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/process"
)

// share is how much of the queries is for each model.
var share = map[string]int{"dien": 1, "wnd": 1, "rm2": 2}

// An agent is one of the fleet's, whichever process it is at the time.
type agent struct {
	*process.Node
	// spared agents are neither killed nor drained, so that what grows in them is
	// seen.
	spared bool
	// trouble says what happens to it; it is "" if it should serve.
	trouble string
	ended   bool // as it was told to
	// changing: its certificate is.
	changing bool
}

func (a *agent) String() string { return fmt.Sprintf("agent %d", a.Index) }

// A pair are the files of a certificate.
type pair struct{ cert, key string }

func (w *weather) ca() string              { return filepath.Join(w.dir, "ca", "ca.crt") }
func (w *weather) pairOf(name string) pair { return pairIn(filepath.Join(w.dir, name), name) }
func (w *weather) gossipKey(i int) string  { return filepath.Join(w.dir, called(i), "gossip.key") }
func called(i int) string                  { return fmt.Sprintf("agent-%d", i) }
func pairIn(dir, name string) pair {
	return pair{filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")}
}
func (w *weather) tlsArgs(p pair) []string {
	return []string{"--tls-ca", w.ca(), "--tls-cert", p.cert, "--tls-key", p.key}
}
func (w *weather) tlsFiles(p pair) secure.ClientConfig {
	return secure.ClientConfig{CAFile: w.ca(), CertFile: p.cert, KeyFile: p.key}
}

// muster runs the binary.
func (w *weather) muster(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.binary, args...)
	cmd.Dir = w.dir // where no settings are
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("muster %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// issue makes the certificate of an agent, or of a client.
func (w *weather) issue(ctx context.Context, name, out string) error {
	role := "client"
	args := []string{"--dir", filepath.Dir(w.ca()), "--out", out}
	if i, err := strconv.Atoi(strings.TrimPrefix(name, "agent-")); err == nil {
		role = "agent"
		args = append(args, "--host", w.host(i))
	}
	_, err := w.muster(ctx, append([]string{"certs", "issue", role, name}, args...)...)
	return err
}

func (w *weather) host(i int) string {
	if w.network == nil {
		return "127.0.0.1"
	}
	return w.network.Host(i)
}

// types are the instance types of n agents.
func types(n int) []string {
	all := slices.Concat(slices.Repeat([]string{"g4dn.xlarge"}, (n+3)/4), slices.Repeat([]string{"c5n.2xlarge"}, n/3))
	return append(all, slices.Repeat([]string{"r5n.large"}, n-len(all))...)
}

// begin starts the agents and the clients.
func (w *weather) begin(ctx context.Context) error {
	w.fleet = &process.Fleet{
		Muster: w.binary, Dir: w.dir, Models: []string{"dien", "wnd", "rm2"},
		Args: []string{"--executor", "emulated", "--profile", "shipped", "--require-client-cert", "--log-level", w.level},
	}
	if err := w.fleet.GenerateSmall(ctx); err != nil {
		return err
	}
	if _, err := w.muster(ctx, "certs", "init", "--dir", filepath.Dir(w.ca())); err != nil {
		return err
	}
	key, err := w.muster(ctx, "keys", "generate")
	if err != nil {
		return err
	}
	// The admin's certificate stays as it is.
	for _, name := range []string{"admin", "sdk"} {
		if err := w.issue(ctx, name, filepath.Join(w.dir, name)); err != nil {
			return err
		}
	}
	if w.fleet.Dial, err = w.tlsFiles(w.pairOf("admin")).DialOptions(w.log); err != nil {
		return err
	}
	pool := types(w.size)
	w.order.Shuffle(len(pool), func(a, b int) { pool[a], pool[b] = pool[b], pool[a] })
	for i, t := range pool {
		name := called(i)
		if err := w.issue(ctx, name, filepath.Join(w.dir, name)); err != nil {
			return err
		}
		if err := os.WriteFile(w.gossipKey(i), []byte(key+"\n"), 0o600); err != nil {
			return err
		}
		namespace := ""
		if w.network != nil {
			namespace = w.network.Namespace(i)
		}
		n, err := w.fleet.Add(t, w.host(i), namespace, append(w.tlsArgs(w.pairOf(name)), "--gossip-key", w.gossipKey(i))...)
		if err != nil {
			return err
		}
		w.agents = append(w.agents, &agent{Node: n, spared: i < w.size/4})
	}
	if err := w.fleet.WaitComplete(ctx); err != nil {
		return err
	}
	if w.limit, err = w.fluidLimit(ctx, pool); err != nil {
		return err
	}
	return w.connect()
}

// connect makes the clients.
func (w *weather) connect() error {
	// A plain client has addresses of half the agents, each its own: more than are
	// in trouble at a time.
	var grpcAddresses, httpAddresses []string
	for i, a := range w.agents {
		if i%2 == 0 {
			grpcAddresses = append(grpcAddresses, a.GRPC)
		} else {
			httpAddresses = append(httpAddresses, a.HTTP)
		}
	}
	config, err := w.tlsConfig()
	if err != nil {
		return err
	}
	w.http = &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: time.Second}
	plainGRPC, err := newGRPC(grpcAddresses, config)
	if err != nil {
		return err
	}
	plainREST := newREST(httpAddresses, config)
	options, err := w.tlsFiles(w.pairOf("sdk")).DialOptions(w.log)
	if err != nil {
		return err
	}
	sdk, err := client.New(w.fleet.Addresses()[:3], client.WithDialOptions(options...))
	if err != nil {
		return err
	}
	w.clients = clients{sdk: sdk, kinds: []kind{
		{"SDK", 4, sdk.Infer}, {"plain gRPC", 2, plainGRPC.Infer}, {"plain REST", 1, plainREST.Infer},
	}}
	w.disconnect = func() {
		sdk.Close()
		plainGRPC.close()
		plainREST.close()
	}
	return nil
}

// tlsConfig is that of a client that is not Muster's.
func (w *weather) tlsConfig() (*tls.Config, error) {
	p := w.pairOf("admin")
	cert, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(w.ca())
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", w.ca())
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}, nil
}

// fluidLimit is the rate that instances could serve if queries were like water.
func (w *weather) fluidLimit(ctx context.Context, pool []string) (float64, error) {
	counts := map[string]int{}
	for _, t := range pool {
		counts[t]++
	}
	var parts []string
	for t, n := range counts {
		parts = append(parts, fmt.Sprintf("%s=%d", t, n))
	}
	args := []string{"sim", "--pool", strings.Join(parts, ","), "--rate", "1", "--queries", "10", "--seeds", "1", "--json"}
	for model, n := range share {
		args = append(args, "--model", fmt.Sprintf("%s=%d", model, n))
	}
	out, err := w.muster(ctx, args...)
	if err != nil {
		return 0, err
	}
	var found struct {
		Limit float64 `json:"fluid_limit_qps"`
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil || found.Limit <= 0 {
		return 0, fmt.Errorf("muster %s printed no fluid limit: %v", strings.Join(args, " "), err)
	}
	return found.Limit, nil
}

// get is what an agent answers on one of its HTTP addresses.
func (w *weather) get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := w.http.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return string(text), err
}

// waitReady returns when the agent takes queries, and knows its name then, which is
// another than that of its former process.
func (w *weather) waitReady(ctx context.Context, n *process.Node, former string) (name string, err error) {
	const bound = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	var last error
	for {
		if _, err := w.get(ctx, "https://"+n.HTTP+"/v2/health/ready"); err != nil {
			last = err
		} else if name, err := w.nameOf(ctx, n, former); err != nil {
			last = err
		} else {
			return name, nil
		}
		select {
		case <-poll.C:
		case <-n.Exited():
			return "", n.Stop()
		case <-ctx.Done():
			return "", fmt.Errorf("not ready within %v: %w", bound, last)
		}
	}
}

// nameOf is the name that an agent gives itself.
func (w *weather) nameOf(ctx context.Context, n *process.Node, former string) (string, error) {
	view, err := w.fleet.View(ctx, n)
	if err != nil {
		return "", err
	}
	for _, m := range view.GetMembers() {
		if m.GetAddress() == n.GRPC && m.GetName() != former {
			return m.GetName(), nil
		}
	}
	return "", errors.New("it does not know itself")
}

// agreed waits until all agents see the whole fleet and the same leader.
func (w *weather) agreed(ctx context.Context) error {
	if err := w.fleet.WaitComplete(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		said := map[string][]int{}
		for _, a := range w.agents {
			v, err := w.fleet.View(ctx, a.Node)
			what := fmt.Sprintf("%s, epoch %d", v.GetLeadership().GetLeader(), v.GetLeadership().GetEpoch())
			if err != nil {
				what = err.Error()
			} else if len(v.GetMembers()) != w.size {
				what = fmt.Sprintf("%d agents", len(v.GetMembers()))
			}
			said[what] = append(said[what], a.Index)
		}
		if len(said) == 1 {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("agents differ about who leads: %v", said)
		}
	}
}

// oneKey reports why the agents do not all have the same gossip key, and no
// other, in memory and in the file.
func (w *weather) oneKey(ctx context.Context) error {
	conn, err := grpc.NewClient(w.agents[0].GRPC, w.fleet.Dial...)
	if err != nil {
		return err
	}
	defer conn.Close()
	list, err := control.NewControlClient(conn).ListKeys(ctx, &control.ListKeysRequest{})
	if err != nil {
		return err
	}
	var faults []error
	if n := len(list.GetAgents()); n != w.size {
		faults = append(faults, fmt.Errorf("%d agents answer, want %d", n, w.size))
	}
	for _, keys := range list.GetAgents() {
		if keys.GetFault() != "" || !slices.Equal(keys.GetFingerprints(), list.GetAgents()[0].GetFingerprints()) || len(keys.GetFingerprints()) != 1 {
			faults = append(faults, fmt.Errorf("%s holds %v %s", keys.GetAgent(), keys.GetFingerprints(), keys.GetFault()))
		}
	}
	files := map[string]bool{}
	for i := range w.agents {
		text, err := os.ReadFile(w.gossipKey(i))
		if err != nil {
			return err
		}
		files[string(text)] = true
	}
	if len(files) != 1 {
		faults = append(faults, fmt.Errorf("the key files have %d different contents", len(files)))
	}
	return errors.Join(faults...)
}

// shown reports why an agent does not show the certificate that is in its file.
func (w *weather) shown(a *agent) error {
	p := w.pairOf(called(a.Index))
	want, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return err
	}
	config, err := w.tlsConfig()
	if err != nil {
		return err
	}
	for _, address := range []string{a.GRPC, a.HTTP, a.Metrics} {
		conn, err := tls.Dial("tcp", address, config)
		if err != nil {
			return err
		}
		leaf := conn.ConnectionState().PeerCertificates[0]
		conn.Close()
		if !leaf.Equal(want.Leaf) {
			return fmt.Errorf("%s shows the certificate %v, in its file is %v", address, leaf.SerialNumber, want.Leaf.SerialNumber)
		}
	}
	return nil
}
