package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/client/bench"
)

// A benchServer answers every query to "m" at once, and refuses those of 13
// rows. Its model "whole" has no batch dimension. Its other methods are not called.
type benchServer struct{ oip.Server }

func (benchServer) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	return &inference.ServerMetadataResponse{Name: "bench"}, nil
}

func (benchServer) ModelMetadata(_ context.Context, req *inference.ModelMetadataRequest) (
	*inference.ModelMetadataResponse, error) {
	if req.Name == "whole" {
		return &inference.ModelMetadataResponse{
			Name: "whole",
			Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "x", Datatype: "FP32", Shape: []int64{-1}},
				{Name: "threshold", Datatype: "FP32", Shape: []int64{}},
			},
			Properties: oip.Properties{
				QoSTarget: 10 * time.Second, LargestBatchSize: 1, Batchless: true,
			}.Map(),
		}, nil
	}
	if req.Name != "m" {
		return nil, status.Errorf(codes.NotFound, "model %q is not in the repository", req.Name)
	}
	return &inference.ModelMetadataResponse{
		Name: "m",
		Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
			{Name: "x", Datatype: "FP32", Shape: []int64{-1, 4}},
		},
		// The target is wide: a test machine may be slow.
		Properties: map[string]string{"qos_target_ms": "10000", "largest_batch_size": "100"},
	}, nil
}

func (benchServer) ModelInfer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	defer req.Release()
	if req.Inputs[0].Shape[0] == 13 {
		return nil, status.Error(codes.InvalidArgument, "13 rows bring bad luck")
	}
	return &oip.Response{Model: "m", Version: "1"}, nil
}

// startBenchServer serves on loopback and returns the address.
func startBenchServer(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(oip.ServerOptions(1 << 20)...)
	oip.RegisterServer(s, benchServer{})
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(lis) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return lis.Addr().String()
}

func TestBench(t *testing.T) {
	server := startBenchServer(t)
	dir := t.TempDir()
	results, picture := filepath.Join(dir, "r.json"), filepath.Join(dir, "p.png")
	out, errs, err := execute(t, "bench", "--server", server, "--model", "m", "--rate", "2000",
		"--queries", "400", "--json", results, "--plot", picture)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "within QoS") || !strings.Contains(out, "m      400") {
		t.Errorf("table:\n%s", out)
	}
	if !strings.Contains(errs, "takes batch sizes up to 100") {
		t.Errorf("nothing said about batch sizes above the model's largest: %s", errs)
	}
	var r bench.Report
	data, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if m := r.Models[0]; m.Queries != 400 || m.Answered+m.Failed != 400 || m.Failed == 0 ||
		m.Failures[0].Reason != "invalid request" {
		t.Errorf("results: %s", data)
	}
	f, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("files left: %v, error %v", left, err)
	}

	// A trace file, and JSON alone on the standard output.
	trace := filepath.Join(dir, "trace.csv")
	if err := os.WriteFile(trace, []byte("arrival_ms,model,batch_size\n0,m,100\n1,m,1\n2.5,m,13\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err = execute(t, "bench", "--server", server, "--arrivals", trace, "--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	r = bench.Report{}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if m := r.Models[0]; m.Model != "m" || m.Queries != 3 || m.Answered != 2 || m.Failed != 1 {
		t.Errorf("results: %s", out)
	}

	out, errs, err = execute(t, "bench", "--server", server, "--model", "m", "--batch", "fixed:1",
		"--find-throughput", "--duration", "4s", "--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	var found bench.Throughput
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	// A busy machine may not hold any rate within the 4 s.
	held := slices.ContainsFunc(found.Probes, func(p bench.Probe) bool { return p.Held })
	if len(found.Probes) == 0 || (found.AllowableQPS > 0) != held ||
		strings.Count(errs, "queries/s") != len(found.Probes) {
		t.Errorf("found %s\ntold %s", out, errs)
	}
}

// oneQuery is a query of two rows for the model of a benchServer.
const oneQuery = `{"inputs":[{"name":"x","datatype":"FP32","shape":[2,4],"data":[1,2,3,4,5,6,7,8]` +
	`}]}`

// recorded are three queries with inputs, of which the server refuses the last.
var recorded = fmt.Sprintf(`{"at_ms":5,"model":"m","rows":2,%[1]s
{"at_ms":5.5,"model":"m","rows":2,"users":1,"values":9,"deadline_ms":60000,%[1]s
{"at_ms":6,"model":"m","rows":13,"inputs":[{"name":"x","datatype":"FP32","shape":[13,4],"data":[%[2]s1]}]}
`, strings.TrimPrefix(oneQuery, "{"), strings.Repeat("1,", 51))

// TestBenchRecorded: recorded queries are sent with their inputs, and what becomes of them is
// recorded in the same form.
func TestBenchRecorded(t *testing.T) {
	server := startBenchServer(t)
	dir := t.TempDir()
	trace := write(t, filepath.Join(dir, "q.jsonl"), recorded)
	log := filepath.Join(dir, "log.jsonl")
	out, errs, err := execute(t, "bench", "--server", server, "--from", trace, "--log", log,
		"--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, `"answered": 2`) || !strings.Contains(out, `"failed": 1`) {
		t.Errorf("got %s, %s, want two of three queries answered", out, errs)
	}
	var got []querytrace.TracedQuery
	if err := querytrace.ReadFile(log, func(q querytrace.TracedQuery) error {
		if q.Latency <= 0 {
			t.Errorf("%+v took no time", q)
		}
		q.Latency = 0
		got = append(got, q)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []querytrace.TracedQuery{
		{Model: "m", Rows: 2, Outcome: "ok", Version: got[0].Version},
		{At: 500 * time.Microsecond, Model: "m", Rows: 2, Users: 1, Values: 9,
			Deadline: time.Minute,
			Outcome:  "ok", Version: got[0].Version},
		{At: time.Millisecond, Model: "m", Rows: 13, Outcome: "invalid request"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("logged %+v, want %+v", got, want)
	}
}

// TestBenchInput: a file of queries sets what is sent and its batch sizes.
func TestBenchInput(t *testing.T) {
	server := startBenchServer(t)
	dir := t.TempDir()
	file := func(name, content string) string {
		return write(t, filepath.Join(dir, name), content)
	}
	unlucky := fmt.Sprintf(
		`{"inputs":[{"name":"x","datatype":"FP32","shape":[13,4],"data":[%s1]}]}`,
		strings.Repeat("1,", 51))
	queries := file("q.jsonl", oneQuery+"\n"+unlucky+"\n")
	out, errs, err := execute(t, "bench", "--server", server, "--model", "m", "--rate", "2000",
		"--queries", "200", "--input", queries, "--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if m := r.Models[0]; m.Answered < 60 || m.Failed < 60 || m.Answered+m.Failed != 200 ||
		!strings.Contains(m.Failures[0].Example, "13 rows") || r.Workload.BatchSizes != queries {
		t.Errorf("got %s, %s, want half of the queries answered, the others refused", out, errs)
	}

	// A trace may ask for a batch size of which the file has no query.
	trace := file("t.csv", "arrival_ms,model,batch_size\n0,m,2\n1,m,3\n")
	_, _, err = execute(t, "bench", "--server", server, "--arrivals", trace, "--input", queries)
	if err == nil ||
		!strings.Contains(err.Error(), "batch size 3, of which the file of inputs has none") {
		t.Errorf("a trace with other batch sizes: got %v", err)
	}
	trace = file("t.csv", "arrival_ms,model,batch_size\n0,m,2\n1,m,2\n")
	if out, _, err = execute(t, "bench", "--server", server, "--arrivals", trace, "--input",
		queries,
		"--json", "-"); err != nil || !strings.Contains(out, `"answered": 2`) {
		t.Errorf("a trace with inputs: got %s, %v", out, err)
	}

	// Each query for a model without a batch dimension is one item, whatever its inputs' shapes.
	const whole = `{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":[%s1]},` +
		`{"name":"threshold","datatype":"FP32","shape":[],"data":[0.5]}]}` + "\n"
	wholes := file("w.jsonl", fmt.Sprintf(whole, 2, "1,")+fmt.Sprintf(whole, 3, "1,1,"))
	trace = file("t.csv", "arrival_ms,model,batch_size\n0,whole,1\n1,whole,1\n")
	for _, args := range [][]string{
		{"--model", "whole", "--rate", "2000", "--queries", "2"}, {"--arrivals", trace},
	} {
		out, errs, err = execute(t, append([]string{"bench", "--server", server, "--input", wholes,
			"--json", "-"}, args...)...)
		if err != nil || !strings.Contains(out, `"answered": 2`) || strings.Contains(errs,
			"whole:") {
			t.Errorf("a model without a batch dimension, %v: got %s, %s, %v", args, out, errs, err)
		}
	}

	// Several models: one with queries, one with rows.
	out, errs, err = execute(t, "bench", "--server", server, "--model", "m", "--rate", "2000",
		"--queries", "50", "--input", "m="+queries, "--qos-ms", "9000")
	if err != nil || !strings.Contains(out, "A failed query counts as infinitely late") ||
		!strings.Contains(out, "∞") {
		t.Errorf("got %s, %s, %v, want that failed queries are infinitely late", out, errs, err)
	}
	if out, _, err = execute(t, "infer", "m", "--server", server, "--input", queries); err == nil ||
		!strings.Contains(err.Error(), "2 queries, want one") {
		t.Errorf("infer of two queries: got %s, %v", out, err)
	}
}

// TestBenchFailBelow: the exit status says whether enough queries were within QoS, after the
// report.
func TestBenchFailBelow(t *testing.T) {
	server := startBenchServer(t)
	for _, tt := range []struct {
		args string
		want int
	}{
		{"--batch fixed:1 --fail-below 99", 0},
		{"--batch fixed:1 --fail-below 100", 0},
		{"--batch gaussian:13,2 --fail-below 99", 1},
		{"--batch gaussian:13,2", 0},
	} {
		out, _, err := execute(t,
			append([]string{"bench", "--server", server, "--model", "m", "--rate",
				"2000", "--queries", "100"}, strings.Fields(tt.args)...)...)
		got := 0
		if err != nil {
			got = exitStatus(err)
		}
		if got != tt.want || !strings.Contains(out, "within QoS") ||
			got == 1 && !strings.Contains(err.Error(), "fail-below: m: ") {
			t.Errorf("%s: got %s and %v, want a report and status %d", tt.args, out, err, tt.want)
		}
	}
}

// TestBenchInterrupted: what was measured until Ctrl-C is printed.
func TestBenchInterrupted(t *testing.T) {
	server := startBenchServer(t)
	for _, args := range []string{"--rate 200", "--find-throughput"} {
		ctx, cancel := context.WithCancel(t.Context())
		told := &cutter{cancel: cancel}
		var out bytes.Buffer
		err := run(ctx, append([]string{"bench", "--server", server, "--model", "m", "--batch",
			"fixed:1", "--duration", "100s", "--json", "-"}, strings.Fields(args)...), nil, &out,
			told)
		if err == nil || err.Error() != "interrupted" || exitStatus(err) != 130 {
			t.Errorf("%s: got error %v, want interrupted", args, err)
		}
		var r struct{ Interrupted bool }
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || !r.Interrupted {
			t.Errorf("%s: got %s, %v, want results that say they are not whole", args, &out, err)
		}
	}
}

// A cutter calls cancel when something is written to it.
type cutter struct{ cancel context.CancelFunc }

func (c *cutter) Write(p []byte) (int, error) {
	c.cancel()
	return len(p), nil
}

func TestBenchServerSide(t *testing.T) {
	server := startBenchServer(t)
	trace := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(trace, []byte("arrival_ms,model,batch_size\n0,m,101\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--model other --rate 1":               `model "other" is not in the repository`,
		"--model m --rate 1 --batch fixed:101": "the smallest is 101, the largest allowed 100",
		"--arrivals " +
			trace: `batch size 101 for model "m", which takes at most 100`,
		"--model m --rate 100 --queries 3 --batch fixed:13": "no query was answered",
	} {
		_, _, err := execute(
			t, append([]string{"bench", "--server", server}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bench %s: error %v, want one with %q", args, err, want)
		}
	}
	if _, _, err := execute(t, "bench", "--server", "127.0.0.1:1", "--model", "m", "--rate",
		"1"); err == nil || !strings.Contains(fmt.Sprint(err), "127.0.0.1:1") {
		t.Errorf("no server: error %v", err)
	}
}

// TestBenchBadInput holds the faults that bench finds before it asks a server.
func TestBenchBadInput(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	trace := file("trace.csv", "arrival_ms,model,batch_size\n0,ncf,1\n")
	queries := file("q.jsonl", oneQuery)
	for args, want := range map[string]string{
		"":                                         "--rate",
		"--rate 1":                                 "--model NAME",
		"--model m --rate -1":                      "rate -1 queries/s, want",
		"--model m --rate NaN":                     "rate NaN queries/s, want",
		"--model m --rate 1e30":                    "rate 1e+30 queries/s, want",
		"--model m=0 --rate 1":                     `share "0"`,
		"--model m=x --rate 1":                     `share "x"`,
		"--model =1 --rate 1":                      "has no name",
		"--model m --model m=2 --rate 1":           `"m" is given twice`,
		"--model m --rate 1 --duration -1s":        "duration: -1s",
		"--model m --rate 1 --queries 0":           "queries: 0",
		"--model m --rate 1 --qos-ms -3":           "qos-ms: -3",
		"--model m --rate 1 --qos-ms NaN":          "qos-ms: NaN",
		"--model m --rate 1 --qos-ms 0.0004":       "qos-ms: 0.0004, want at least 0.001",
		"--model m --rate 1 --timeout -1s":         "timeout: -1s",
		"--model m --rate 1 --batch uniform":       `batch sizes "uniform": want trace`,
		"--model m --rate 1 --batch fixed:0":       "fixed batch size 0",
		"--model m --rate 1 --arrivals weekly":     "or artifact, or a file of recorded queries",
		"--from " + dir + "/no.jsonl":              "no.jsonl is no file",
		"--from " + trace + " --arrivals constant": "[arrivals from]",
		"--from " + file("unknown.jsonl",
			`{"at_ms":0,"model":"m","batch":1}`): `line 1: unknown key "batch"`,
		"--input " + queries + " --from " + file("all.jsonl", recorded):             "omit --input",
		"--from " + file("some.jsonl", recorded+`{"at_ms":9,"model":"m","rows":1}`): "all or none",
		"--model m --rate 1 --arrivals gamma:-1":                                    "gamma:SHAPE",
		"--model m --rate 1 --json no/such/file":                                    "json: stat no/such",
		"--model m --rate 1 --plot " + trace +
			"/x.png": "is not a directory",
		"--model m --rate 1 --find-throughput":     "find-throughput rate",
		"--model m --find-throughput --plot x.png": "find-throughput plot",
		"--rate 1 --arrivals " +
			trace: "sets the rate",
		"--find-throughput --arrivals " +
			trace: "sets the rate",
		"--model wnd --arrivals " +
			trace: `queries for model "ncf", which no --model names`,
		"--arrivals " + file("bad.csv", "arrival_ms\n1"): `no column "model"`,
		"--model m --rate 1 extra":                       "unknown command",
		"--model m --rate 1 --fail-below 0":              "fail-below: 0, want percent above 0",
		"--model m --rate 1 --fail-below 101":            "fail-below: 101",
		"--model m --find-throughput --fail-below 99":    "fail-below find-throughput",
		"--model m --rate 1 --input nowhere.jsonl":       "nowhere.jsonl",
		"--model m --rate 1 --input " + trace:            "input " + trace + ": line 1: invalid",
		"--model m --rate 1 --batch trace --input " + queries: "batch: the queries of " + queries +
			" have batch sizes; omit --batch",
		"--model m --model n --rate 1 --input " +
			queries: "for which of the models? Give MODEL=FILE",
		"--model m --rate 1 --input " + queries + " --input m=" + queries: "two files for model",
	} {
		var out, errs bytes.Buffer
		err := run(t.Context(), append([]string{"bench"}, strings.Fields(args)...), nil, &out,
			&errs)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bench %s: error %v, want one with %q", args, err, want)
		}
		if err != nil && exitStatus(err) != 2 {
			t.Errorf("bench %s: exit status %d, want 2", args, exitStatus(err))
		}
		if out.Len() > 0 {
			t.Errorf("bench %s: printed %q", args, &out)
		}
	}
}
