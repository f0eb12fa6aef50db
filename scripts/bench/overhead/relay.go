package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/scripts/test/harness"
)

const relayMethod = "/overhead.Relay/Pass"

// raw is a codec of gRPC that passes bytes (*mem.BufferSlice) as they are.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

func dialRaw(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address,
		append(oip.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))...)
}

// newRelayCommand is a hidden command: hops starts this program again as a relay.
func newRelayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "relay ADDRESS|BYTES", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return relay(args[0]) },
	}
}

// relay runs a server. If to is an address, it passes each call on to there; if it is a number, it
// answers with so many bytes. It prints the address on which it listens.
func relay(to string) error {
	var handle func(ctx context.Context, in *mem.BufferSlice) (*mem.BufferSlice, error)
	if n, err := strconv.Atoi(to); err == nil {
		answer := make([]byte, n)
		handle = func(_ context.Context, in *mem.BufferSlice) (*mem.BufferSlice, error) {
			in.Free()
			return &mem.BufferSlice{mem.SliceBuffer(answer)}, nil
		}
	} else {
		conn, err := dialRaw(to)
		if err != nil {
			return err
		}
		defer conn.Close()
		handle = func(ctx context.Context, in *mem.BufferSlice) (*mem.BufferSlice, error) {
			out := new(mem.BufferSlice)
			return out, conn.Invoke(ctx, relayMethod, in, out)
		}
	}
	server := grpc.NewServer(append(oip.ServerOptions(1<<20), grpc.ForceServerCodecV2(raw{}),
		grpc.NumStreamWorkers(32))...)
	server.RegisterService(
		&grpc.ServiceDesc{ServiceName: "overhead.Relay", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{
				MethodName: "Pass",
				Handler: func(_ any, ctx context.Context, decode func(any) error,
					_ grpc.UnaryServerInterceptor) (any, error) {
					in := new(mem.BufferSlice)
					if err := decode(in); err != nil {
						return nil, err
					}
					return handle(ctx, in)
				},
			}}}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return server.Serve(l)
}

// relays are three processes: a server, a relay in front of it, and a relay in front of that one.
type relays struct {
	processes []*exec.Cmd
	conns     []*grpc.ClientConn // to the first relay, and to the second
	request   []byte
}

// startRelays starts the processes. A query sends them as many bytes as the request has, and they
// answer with as many as the answer has.
func startRelays(request *oip.Request, answer *oip.Response) (*relays, error) {
	bytes, err := oip.Codec{}.Marshal(request)
	if err != nil {
		return nil, err
	}
	r := &relays{request: bytes.Materialize()}
	if bytes, err = (oip.Codec{}).Marshal(answer); err != nil {
		return nil, err
	}
	to := strconv.Itoa(bytes.Len())
	for hop := range 3 {
		p := exec.Command(os.Args[0], "relay", to)
		p.Stderr = os.Stderr
		p.SysProcAttr = harness.ChildAttributes()
		out, err := p.StdoutPipe()
		if err != nil {
			return r, err
		}
		if err := p.Start(); err != nil {
			return r, err
		}
		r.processes = append(r.processes, p)
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			return r, fmt.Errorf("start a relay: %w", err)
		}
		to = strings.TrimSpace(line)
		if hop == 0 {
			continue
		}
		conn, err := dialRaw(to)
		if err != nil {
			return r, err
		}
		r.conns = append(r.conns, conn)
	}
	return r, nil
}

// pidOf is the process id of the server (hop 0), or of the first or second relay.
func (r *relays) pidOf(hop int) int { return r.processes[hop].Process.Pid }

func (r *relays) queryTwoHops(ctx context.Context) error { return r.queryOver(ctx, r.conns[0]) }

func (r *relays) queryThreeHops(ctx context.Context) error { return r.queryOver(ctx, r.conns[1]) }

func (r *relays) queryOver(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	in, out := mem.BufferSlice{mem.SliceBuffer(r.request)}, new(mem.BufferSlice)
	err := conn.Invoke(ctx, relayMethod, &in, out)
	out.Free()
	return err
}

func (r *relays) stop() {
	for _, conn := range r.conns {
		conn.Close()
	}
	for _, p := range r.processes {
		_ = p.Process.Kill()
		_ = p.Wait() // its error says that it was killed
	}
}
