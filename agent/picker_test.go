package agent_test

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/picker"
	"github.com/muster-serve/muster/api/extproc"
	"github.com/muster-serve/muster/api/inference"
)

// An envoy plays Envoy's part: it asks an agent where requests should go.
type envoy struct {
	*agenttest.Fleet
	asks *agenttest.Member
	mode extproc.BodySendMode
}

// A picked is what the picker said of a request.
type picked struct {
	stream     extproc.ExternalProcessor_ProcessClient
	to, ticket string
	refused    *extproc.ImmediateResponse
}

// receive is the next message of a stream.
func (e *envoy) receive(s extproc.ExternalProcessor_ProcessClient) *extproc.ProcessingResponse {
	e.Helper()
	m, err := s.Recv()
	if err != nil {
		e.Fatalf("the picker: %v", err)
	}
	return m
}

func (p *picked) read(m *extproc.HeaderMutation) {
	for _, h := range m.GetSetHeaders() {
		switch h.GetHeader().GetKey() {
		case "x-gateway-destination-endpoint":
			p.to = string(h.GetHeader().GetRawValue())
		case picker.TicketHeader:
			p.ticket = string(h.GetHeader().GetRawValue())
		}
	}
}

// ask asks where a query by gRPC should go.
func (e *envoy) ask(req *inference.ModelInferRequest) *picked {
	e.Helper()
	stream, err := extproc.NewExternalProcessorClient(e.asks.Conn).Process(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	p := &picked{stream: stream}
	send := func(m *extproc.ProcessingRequest) {
		if err := stream.Send(m); err != nil {
			e.Fatal(err)
		}
	}
	headers := &extproc.HeaderMap{}
	for key, value := range map[string]string{
		":method": "POST", ":path": inference.GRPCInferenceService_ModelInfer_FullMethodName,
		"content-type": "application/grpc",
	} {
		headers.Headers = append(headers.Headers,
			&extproc.HeaderValue{Key: key, RawValue: []byte(value)})
	}
	send(&extproc.ProcessingRequest{
		Request: &extproc.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extproc.HttpHeaders{Headers: headers},
		},
		ProtocolConfig: &extproc.ProtocolConfiguration{RequestBodyMode: e.mode},
	})
	if e.mode != extproc.BodySendMode_FULL_DUPLEX_STREAMED {
		e.receive(stream)
	}
	b, err := proto.Marshal(req)
	if err != nil {
		e.Fatal(err)
	}
	b = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
	parts := [][]byte{b}
	if e.mode == extproc.BodySendMode_FULL_DUPLEX_STREAMED {
		parts = [][]byte{b[:9], b[9 : len(b)-3], b[len(b)-3:]}
	}
	for i, part := range parts {
		send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{
			RequestBody: &extproc.HttpBody{Body: part, EndOfStream: i == len(parts)-1},
		}})
	}
	m := e.receive(stream)
	p.refused = m.GetImmediateResponse()
	p.read(m.GetRequestBody().GetResponse().GetHeaderMutation())
	p.read(m.GetRequestHeaders().GetResponse().GetHeaderMutation())
	if e.mode == extproc.BodySendMode_FULL_DUPLEX_STREAMED && p.refused == nil {
		var got []byte
		for range parts {
			got = append(got, e.receive(stream).GetRequestBody().GetResponse().GetBodyMutation().
				GetStreamedResponse().GetBody()...)
		}
		if string(got) != string(b) {
			e.Errorf("the body came back as %d bytes, want the %d that were sent", len(got), len(b))
		}
	}
	return p
}

// send sends a query where the picker said, with the ticket, and tells the picker of the answer.
func (e *envoy) send(p *picked, req *inference.ModelInferRequest, to *agenttest.Member) {
	e.Helper()
	ctx := metadata.AppendToOutgoingContext(e.Context(), picker.TicketHeader, p.ticket)
	resp, err := to.OIP.ModelInfer(ctx, req)
	if err != nil {
		e.Fatalf("%s: %v", to.Host, err)
	}
	if resp.GetModelName() != "ncf" || len(resp.GetOutputs()) == 0 {
		e.Errorf("got %v", resp)
	}
	_ = p.stream.Send(&extproc.ProcessingRequest{
		Request: &extproc.ProcessingRequest_ResponseHeaders{
			ResponseHeaders: &extproc.HttpHeaders{Headers: &extproc.HeaderMap{
				Headers: []*extproc.HeaderValue{{Key: ":status", RawValue: []byte("200")}},
			}},
		},
	})
	if e.receive(p.stream).GetResponseHeaders() == nil {
		e.Error("the response's headers have no answer")
	}
	e.end(p)
}

// end ends the stream of a request.
func (e *envoy) end(p *picked) {
	e.Helper()
	_ = p.stream.CloseSend()
	if _, err := p.stream.Recv(); err != io.EOF {
		e.Errorf("the stream ended with %v", err)
	}
}

// at is the agent with a gRPC address.
func (e *envoy) at(p *picked) *agenttest.Member {
	for _, a := range e.Agents {
		if p.to == a.Host+":8001" {
			return a
		}
	}
	e.Fatalf("the picker said %q, %v", p.to, p.refused)
	return nil
}

func counted(agents []*agenttest.Member, name string, values ...string) (sum float64) {
	for _, a := range agents {
		sum += agenttest.Counted(a.Inside, name, values...)
	}
	return sum
}

// TestPicker: a gateway that asks where requests should go has them run as the leader assigns them,
// once each; a request that never comes gives its lane back; a ticket that is used twice or elsewhere,
// and a leader that is gone, cost no answer.
func TestPicker(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		var agents []*agenttest.Member
		for range 4 {
			agents = append(agents, f.Start(func(a agent.Inside) {}))
		}
		f.Settled(agents...)
		leader := f.Led(agents...)
		asked := agenttest.Others(agents, leader)[0]
		e := &envoy{f, asked, extproc.BodySendMode_BUFFERED_PARTIAL}
		req := agenttest.NCFRequest(10)

		const queries = 20
		for i := range queries {
			if i == queries/2 {
				e.mode = extproc.BodySendMode_FULL_DUPLEX_STREAMED
			}
			p := e.ask(req)
			if p.ticket == "" {
				f.Fatalf("query %d: no ticket, refused: %v", i, p.refused)
			}
			e.send(p, req, e.at(p))
		}
		const attempts, picks = "muster_attempts_total", "muster_picks_total"
		if n := counted(agents, attempts); n != queries {
			t.Errorf("%v attempts were run, want %d", n, queries)
		}
		if n := counted(agents, picks, "assigned"); n != queries {
			t.Errorf("%v requests were assigned, want %d", n, queries)
		}

		// Requests that never come: all lanes are free again, so that later ones are answered.
		for range 40 {
			e.end(e.ask(req))
		}
		p := e.ask(req)
		e.send(p, req, e.at(p))

		// The same ticket again, and elsewhere: the agent has the query matched.
		before := counted(agents, attempts)
		p = e.ask(req)
		to := e.at(p)
		e.send(p, req, to)
		for _, a := range []*agenttest.Member{to, agenttest.Others(agents, to)[0]} {
			ctx := metadata.AppendToOutgoingContext(f.Context(), picker.TicketHeader, p.ticket)
			if _, err := a.OIP.ModelInfer(ctx, req); err != nil {
				t.Errorf("with a used ticket: %v", err)
			}
		}
		if n := counted(agents, attempts) - before; n != 3 {
			t.Errorf("%v attempts of three queries", n)
		}

		// What no agent can answer is refused in its place.
		unknown := agenttest.NCFRequest(1)
		unknown.ModelName = "dlrm"
		p = e.ask(unknown)
		if code := codes.Code(p.refused.GetGrpcStatus().GetStatus()); code != codes.NotFound ||
			p.refused.GetStatus().GetCode() != 404 {
			t.Errorf("an unknown model: %v", p.refused)
		}

		f.Kill(leader)
		time.Sleep(5 * time.Millisecond)
		for range 10 {
			p := e.ask(req)
			if p.refused != nil {
				t.Fatalf("while there is no leader: %v", p.refused)
			}
			if to := e.at(p); to != leader {
				e.send(p, req, to)
			}
		}
	})
}
