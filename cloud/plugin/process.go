package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/provider"
	"github.com/muster-serve/muster/api/version"
)

const (
	// greetingTimeout is how long a program may take to start and greet. On a machine that is short
	// of memory or CPU, reading 20 MB from a disk takes seconds.
	greetingTimeout = 10 * time.Second
	// maxGreeting bounds the greeting in bytes.
	maxGreeting = 256
	// endTimeout is how long a process may take to end after its connection was closed.
	endTimeout = 2 * time.Second
)

// A process is one of a provider's program, or what a test has in its place.
type process struct {
	client provider.ProviderClient
	conn   *grpc.ClientConn
	kill   func()
	ended  chan struct{} // closed when the process has ended
	exit   error         // how it ended, once that is closed

	// Of the Provider, under its lock.
	opened   bool // for the fleet
	answered bool
}

// startProcess starts the program at path and waits for its greeting.
func startProcess(ctx context.Context, name, path string, log *slog.Logger) (*process, error) {
	cmd := exec.Command(path)
	lines := &logLines{log: log}
	cmd.Stderr = lines
	cmd.WaitDelay = endTimeout // for what the process has started, and what holds its log open
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MUSTER_") { // settings of the agent, among them keys
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s %d %s", variable, cookie, protocol,
		version.Current()))
	pipes, err := openPipes(cmd)
	if err != nil {
		return nil, err
	}
	err = cmd.Start()
	_ = cmd.Stdin.(*os.File).Close()
	_ = cmd.Stdout.(*os.File).Close()
	if err != nil {
		_ = pipes.Close()
		return nil, fmt.Errorf("start %s: %w", programName(name), err)
	}
	p := &process{kill: func() { _ = cmd.Process.Kill() }, ended: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		lines.flushLine()
		p.exit = exitError(name, err, lines.first)
		close(p.ended)
	}()
	if err := p.readGreeting(ctx, name, pipes, log); err != nil {
		_ = pipes.Close()
		p.kill()
		<-p.ended
		return nil, err
	}
	p.connect(name, pipes)
	return p, nil
}

// openPipes gives a command its standard input and output, and returns their other ends.
func openPipes(cmd *exec.Cmd) (*stdio, error) {
	stdin, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	in, stdout, err := os.Pipe()
	if err != nil {
		_, _ = stdin.Close(), out.Close()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout = stdin, stdout
	return &stdio{in: in, reader: bufio.NewReaderSize(in, maxGreeting), out: out}, nil
}

// exitError is how a process ended, with the first line that it wrote as a last word.
func exitError(name string, err error, said string) error {
	how := "exit status 0"
	if err != nil {
		how = err.Error()
	}
	if said != "" {
		how += ": " + said
	}
	return fmt.Errorf("%s has ended: %s", programName(name), how)
}

// readGreeting reads and checks the greeting.
func (p *process) readGreeting(ctx context.Context, name string, pipes *stdio,
	log *slog.Logger) error {
	began := time.Now()
	timed, cancel := context.WithTimeout(ctx, greetingTimeout)
	defer cancel()
	defer context.AfterFunc(timed, p.kill)() // which ends the reading
	line, err := pipes.reader.(*bufio.Reader).ReadSlice('\n')
	if timed.Err() != nil {
		if ctx.Err() == context.Canceled {
			return fmt.Errorf("start %s: %w", programName(name), context.Canceled)
		}
		return fmt.Errorf("%s does not greet within %v: want a line that begins with %q",
			programName(name), time.Since(began).Round(time.Millisecond), greeting)
	}
	text := strings.TrimSuffix(string(line), "\n")
	if err == io.EOF {
		// Its error output says more.
		p.kill()
		<-p.ended
		if text == "" {
			return p.exit
		}
		return fmt.Errorf("%w; its first words are %.80q", p.exit, text)
	}
	words := strings.Fields(text)
	if err != nil || len(words) != 4 || words[0] != greeting {
		return fmt.Errorf("%s does not greet as a provider of Muster does: its first words are "+
			"%.80q", programName(name), text)
	}
	switch {
	case words[2] != name:
		return fmt.Errorf("%s is the provider %.40q, want %s", programName(name), words[2], name)
	case words[1] != fmt.Sprint(protocol):
		return fmt.Errorf("%s %.40s speaks protocol %.10s, and muster %s protocol %d: install both "+
			"of the same version, and restart the agent", programName(name), words[3], words[1],
			version.Current(), protocol)
	case words[3] != version.Current():
		log.Warn("the provider has another version than the agent; restart the agent to have one",
			"provider_version", words[3], "version", version.Current())
	}
	return nil
}

// connect makes the client of a connection, which the process's side serves.
func (p *process) connect(name string, conn net.Conn) {
	given := make(chan net.Conn, 1)
	given <- conn
	// NewClient fails only for options that are wrong.
	p.conn, _ = grpc.NewClient("passthrough:///"+programName(name),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-given:
				return conn, nil
			default:
				return nil, errors.New("the connection is closed")
			}
		}))
	p.client = provider.NewProviderClient(p.conn)
}

// endProcess closes the connection, waits for the process to end, and ends one that does not.
func (p *process) endProcess() {
	_ = p.conn.Close()
	select {
	case <-p.ended:
		return
	case <-time.After(endTimeout):
	}
	p.kill()
	<-p.ended
}

// hasAnswered reports whether there is a process, and it has answered a call.
func (p *process) hasAnswered() bool { return p != nil && p.answered }
