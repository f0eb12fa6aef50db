// Package harness runs agents as child processes, sends queries to them, and counts what became of
// the queries. The scenarios of scripts/test/fleet use it.
//
// A [Fleet] is a number of agents that find each other, on loopback or, with a [Network], each in a
// network namespace of its own; with [Certificates] they use TLS. A [Driver] sends queries by
// [Client]s (the SDK, or plain clients of the Open Inference Protocol) and records the outcome of
// each in its [Ledger]. Nothing leaves this machine.
package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// An Agent is a `muster agent` process.
//
// The kernel stops it when the thread that started it ends. So start agents from a goroutine that
// is locked to its thread, such as the main one.
type Agent struct {
	HTTP, GRPC, Metrics, Gossip string // addresses

	Command string // the command line that started it
	LogPath string
	Started time.Time

	process *exec.Cmd
	exited  chan struct{} // closed when the process has ended
	err     error         // how it ended; set before exited is closed
}

// PID is the id of the process.
func (a *Agent) PID() int { return a.process.Process.Pid }

// A Config says what to start.
type Config struct {
	Muster string   // the binary
	Log    string   // the file for its output
	Args   []string // further arguments; the addresses are set by Start
	Env    []string // further environment variables, as KEY=VALUE
	// Host is the address it listens on, "" meaning 127.0.0.1.
	Host string
	// Namespace is the network namespace it runs in, "" meaning this one.
	Namespace string
	// After is an agent that has ended. This one takes its addresses, and appends to its log. If it
	// is nil, this one has addresses and a log of its own.
	After *Agent
}

// Start starts an agent.
func Start(c Config) (*Agent, error) {
	a := &Agent{LogPath: c.Log, Started: time.Now(), exited: make(chan struct{})}
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.After != nil {
		a.HTTP, a.GRPC = c.After.HTTP, c.After.GRPC
		a.Metrics, a.Gossip = c.After.Metrics, c.After.Gossip
	} else if c.Namespace != "" { // nobody else has ports there
		a.setAddresses(c.Host, 8000, 8001, 8002, 7946)
	} else {
		ports, err := FreePorts(c.Host, 4)
		if err != nil {
			return nil, err
		}
		a.setAddresses(c.Host, ports...)
	}
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return nil, err
	}
	mode := os.O_TRUNC
	if c.After != nil {
		mode = os.O_APPEND
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|mode, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has a copy
	args := append([]string{
		"agent", "--http", a.HTTP, "--grpc", a.GRPC, "--metrics", a.Metrics, "--gossip", a.Gossip,
	}, c.Args...)
	a.process = exec.Command(c.Muster, args...)
	a.Command = a.process.String()
	if c.Namespace != "" {
		a.process = exec.Command("ip",
			append([]string{"netns", "exec", c.Namespace, c.Muster}, args...)...)
	}
	a.process.Stdout, a.process.Stderr = log, log
	a.process.Env = append(os.Environ(), c.Env...)
	a.process.SysProcAttr = ChildAttributes()
	if err := a.process.Start(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: run `make build` first", err)
		}
		return nil, fmt.Errorf("start an agent: %w", err)
	}
	go func() {
		a.err = a.process.Wait()
		close(a.exited)
	}()
	return a, nil
}

func (a *Agent) setAddresses(host string, ports ...int) {
	for i, to := range []*string{&a.HTTP, &a.GRPC, &a.Metrics, &a.Gossip} {
		*to = net.JoinHostPort(host, fmt.Sprint(ports[i]))
	}
}

// nextPort is where FreePorts looks next. It is below the ports that the system gives to outgoing
// connections: one of those could take a port between FreePorts and the agent's start.
var nextPort = 10000 + rand.IntN(20000)

// FreePorts returns n free ports of host, which it has not returned before.
func FreePorts(host string, n int) (ports []int, err error) {
	for tries := 0; len(ports) < n; tries++ {
		nextPort++
		l, listenErr := net.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(nextPort)))
		if listenErr != nil {
			if tries > 1000 {
				return nil, fmt.Errorf("find a free port: %w", listenErr)
			}
			continue
		}
		l.Close()
		ports = append(ports, nextPort)
	}
	return ports, nil
}

// Exited is closed when the process has ended.
func (a *Agent) Exited() <-chan struct{} { return a.exited }

// HasExited reports whether the process has ended.
func (a *Agent) HasExited() bool {
	select {
	case <-a.exited:
		return true
	default:
		return false
	}
}

// Signal sends the process a signal. If the process has ended, nothing happens.
func (a *Agent) Signal(s syscall.Signal) { _ = a.process.Process.Signal(s) }

// Kill ends the process at once, and returns when it has ended.
func (a *Agent) Kill() {
	a.Signal(syscall.SIGKILL)
	<-a.exited
}

// drainPatience is how long an agent may take to end: its --drain-timeout, which it takes while
// HTTP clients go on asking it, and ten seconds for its goroutines.
const drainPatience = 45 * time.Second

// Stop drains the agent and waits until it has ended. If it had ended before, or ends with an
// error, the error has the end of its log.
func (a *Agent) Stop() error {
	if a.HasExited() {
		return a.exitError("the agent ended by itself")
	}
	a.Signal(syscall.SIGTERM)
	patience := time.NewTimer(drainPatience)
	defer patience.Stop()
	select {
	case <-a.exited:
	case <-patience.C:
		a.Kill()
		return a.exitError(fmt.Sprintf("the agent did not stop within %v of SIGTERM",
			drainPatience))
	}
	if a.err != nil {
		return a.exitError("the agent stopped badly")
	}
	return nil
}

// exitError is an error that says how the agent ended, with the last lines of its log.
func (a *Agent) exitError(what string) error {
	const lines = 15
	log, err := os.ReadFile(a.LogPath)
	if err != nil {
		return fmt.Errorf("%s: %w; its log: %w", what, a.err, err)
	}
	all := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	tail := bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
	return fmt.Errorf("%s: %v; the end of %s:\n%s", what, a.err, a.LogPath, tail)
}
