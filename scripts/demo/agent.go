package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client"
)

// An agent is a `muster agent` process of ours.
type agent struct {
	http, grpc, metrics string // addresses
	command             string // that started it
	logPath             string
	started             time.Time
	process             *exec.Cmd
	exited              chan struct{} // closed when the process has ended
	err                 error         // how it ended; set before exited is closed
}

var errAgentExited = errors.New("the agent ended by itself")

// startAgent starts the binary's agent, with its output in a file and on the
// default ports if those are free.
func startAgent(muster, logPath string, args ...string) (*agent, error) {
	a := &agent{logPath: logPath, started: time.Now(), exited: make(chan struct{})}
	addresses, err := freeAddresses("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
	if err != nil {
		return nil, err
	}
	a.http, a.grpc, a.metrics = addresses[0], addresses[1], addresses[2]
	if err := os.MkdirAll(filepath.Dir(logPath), 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	a.process = exec.Command(muster, append([]string{"agent", "--http", a.http, "--grpc", a.grpc, "--metrics", a.metrics, "--gossip", "127.0.0.1:0"}, args...)...)
	a.command = a.process.String()
	a.process.Stdout, a.process.Stderr = log, log
	a.process.SysProcAttr = childAttributes()
	if err := a.process.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	go func() {
		a.err = a.process.Wait()
		close(a.exited)
	}()
	return a, nil
}

// freeAddresses returns the addresses wanted if all are free, else others on
// loopback.
func freeAddresses(wanted ...string) ([]string, error) {
	taken := false
	for _, address := range wanted {
		l, err := net.Listen("tcp", address)
		if err != nil {
			taken = true
			break
		}
		l.Close()
	}
	if !taken {
		return wanted, nil
	}
	var free []string
	for range wanted {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // only now, so that the ports differ
		free = append(free, l.Addr().String())
	}
	return free, nil
}

// waitReady returns when all models are served.
func (a *agent) waitReady(ctx context.Context, c *client.Client, models []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the agent was not ready within a minute"))
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for _, model := range models {
		for {
			if ready, err := c.ModelReady(ctx, model, ""); err == nil && ready {
				break
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				return fmt.Errorf("wait for model %s: %w", model, context.Cause(ctx))
			}
		}
	}
	return nil
}

// stop ends the agent and waits for it. An agent that ended before, or badly, is
// an error with the end of its log.
func (a *agent) stop() error {
	select {
	case <-a.exited:
		return a.failure("the agent ended by itself")
	default:
	}
	_ = a.process.Process.Signal(syscall.SIGTERM) // it may end just now
	patience := time.NewTimer(15 * time.Second)
	defer patience.Stop()
	select {
	case <-a.exited:
	case <-patience.C:
		_ = a.process.Process.Kill()
		<-a.exited
		return a.failure("the agent did not stop within 15 s of SIGTERM")
	}
	if a.err != nil {
		return a.failure("the agent stopped badly")
	}
	return nil
}

// failure is an error with how the agent ended and the last lines of its log.
func (a *agent) failure(what string) error {
	const lines = 15
	log, err := os.ReadFile(a.logPath)
	if err != nil {
		return fmt.Errorf("%s: %w; its log: %w", what, a.err, err)
	}
	all := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	tail := bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
	return fmt.Errorf("%s: %v; the end of %s:\n%s", what, a.err, a.logPath, tail)
}
