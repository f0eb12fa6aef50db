package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// atATime is how many clients send queries while rates are measured.
const atATime = 8

// sizes are the batch sizes of the cases, by model. MiniDLRM is Ray Serve's own benchmark.
var sizes = []struct {
	model string
	batch []int
}{{"ncf", []int{1, 256}}, {"wnd", []int{1, 64, 256}}, {"rm2", []int{64}}, {"dlrm", []int{32}}}

// A query is what is sent in a case, ready to be sent each way.
type query struct {
	name, model string
	bytes       []byte // as servers/models.py wants it
	grpc        *inference.ModelInferRequest
	sdk         *oip.Request
	rest        []byte
	header      int // bytes of rest that are JSON
}

// makeModels writes the models: all of them, and for --start a repository with WND and RM2 alone.
// QoS targets are long, so that Muster serves queries in the order in which they come, as the
// others do, and refuses none.
func (r *run) makeModels(ctx context.Context) error {
	all := filepath.Join(r.dir, "all")
	for _, s := range sizes {
		fmt.Fprintf(os.Stderr, "making %s\n", s.model)
		if s.model == "dlrm" {
			python := r.pythonCommand("fastapi", "dlrm.py", all)
			if _, err := harness.Output(ctx, "", python[0], python[1:]...); err != nil {
				return err
			}
			continue
		}
		if _, err := zoo.Generate(ctx, all, s.model, zoo.Options{}); err != nil {
			return err
		}
		file := filepath.Join(all, s.model, "model.yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, harness.Unhurried(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "two")); err != nil {
		return err
	}
	for _, model := range []string{"wnd", "rm2"} {
		for _, file := range []string{"model.yaml", "1/model.onnx", "1/model.onnx.data"} {
			to := filepath.Join(r.dir, "two", model, file)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.Link(filepath.Join(all, model, file), to); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeQueries returns the queries to the models of a repository, and writes them to files for
// servers/loop.py.
func (r *run) makeQueries(repository string) (all []query, err error) {
	random := rand.New(rand.NewPCG(21, 7))
	for _, s := range sizes {
		v, err := models.ReadVersion(filepath.Join(r.dir, repository), s.model, 1)
		if errors.Is(err, models.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, batch := range s.batch {
			q, err := newQuery(v, batch, random)
			if err != nil {
				return nil, err
			}
			if !has(r.cases, q.name) {
				continue
			}
			all = append(all, q)
			if err := os.WriteFile(r.queryPath(q), q.bytes, 0o644); err != nil {
				return nil, err
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no such case")
	}
	return all, nil
}

// queryPath is where servers/loop.py reads a query.
func (r *run) queryPath(q query) string {
	return filepath.Join(r.dir, strings.ReplaceAll(q.name, " ", "-")+".bin")
}

// newQuery makes a query with random values, each id below its bound.
func newQuery(v *models.Version, batch int, random *rand.Rand) (query, error) {
	q := query{
		name: v.Model + " " + strconv.Itoa(batch), model: v.Model,
		bytes: make([]byte, 8), grpc: &inference.ModelInferRequest{ModelName: v.Model},
		sdk: &oip.Request{Model: v.Model},
	}
	copy(q.bytes, v.Model)
	type port struct {
		Name     string          `json:"name"`
		Datatype tensor.DataType `json:"datatype"`
		Shape    []int64         `json:"shape"`
		// Parameters say how long the binary data is.
		Parameters map[string]int `json:"parameters"`
	}
	var header struct {
		Inputs     []port         `json:"inputs"`
		Parameters map[string]any `json:"parameters"`
	}
	for _, in := range v.Inputs {
		shape := append([]int64{int64(batch)}, in.Shape[1:]...)
		n, err := tensor.Elements(shape)
		if err != nil {
			return q, err
		}
		var data []byte
		for range n {
			switch in.DataType {
			case tensor.FP32:
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(random.Float32()))
			case tensor.Int64:
				bound := int64(100_000) // MiniDLRM's rows
				if k := len(in.IDBounds); k > 0 {
					bound = slices.Min(in.IDBounds)
				}
				data = binary.LittleEndian.AppendUint64(data, uint64(random.Int64N(bound)))
			default:
				return q, fmt.Errorf("model %s: input %s is %s: want FP32 or INT64", v.Model,
					in.Name,
					in.DataType)
			}
		}
		q.bytes = append(q.bytes, data...)
		q.grpc.Inputs = append(q.grpc.Inputs, &inference.ModelInferRequest_InferInputTensor{
			Name: in.Name, Datatype: string(in.DataType), Shape: shape,
		})
		q.grpc.RawInputContents = append(q.grpc.RawInputContents, data)
		q.sdk.Inputs = append(q.sdk.Inputs, tensor.Tensor{
			Name: in.Name, DataType: in.DataType, Shape: shape, Data: data,
		})
		header.Inputs = append(header.Inputs, port{in.Name, in.DataType, shape, map[string]int{
			"binary_data_size": len(data),
		}})
	}
	header.Parameters = map[string]any{"binary_data_output": true}
	text, err := json.Marshal(header)
	q.rest, q.header = append(text, q.bytes[8:]...), len(text)
	return q, err
}

// An asker sends queries to a server and returns the outputs' values.
type asker interface {
	sendQuery(ctx context.Context, q query) ([]byte, error)
	close()
}

type grpcAsker struct {
	inference.GRPCInferenceServiceClient
	conn *grpc.ClientConn
}

func askGRPC(p *process) (asker, error) {
	// It tries again as often as HTTP clients do, not after a second, the default: that would count
	// as the server's start.
	retry := backoff.Config{BaseDelay: poll, Multiplier: 1, MaxDelay: poll}
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, err
	}
	return grpcAsker{inference.NewGRPCInferenceServiceClient(conn), conn}, nil
}

func (a grpcAsker) sendQuery(ctx context.Context, q query) ([]byte, error) {
	answer, err := a.ModelInfer(ctx, q.grpc)
	if err != nil {
		return nil, err
	}
	// MLServer answers as it was asked in versions before 1.3
	if len(answer.RawOutputContents) == 0 {
		return nil, errors.New("the answer has no raw contents")
	}
	return slices.Concat(answer.RawOutputContents...), nil
}

func (a grpcAsker) close() { _ = a.conn.Close() }

// An sdkAsker is Muster's own client of one agent.
type sdkAsker struct{ *client.Client }

func askSDK(p *process) (asker, error) {
	c, err := client.New([]string{p.grpc})
	return sdkAsker{c}, err
}

func (a sdkAsker) sendQuery(ctx context.Context, q query) ([]byte, error) {
	answer, err := a.Infer(ctx, q.sdk)
	if err != nil {
		return nil, err
	}
	defer answer.Release()
	var all []byte
	for _, out := range answer.Outputs {
		all = append(all, out.Data...)
	}
	return all, nil
}

func (a sdkAsker) close() { _ = a.Close() }

// An httpAsker posts the bytes that body returns.
type httpAsker struct {
	client *http.Client
	url    func(q query) string
	body   func(q query) []byte
	binary bool // the protocol's extension for binary data
}

func newHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{
		// no server but Muster compresses
		MaxIdleConnsPerHost: 2 * atATime, DisableCompression: true,
	}}
}

func askBytes(p *process) (asker, error) {
	url := "http://" + p.http + "/infer"
	return httpAsker{newHTTP(), func(query) string { return url },
		func(q query) []byte { return q.bytes }, false}, nil
}

func askREST(p *process) (asker, error) {
	return httpAsker{newHTTP(),
		func(q query) string { return "http://" + p.http + "/v2/models/" + q.model + "/infer" },
		func(q query) []byte { return q.rest }, true}, nil
}

func (a httpAsker) sendQuery(ctx context.Context, q query) ([]byte, error) {
	const length = "Inference-Header-Content-Length"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url(q),
		bytes.NewReader(a.body(q)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if a.binary {
		req.Header.Set(length, strconv.Itoa(q.header))
	}
	answer, err := a.client.Do(req)
	body, err := read(answer, err)
	if err != nil || !a.binary {
		return body, err
	}
	n, err := strconv.Atoi(answer.Header.Get(length))
	if err != nil || n > len(body) {
		return nil, fmt.Errorf("%s is %q", length, answer.Header.Get(length))
	}
	return body[n:], nil
}

func (a httpAsker) close() { a.client.CloseIdleConnections() }

// check compares an answer with the first one to the same query. All outputs are FP32.
func (r *run) check(q query, answer []byte) error {
	want, ok := r.answers[q.name]
	if !ok {
		r.answers[q.name] = answer
		return nil
	}
	if len(answer) != len(want) {
		return fmt.Errorf("%s: the answer has %d bytes, another server's had %d", q.name,
			len(answer),
			len(want))
	}
	value := func(b []byte, i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:])))
	}
	for i := 0; i+4 <= len(want); i += 4 {
		if a, b := value(answer, i), value(want, i); math.Abs(a-b) > 1e-3*(1+math.Abs(b)) {
			return fmt.Errorf("%s: value %d is %v, another server's was %v", q.name, i/4, a, b)
		}
	}
	return nil
}

// measureCase measures a case: one client, and then several at a time.
func (r *run) measureCase(ctx context.Context, p *process, q query) (f figures, err error) {
	if _, err = load(ctx, p.ask, q, 1, r.time/5); err != nil {
		return f, err
	}
	used := p.cpuTime()
	times, err := load(ctx, p.ask, q, 1, r.time)
	if err != nil {
		return f, err
	}
	f.CPU = 1e6 * (p.cpuTime() - used) / float64(len(times))
	f.P50, f.P99 = harness.Quantile(times, 0.5), harness.Quantile(times, 0.99)
	if _, err = load(ctx, p.ask, q, atATime, r.time/5); err != nil {
		return f, err
	}
	begin := time.Now()
	if times, err = load(ctx, p.ask, q, atATime, r.time); err != nil {
		return f, err
	}
	f.Rate = float64(len(times)) / time.Since(begin).Seconds()
	f.LoadP99 = harness.Quantile(times, 0.99)
	return f, nil
}

// load lets clients each send the query again and again for a time, and at least ten times, and
// returns the latencies in us.
func load(ctx context.Context, a asker, q query, clients int, d time.Duration) ([]float64, error) {
	return harness.Loop{Clients: clients, For: d, Least: 10,
		Send: func(ctx context.Context) (time.Duration, error) {
			_, err := a.sendQuery(ctx, q)
			return 0, err
		}}.Run(ctx)
}

// measureRuntime measures ONNX Runtime alone.
func (r *run) measureRuntime(ctx context.Context, s server, cases []query, got *result) error {
	folder, err := filepath.Abs(filepath.Join(r.dir, "all"))
	if err != nil {
		return err
	}
	args := r.pythonCommand(s.peer, append(slices.Clone(s.loop), fmt.Sprint(r.time.Seconds()))...)
	for _, q := range cases {
		args = append(args, r.queryPath(q))
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), r.serverEnvironment(s, folder)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for i := 0; lines.Scan(); i++ {
		var one struct {
			Case string    `json:"case"`
			Us   []float64 `json:"us"`
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return err
		}
		sum := 0.
		for _, us := range one.Us {
			sum += us
		}
		got.Cases[cases[i].name] = figures{
			P50: harness.Quantile(one.Us, 0.5), P99: harness.Quantile(one.Us, 0.99),
			Rate: 1e6 * float64(len(one.Us)) / sum,
		}
	}
	return lines.Err()
}
