package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// evil clears a terminal, sets its title, turns the direction of writing around, and begins a
// sequence by a control character above ASCII.
const evil = "\x1b[2J\x1b]0;owned\x07\u202e\u009b2J\r\n"

// An evilServer names everything evil.
type evilServer struct {
	control.UnimplementedControlServer
	oip.Server
}

func (evilServer) Status(context.Context, *control.StatusRequest) (*control.FleetStatus, error) {
	return &control.FleetStatus{
		View: &control.View{
			Leadership: &control.Leadership{Epoch: 1, Leader: evil, Successor: evil},
			Members: []*control.Member{
				{Name: evil, InstanceType: evil, Executor: evil, Lanes: 1, Models: []*control.Model{
					{Name: evil, Version: 1},
				}},
			},
		},
		Agents:    []*control.AgentStatus{{Name: evil, RemainingNs: []int64{1}}},
		Models:    []*control.ModelStatus{{Model: evil, Version: 1, WithinQos: proto.Float64(1)}},
		Decisions: []string{evil},
	}, nil
}

func (evilServer) Events(_ *control.EventsRequest, stream control.Control_EventsServer) error {
	if err := stream.Send(&control.Event{
		Agent: evil, Kind: evil, What: evil, Who: evil, From: evil, Details: []*control.EventDetail{
			{Key: evil, Value: evil}, {Key: "k", Value: `say "x"` + evil},
		},
	}); err != nil {
		return err
	}
	return status.Error(codes.Internal, evil)
}

func (evilServer) Drain(context.Context, *control.DrainRequest) (*control.DrainResponse, error) {
	return &control.DrainResponse{Draining: []string{evil}}, nil
}

func (evilServer) Demand(context.Context, *control.DemandRequest) (*control.FleetDemand, error) {
	return &control.FleetDemand{Models: []*control.ModelDemand{{Model: evil}}}, nil
}

func (evilServer) ListKeys(context.Context, *control.ListKeysRequest) (*control.ListKeysResponse,
	error) {
	return &control.ListKeysResponse{
		Agents: []*control.AgentKeys{
			{Agent: evil, Fingerprints: []string{evil, evil}, Fault: evil},
		},
	}, nil
}

func (evilServer) RotateKeys(_ *control.RotateKeysRequest,
	stream control.Control_RotateKeysServer) error {
	for _, p := range []*control.KeysProgress{
		{Step: evil, Keys: &control.AgentKeys{Agent: evil}}, {
			Step: "only", Keys: &control.AgentKeys{Agent: evil, Fingerprints: []string{evil}},
		},
	} {
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return stream.Send(&control.KeysProgress{
		Step: evil, Keys: &control.AgentKeys{Agent: evil, Fault: evil},
	})
}

func (evilServer) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	return &inference.ServerMetadataResponse{Name: evil}, nil
}

func (evilServer) RepositoryIndex(context.Context, *inference.RepositoryIndexRequest) (
	*inference.RepositoryIndexResponse, error) {
	return &inference.RepositoryIndexResponse{
		Models: []*inference.RepositoryIndexResponse_ModelIndex{
			{Name: evil, Version: evil, State: evil, Reason: evil},
		},
	}, nil
}

func (evilServer) RepositoryModelLoad(context.Context, *inference.RepositoryModelLoadRequest) (
	*inference.RepositoryModelLoadResponse, error) {
	return nil, status.Error(codes.Internal, evil)
}

func (evilServer) ModelMetadata(context.Context, *inference.ModelMetadataRequest) (
	*inference.ModelMetadataResponse, error) {
	return nil, status.Error(codes.NotFound, evil)
}

func (evilServer) ModelInfer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	req.Release()
	out, err := tensor.Of(evil, []float32{1}, 1, 1)
	if err != nil {
		return nil, err
	}
	return &oip.Response{Model: evil, Version: evil, Outputs: []tensor.Tensor{out}}, nil
}

// TestTerminal: what others chose reaches the terminal without the characters that it obeys, and
// programs whole.
func TestTerminal(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(oip.ServerOptions(1 << 20)...)
	control.RegisterControlServer(server, evilServer{})
	oip.RegisterServer(server, evilServer{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_SERVER", listener.Addr().String())
	query := write(t, "q.json",
		`{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,1],"data":[1]}]}`)
	for _, args := range []string{
		"status", "status --json", "top --once", "events", "events --fleet", "events --json",
		"drain", "keys list", "keys rotate",
		"models list", "models list --json", "models load x", "infer x", "infer x --input " + query,
		"infer x --json --input " + query, "plan live",
		"__complete infer ",
	} {
		out, stderr, err := execute(t, strings.Split(args, " ")...)
		if err != nil {
			var b bytes.Buffer
			printError(&b, err)
			stderr += b.String()
		}
		if out+stderr == "" {
			t.Errorf("%s: nothing was printed", args)
		}
		if strings.HasPrefix(args, "__complete") == strings.Contains(out+stderr, "2J") {
			t.Errorf("%s: the name is, or is not, in what was printed: %q %q", args, out, stderr)
		}
		for _, r := range out + stderr {
			if terminal.Unprintable(r) && r != '\n' {
				t.Errorf("%s: printed %q: %q %q", args, r, out, stderr)
				break
			}
		}
		if strings.Contains(args, "models list --json") {
			var list []listedModel
			if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 ||
				list[0].Model != evil {
				t.Errorf("%s: got %+v, %v, want the name as it is", args, list, err)
			}
		}
	}
}

func TestPlain(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "rm2-ä日本": "rm2-ä日本", evil: `\x1b[2J\x1b]0;owned\a\u202e\u009b2J\r\n`,
		"a\xffb\\": `a\xffb\`, "\u2028\U000e0001": `\u2028\U000e0001`,
	} {
		if got := terminal.Plain(s); got != want {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
	}
	var b bytes.Buffer
	printError(&b, errors.Join(errors.New("a\x1b"), errors.New("b")))
	if got := b.String(); got != "muster: a\\x1b\nb\n" {
		t.Errorf("got %q", got)
	}
	b.Reset()
	if _, err := fmt.Fprint(terminal.PlainJSON{W: &b},
		"\"a\u009b\u202e\U000e0001ä\x7f\"\n"); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != "\"a\\u009b\\u202e\\udb40\\udc01ä\\u007f\"\n" {
		t.Errorf("got %q", got)
	}
}
