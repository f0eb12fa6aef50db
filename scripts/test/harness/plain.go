package harness

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

const (
	// tryTimeout is how long a plain client waits for one server.
	tryTimeout = 1500 * time.Millisecond
	// avoid is for how long it prefers other servers after that.
	avoid = time.Second
)

// A Plain is a client that knows nothing of Muster. It has the addresses of several servers of the
// Open Inference Protocol and asks them in turn. If one cannot be reached, breaks off or does not
// answer, it asks the next one. It is safe for concurrent use.
type Plain struct {
	mu      sync.Mutex
	servers []*server // the next one first
	close   func()
}

// Close ends its connections.
func (p *Plain) Close() { p.close() }

type server struct {
	infer  func(context.Context, *oip.Request) (*oip.Response, error)
	failed time.Time
}

// Infer sends a query, to one server after the other until one answers or ctx ends.
func (p *Plain) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	for {
		s := p.chooseServer()
		resp, err := try(ctx, s, req)
		if err == nil || ctx.Err() != nil {
			return resp, err
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded:
		default:
			return nil, err
		}
		p.mu.Lock()
		again := time.Since(s.failed) < avoid // they have all failed
		s.failed = time.Now()
		p.mu.Unlock()
		if again {
			select {
			case <-time.After(avoid / 10):
			case <-ctx.Done():
			}
		}
	}
}

// chooseServer returns the next server that has not failed within avoid. If all have, it returns
// the one whose failure is longest ago.
func (p *Plain) chooseServer() *server {
	p.mu.Lock()
	defer p.mu.Unlock()
	chosen := 0
	for i, s := range p.servers {
		if time.Since(s.failed) > avoid {
			chosen = i
			break
		}
		if s.failed.Before(p.servers[chosen].failed) {
			chosen = i
		}
	}
	s := p.servers[chosen]
	p.servers = append(append(p.servers[:chosen:chosen], p.servers[chosen+1:]...), s)
	return s
}

func try(ctx context.Context, s *server, req *oip.Request) (*oip.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return s.infer(ctx, req)
}

// NewPlainGRPC makes a client that speaks gRPC by the generated code, without TLS if config is nil.
func NewPlainGRPC(addresses []string, config *tls.Config) (*Plain, error) {
	p := &Plain{}
	secure := insecure.NewCredentials()
	if config != nil {
		secure = credentials.NewTLS(config)
	}
	var conns []*grpc.ClientConn
	p.close = func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
	for _, address := range addresses {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(secure),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{
					BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
					MaxDelay: time.Second,
				},
				MinConnectTimeout: tryTimeout,
			}))
		if err != nil {
			p.close()
			return nil, err
		}
		conns = append(conns, conn)
		c := inference.NewGRPCInferenceServiceClient(conn)
		p.servers = append(p.servers,
			&server{infer: func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
				return inferGRPC(ctx, c, req)
			}})
	}
	return p, nil
}

func inferGRPC(
	ctx context.Context, c inference.GRPCInferenceServiceClient, req *oip.Request,
) (*oip.Response, error) {
	m := &inference.ModelInferRequest{ModelName: req.Model, Id: req.ID}
	for _, in := range req.Inputs {
		m.Inputs = append(m.Inputs, &inference.ModelInferRequest_InferInputTensor{
			Name: in.Name, Datatype: string(in.DataType), Shape: in.Shape,
		})
		m.RawInputContents = append(m.RawInputContents, in.Data)
	}
	answer, err := c.ModelInfer(ctx, m)
	if err != nil {
		return nil, err
	}
	resp := &oip.Response{Model: answer.ModelName, ID: answer.Id}
	for i, out := range answer.Outputs {
		t := tensor.Tensor{
			Name: out.Name, DataType: tensor.DataType(out.Datatype), Shape: out.Shape,
		}
		if i < len(answer.RawOutputContents) {
			t.Data = answer.RawOutputContents[i]
		}
		resp.Outputs = append(resp.Outputs, t)
	}
	return resp, nil
}

// NewPlainREST makes a client that speaks REST with tensors in JSON.
func NewPlainREST(addresses []string, config *tls.Config) *Plain {
	transport := &http.Transport{
		TLSClientConfig: config, MaxIdleConnsPerHost: 100, IdleConnTimeout: 5 * time.Second,
	}
	c := &http.Client{Transport: transport}
	p := &Plain{close: transport.CloseIdleConnections}
	for _, address := range addresses {
		p.servers = append(p.servers,
			&server{infer: func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
				return inferREST(ctx, c, address, req)
			}})
	}
	return p
}

type jsonTensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
	Data     any     `json:"data"`
}

func inferREST(ctx context.Context, c *http.Client, address string,
	req *oip.Request) (*oip.Response, error) {
	var query struct {
		ID         string         `json:"id"`
		Parameters map[string]any `json:"parameters"`
		Inputs     []jsonTensor   `json:"inputs"`
	}
	query.ID = req.ID
	query.Parameters = map[string]any{"timeout": tryTimeout.Microseconds()}
	for _, in := range req.Inputs {
		data, err := numbers(in)
		if err != nil {
			return nil, err
		}
		query.Inputs = append(query.Inputs, jsonTensor{
			in.Name, string(in.DataType), in.Shape, data,
		})
	}
	body, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	url := "https://" + address + "/v2/models/" + req.Model + "/infer"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(r)
	if err != nil {
		return nil, unreachable(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, unreachable(err)
	}
	text = bytes.TrimSpace(text)
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return nil, status.Error(codes.Unavailable, string(text))
	case http.StatusGatewayTimeout:
		return nil, status.Error(codes.DeadlineExceeded, string(text))
	case http.StatusTooManyRequests:
		return nil, status.Error(codes.ResourceExhausted, string(text))
	default:
		return nil, status.Errorf(codes.Unknown, "%s: %s", answer.Status, text)
	}
	var found struct {
		ModelName string `json:"model_name"`
		ID        string `json:"id"`
		Outputs   []struct {
			jsonTensor
			Data []float32 `json:"data"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("answer %.100q: %w", text, err)
	}
	resp := &oip.Response{Model: found.ModelName, ID: found.ID}
	for _, out := range found.Outputs {
		t := tensor.Tensor{
			Name: out.Name, DataType: tensor.DataType(out.Datatype), Shape: out.Shape,
		}
		for _, x := range out.Data {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(x))
		}
		resp.Outputs = append(resp.Outputs, t)
	}
	return resp, nil
}

// unreachable is the status of a query that got no answer, or only a part of one.
func unreachable(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}

// numbers returns the elements of a tensor as a slice of their type.
func numbers(t tensor.Tensor) (any, error) {
	n := len(t.Data) / max(1, t.DataType.Size())
	var all any
	switch t.DataType {
	case tensor.Int64:
		all = make([]int64, n)
	case tensor.Int32:
		all = make([]int32, n)
	case tensor.FP32:
		all = make([]float32, n)
	default:
		return nil, fmt.Errorf("input %q of type %s", t.Name, t.DataType)
	}
	_, err := binary.Decode(t.Data, binary.LittleEndian, all)
	return all, err
}
