//go:build fleet

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testProxy has a real nginx, which keeps connections to two agents, send them POSTs while one
// agent after the other is drained and started again. nginx sends no query twice. As a balancer's
// health check does, the scenario takes an agent out of nginx's configuration some time after the
// agent has said that it is not ready. Wanted: no query fails. The short form sends fewer queries,
// and everything takes less time.
func (r *run) testProxy(ctx context.Context) error {
	binary, err := exec.LookPath("nginx")
	if err != nil {
		return skip{fmt.Errorf("needs nginx (apt-get install nginx): %w", err)}
	}
	drain := pick(r, 30*time.Second, 6*time.Second)
	queries, interval := pick(r, 20_000, 1500), pick(r, 50*time.Millisecond, 100*time.Millisecond)

	f, err := r.newFleet(ctx, "ncf")
	if err != nil {
		return err
	}
	f.Args = append(f.Args, "--drain-timeout", drain.String())
	if err := r.start(ctx, f, pool(0, 2)); err != nil {
		return err
	}
	n := &nginx{binary: binary, dir: r.dir, keep: drain * 2 / 3}
	if err := n.start(ctx, f); err != nil {
		return err
	}
	r.atEnd = append(r.atEnd, n.stop)
	r.printLine("nginx keeps up to 32 connections to the agents, idle ones for %v; a drain takes at most %v",
		n.keep, drain)

	sent := make(chan posts, 1)
	go func() { sent <- sendPosts(ctx, n.address, queries, interval) }()
	for _, node := range f.Nodes {
		if err := r.waitAWhile(ctx, 4*time.Second); err != nil {
			return err
		}
		begin := time.Now()
		node.Signal(syscall.SIGTERM)
		// nginx keeps the agent for half of the drain, as a slow health check does.
		if err := harness.Settle(ctx, drain/2); err != nil {
			return err
		}
		status, err := statusOf("http://" + node.HTTP + "/v2/health/ready")
		r.checkWanted(err == nil && status == http.StatusServiceUnavailable,
			"readiness of %v half through its drain: %d, %v; want 503, no error", node, status, err)
		if err := n.writeConfig(f, node); err != nil {
			return err
		}
		select {
		case <-node.Exited():
		case <-ctx.Done():
			return ctx.Err()
		}
		r.printLine("  %v has drained in %.1f s", node, time.Since(begin).Seconds())
		former := node.Name
		if err := f.Restart(node); err != nil {
			return err
		}
		if _, err := f.WaitBack(ctx, node, former); err != nil {
			return err
		}
		if err := n.writeConfig(f, nil); err != nil {
			return err
		}
	}
	var all posts
	select {
	case all = <-sent:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.checkWanted(all.failed == 0 && all.answered == queries,
		"%d of %d queries failed, want none %v",
		all.failed, queries, all.failures)
	return nil
}

// statusOf asks for a page, on a connection of its own, and returns the status.
func statusOf(url string) (int, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: harness.Patience}
	resp, err := c.Get(url)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// posts are what became of queries.
type posts struct {
	answered, failed int
	failures         map[string]int // how many failed of each kind
}

// sendPosts sends n queries to address, ten at a time at each interval, so that a proxy opens
// several connections and keeps them. Each has a connection of its own: what is tested is between
// the proxy and the agents.
func sendPosts(ctx context.Context, address string, n int, interval time.Duration) posts {
	const atATime = 10
	body := fmt.Sprintf(`{"parameters":{"timeout":%d},"inputs":[`+
		`{"name":"ids","datatype":"INT64","shape":[1,4],"data":[1,2,3,4]}]}`,
		harness.Patience.Microseconds()) // a busy machine may be late, and lose none
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: harness.Patience}
	all := posts{failures: map[string]int{}}
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range n {
		if i%atATime == 0 && harness.Settle(ctx, interval) != nil {
			break
		}
		running.Go(func() {
			resp, err := c.Post("http://"+address+"/v2/models/ncf/infer", "application/json",
				strings.NewReader(body))
			failure := ""
			if err != nil {
				failure = err.Error()
			} else {
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK {
					failure = fmt.Sprintf("%s %.200s", resp.Status, bytes.TrimSpace(text))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if failure == "" {
				all.answered++
				return
			}
			all.failed++
			all.failures[failure]++
		})
	}
	running.Wait()
	return all
}

// An nginx is a running nginx before a fleet.
type nginx struct {
	binary, dir string
	keep        time.Duration // how long it keeps idle connections to agents
	address     string

	process *exec.Cmd
}

var nginxConfig = template.Must(template.New("").Parse(`daemon off;
master_process on;
worker_processes 1;
pid {{.Dir}}/nginx.pid;
error_log {{.Dir}}/nginx-error.log warn;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path {{.Dir}}/nginx-body;
	proxy_temp_path {{.Dir}}/nginx-proxy;
	fastcgi_temp_path {{.Dir}}/nginx-fastcgi;
	uwsgi_temp_path {{.Dir}}/nginx-uwsgi;
	scgi_temp_path {{.Dir}}/nginx-scgi;
	upstream agents {
{{range .Servers}}		server {{.}};
{{end}}		keepalive 32;
		keepalive_timeout {{.Keep}}s;
	}
	server {
		listen {{.Address}};
		location / {
			proxy_pass http://agents;
			proxy_http_version 1.1;
			proxy_set_header Host $http_host; # "agents" is none of an agent on loopback
			proxy_set_header Connection "";
			proxy_next_upstream off;
		}
	}
}
`))

// writeConfig writes nginx's configuration, without the agent that is out, and has a running nginx
// read it.
func (n *nginx) writeConfig(f *harness.Fleet, out *harness.Node) error {
	var servers []string
	for _, node := range f.Nodes {
		server := node.HTTP
		if node == out {
			server += " down"
		}
		servers = append(servers, server)
	}
	var text bytes.Buffer
	err := nginxConfig.Execute(&text, map[string]any{
		"Dir": n.dir, "Address": n.address, "Servers": servers, "Keep": int(n.keep.Seconds()),
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.configPath(), text.Bytes(), 0o644); err != nil {
		return err
	}
	if n.process == nil {
		return nil
	}
	return n.process.Process.Signal(syscall.SIGHUP)
}

func (n *nginx) configPath() string { return filepath.Join(n.dir, "nginx.conf") }

// start starts nginx and waits until it passes on to the fleet.
func (n *nginx) start(ctx context.Context, f *harness.Fleet) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	n.address = l.Addr().String()
	l.Close()
	if err := n.writeConfig(f, nil); err != nil {
		return err
	}
	n.process = exec.Command(n.binary, "-c", n.configPath(), "-p", n.dir, "-e",
		filepath.Join(n.dir, "nginx-error.log"))
	var said bytes.Buffer
	n.process.Stdout, n.process.Stderr = &said, &said
	n.process.SysProcAttr = harness.ChildAttributes()
	if err := n.process.Start(); err != nil {
		return err
	}
	for range 100 {
		status, askErr := statusOf("http://" + n.address + "/livez")
		if askErr == nil && status == http.StatusOK {
			return nil
		}
		err = errors.Join(askErr, fmt.Errorf("status %d", status))
		if settleErr := harness.Settle(ctx, 50*time.Millisecond); settleErr != nil {
			return settleErr
		}
	}
	n.stop()
	return fmt.Errorf("nginx does not pass on: %w\n%s", err, &said)
}

func (n *nginx) stop() {
	_ = n.process.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = n.process.Wait()
}
