package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// A server is one way to serve the models.
type server struct {
	name string
	peer string   // the peer that is to be installed; "": none
	spin string   // the value of session.intra_op.allow_spinning; "": Muster chooses
	env  []string // further environment
	// command returns the command that serves on two ports, HTTP and gRPC.
	command func(r *run, repository string, ports []int) []string
	ask     func(p *process) (asker, error)
	loop    []string // set instead of command: a script that needs no client
}

// pythonCommand returns a command that runs a script of servers/ with the Python of a peer.
func (r *run) pythonCommand(peer string, args ...string) []string {
	args[0] = filepath.Join("scripts/bench/peers/servers", args[0])
	return append([]string{filepath.Join("build/venv-peers-"+peer, "bin/python")}, args...)
}

// servers lists what is measured.
func servers() (all []server) {
	muster := func(name string, ask func(*process) (asker, error), args ...string) {
		all = append(all, server{name: name, ask: ask,
			command: func(r *run, repository string, ports []int) []string {
				at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
				return append([]string{
					r.muster, "agent", "--model-dir", repository, "--state-dir",
					filepath.Join(r.dir, "state"), "--http", at(ports[0]), "--grpc", at(ports[1]),
					"--metrics", at(ports[2]), "--gossip", at(ports[3]),
				}, args...)
			}})
	}
	muster("Muster", askGRPC)
	muster("Muster, SDK", askSDK)
	muster("Muster, REST", askREST)
	muster("Muster, --lanes 2", askGRPC, "--lanes", "2")
	muster("Muster, SDK, --lanes 2", askSDK, "--lanes", "2")
	for _, spin := range []string{"1", "0"} {
		suffix := map[string]string{"1": ", spinning", "0": ""}[spin]
		peer := func(name, peer string, env []string, ask func(*process) (asker, error),
			command func(r *run, ports []int) []string) {
			all = append(all, server{name: name + suffix, peer: peer, spin: spin, env: env,
				ask:     ask,
				command: func(r *run, _ string, ports []int) []string { return command(r, ports) }})
		}
		all = append(all, server{name: "ONNX Runtime alone" + suffix, peer: "fastapi", spin: spin,
			loop: []string{"loop.py"}})
		uvicorn := func(workers string) func(r *run, ports []int) []string {
			return func(r *run, ports []int) []string {
				c := r.pythonCommand("fastapi", "")
				return append(c[:1], "-m", "uvicorn", "--app-dir", "scripts/bench/peers/servers",
					"--port", strconv.Itoa(ports[0]), "--log-level", "warning", "--no-access-log",
					"--workers", workers, "fastapi_server:app")
			}
		}
		peer("FastAPI", "fastapi", nil, askBytes, uvicorn("1"))
		peer("FastAPI, 2 workers", "fastapi", []string{"THREADS=" + strconv.Itoa(max(1,
			runtime.NumCPU()/2))}, askBytes, uvicorn("2"))
		ray := func(r *run, ports []int) []string {
			return r.pythonCommand("ray", "ray_server.py", strconv.Itoa(ports[0]))
		}
		usage := "RAY_USAGE_STATS_ENABLED=0"
		peer("Ray Serve", "ray", []string{usage}, askBytes, ray)
		peer("Ray Serve, HAProxy", "ray", []string{
			usage, "RAY_SERVE_ENABLE_HA_PROXY=1", "RAY_SERVE_THROUGHPUT_OPTIMIZED=1",
		}, askBytes, ray)
		peer("MLServer", "mlserver", nil, askGRPC, func(r *run, ports []int) []string {
			return r.pythonCommand("mlserver", "mlserver_server.py", strconv.Itoa(ports[0]),
				strconv.Itoa(ports[1]), filepath.Join(r.dir, "mlserver"))
		})
		peer("LitServe", "litserve", nil, askBytes, func(r *run, ports []int) []string {
			return r.pythonCommand("litserve", "litserve_server.py", strconv.Itoa(ports[0]))
		})
		peer("BentoML", "bentoml", []string{"BENTOML_DO_NOT_TRACK=1"}, askBytes,
			func(r *run, ports []int) []string {
				c := r.pythonCommand("bentoml", "")
				return append(c[:1], "-m", "bentoml", "serve", "--working-dir",
					"scripts/bench/peers/servers", "--host", "127.0.0.1", "--port",
					strconv.Itoa(ports[0]), "bentoml_server:Server")
			})
	}
	return all
}

// prepareServers makes the models and installs the peers. It returns the servers that can be
// measured, and names the peers that cannot be installed.
func (r *run) prepareServers(ctx context.Context) (all []server, err error) {
	for _, dir := range []string{"state", "logs", "mlserver"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for _, s := range servers() {
		if !has(r.only, s.name) {
			continue
		}
		if _, tried := r.missing[s.peer]; s.peer != "" && !tried {
			r.missing[s.peer] = ""
			fmt.Fprintf(os.Stderr, "installing %s\n", s.peer)
			if _, err := harness.Output(ctx, "", "scripts/venv.sh", "peers-"+s.peer); err != nil {
				r.missing[s.peer] = err.Error()
				fmt.Fprintf(os.Stderr, "%s CANNOT BE INSTALLED: %v\n", s.peer, err)
			}
		}
		if s.peer == "" || r.missing[s.peer] == "" {
			all = append(all, s)
		}
	}
	return all, r.makeModels(ctx)
}

// A process is a server that runs.
type process struct {
	log   string
	http  string // addresses
	grpc  string
	ready time.Duration // from its start until it has answered a query to each model
	ask   asker

	cmd  *exec.Cmd
	mark string
	done chan struct{}
}

// poll is how long a client waits until it asks a server that starts again.
const poll = 5 * time.Millisecond

// start starts a server of the models of a repository, and waits until it has answered one query to
// each of them.
func (r *run) start(ctx context.Context, s server, repository string, queries []query) (*process,
	error) {
	// Of MLServer, which has no setting for it, the third is the first plus two.
	ports, err := harness.FreePorts("127.0.0.1", 4)
	if err != nil {
		return nil, err
	}
	folder, err := filepath.Abs(filepath.Join(r.dir, repository))
	if err != nil {
		return nil, err
	}
	slug := strings.Map(func(c rune) rune {
		if c == ' ' || c == ',' {
			return '-'
		}
		return c
	}, s.name)
	p := &process{
		log:  filepath.Join(r.dir, "logs", slug+".log"),
		http: "127.0.0.1:" + strconv.Itoa(ports[0]), grpc: "127.0.0.1:" + strconv.Itoa(ports[1]),
		mark: fmt.Sprintf("MUSTER_PEERS=%d-%d", os.Getpid(), ports[0]), done: make(chan struct{}),
	}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := s.command(r, folder, ports)
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(os.Environ(), r.serverEnvironment(s, folder)...)
	p.cmd.Env = append(p.cmd.Env, p.mark)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = harness.ChildAttributes()
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	if p.ask, err = s.ask(p); err != nil {
		p.stop()
		return nil, err
	}
	waiting := map[string]query{}
	for _, q := range queries {
		waiting[q.model] = q
	}
	for len(waiting) > 0 {
		for model, q := range waiting {
			var answer []byte
			if answer, err = p.ask.sendQuery(ctx, q); err == nil {
				if err := r.check(q, answer); err != nil {
					p.stop()
					return nil, err
				}
				delete(waiting, model)
			}
		}
		if len(waiting) == 0 {
			break
		}
		select {
		case <-time.After(poll):
		case <-p.done:
			p.stop()
			return nil, fmt.Errorf("it ended before it answered: %w; its log is %s", err, p.log)
		case <-ctx.Done():
			p.stop()
			return nil, ctx.Err()
		}
		if time.Since(begin) > 3*time.Minute {
			p.stop()
			return nil, fmt.Errorf("no answer after 3 minutes: %w; its log is %s", err, p.log)
		}
	}
	p.ready = time.Since(begin)
	return p, nil
}

// waitReady waits until an agent that answers is ready: until then it computes checksums.
func (p *process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+p.http+"/v2/health/ready", nil)
	if err != nil {
		return err
	}
	for {
		if _, err = read(http.DefaultClient.Do(req)); err == nil {
			return nil
		}
		select {
		case <-time.After(10 * poll):
		case <-p.done:
			return fmt.Errorf("it ended before it was ready: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("not ready after a minute: %w", err)
		}
	}
}

// serverEnvironment says which models a server of Python serves, and how.
func (r *run) serverEnvironment(s server, folder string) []string {
	env := []string{
		"REPOSITORY=" + folder, "THREADS=" + strconv.Itoa(runtime.NumCPU()), "SPINNING=" + s.spin,
		"ORT_DISABLE_TELEMETRY=1", "PYTHONDONTWRITEBYTECODE=1",
	}
	return append(env, s.env...)
}

// stop ends the server, and what it has left behind.
func (p *process) stop() {
	if p.ask != nil {
		p.ask.close()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
	}
	for range 2 {
		for _, pid := range marked(p.mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	<-p.done
}

// marked returns the processes that have a mark in their environment: those that the process which
// was started with it has started, wherever they hang now.
func marked(mark string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		env, err := os.ReadFile(file)
		if err != nil || !strings.Contains("\x00"+string(env), "\x00"+mark+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// read returns the body of an answer, which must be of status 200.
func read(answer *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status + ": " + string(body[:min(len(body), 200)]))
	}
	return body, err
}
