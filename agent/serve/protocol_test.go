package serve_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models/zoo"
)

func TestREST(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	for _, tt := range []struct {
		method, path, body string
		status             int
		want               []string
	}{
		{"GET", "/", "", 200, []string{
			`"name":"muster"`, `"ready":true`, "/v2/models/ncf/versions/1", a.Addresses().GRPC,
			a.Addresses().Metrics,
		}},
		{"GET", "/livez", "", 200, []string{`{"live":true}`}},
		{"GET", "/readyz", "", 200, []string{`{"ready":true}`}},
		{"GET", "/v2", "", 200, []string{`"name":"muster"`, `"version":`, `"binary_tensor_data"`}},
		{"GET", "/v2/", "", 200, []string{`"name":"muster"`}},
		{"GET", "/v2/health/live", "", 200, []string{`{"live":true}`}},
		{"GET", "/v2/health/ready/", "", 200, []string{`{"ready":true}`}},
		{"GET", "/v2/models/ncf", "", 200, []string{
			`"name":"ncf"`, `"versions":["1"]`, `"platform":"emulated"`, `"shape":[-1,4]`,
			`"qos_target_ms":"5"`,
		}},
		{"GET", "/v2/models/ncf/versions/1", "", 200, []string{`"name":"ncf"`}},
		{"GET", "/v2/models/ncf/ready", "", 200, []string{`{"name":"ncf","ready":true}`}},
		{"GET", "/v2/models/ncf/versions/1/ready/", "", 200, []string{`"ready":true`}},
		{"POST", "/v2/models/ncf/infer", agenttest.NCFBody(2), 200, []string{
			`"model_name":"ncf"`, `"model_version":"1"`, `"shape":[2,64]`,
		}},
		{"POST", "/v2/models/ncf/versions/1/infer", agenttest.NCFBody(2), 200, []string{
			`"model_name":"ncf"`,
		}},
		{"GET", "/v2/models/ncf/stats", "", 200, []string{
			`"name":"ncf"`, `"inference_count":4`, `"execution_count":2`, `"success":{"count":2`,
		}},
		{"GET", "/v2/models/ncf/versions/1/stats", "", 200, []string{`"name":"ncf"`}},
		{"GET", "/v2/models/ncf/versions/01/stats", "", 200, []string{`"name":"ncf"`}},
		{"GET", "/v2/models/stats", "", 200, []string{`"name":"ncf"`, `"name":"wnd"`}},
		{"POST", "/v2/repository/index", "", 200, []string{
			`[{"name":"dien","version":"1","state":"READY","reason":""}`,
		}},
		{"POST", "/v2/repository/index", `{"ready":true}`, 200, []string{`[{"name":"dien"`}},
		{"POST", "/v2/repository/models/wnd/unload", `{"parameters":{"unload_dependents":false}}`,
			200, nil},
		{"GET", "/v2/models/wnd/ready", "", 503, []string{"not ready"}},
		{"POST", "/v2/models/wnd/infer", "{}", 503, []string{"not ready"}},
		{"POST", "/v2/repository/models/wnd/load", "{}", 200, nil},
		{"GET", "/v2/models/wnd/ready", "", 200, nil},

		{"GET", "/v2/models/dlrm", "", 404, []string{`{"error":`, "dlrm"}},
		{"GET", "/v2/models/ncf/versions/7", "", 404, []string{"ncf", "7"}},
		{"GET", "/v2/models/ncf/versions/x", "", 400, []string{`version \"x\"`}},
		{"GET", "/v2/models/dlrm/ready", "", 404, nil},
		{"GET", "/v2/models/dlrm/stats", "", 404, []string{"dlrm"}},
		{"POST", "/v2/repository/models/dlrm/load", "", 404, []string{"dlrm"}},
		{"POST", "/v2/repository/models/dlrm/unload", "", 404, []string{"dlrm"}},
		{"POST", "/v2/repository/models/..%2Fetc/load", "", 400, []string{"../etc"}},
		{"POST", "/v2/repository/models/..%2Fetc/unload", "", 400, []string{"../etc"}},
		{"POST", "/v2/repository/models/ncf/load", `{"parameters":{"config":"{}"}}`, 400, []string{
			`config`, "model.yaml",
		}},
		{"POST", "/v2/repository/index", `{"ready":`, 400, []string{"body"}},
		{"POST", "/v2/repository/index", strings.Repeat(" ", 64<<10+1), 413, []string{"65536"}},
		{"GET", "/nowhere", "", 404, []string{`{"error":"GET /nowhere: not found`}},
		{"PUT", "/v2", "", 405, []string{`{"error":"PUT /v2: method not allowed`}},
		{"GET", "/v2/models/ncf/infer", "", 405, []string{"method not allowed"}},
	} {
		status, body := a.Do(tt.method, tt.path, tt.body)
		if status != tt.status {
			t.Errorf("%s %s: got %d %s, want %d", tt.method, tt.path, status, body, tt.status)
		}
		for _, want := range tt.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s %s: got %s, want %s in it", tt.method, tt.path, body, want)
			}
		}
	}
}

func TestGRPC(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	ctx := t.Context()
	if resp, err := a.GRPC.ServerLive(ctx, &inference.ServerLiveRequest{}); err != nil ||
		!resp.GetLive() {
		t.Errorf("ServerLive: %v, %v", resp, err)
	}
	if resp, err := a.GRPC.ServerReady(ctx, &inference.ServerReadyRequest{}); err != nil ||
		!resp.GetReady() {
		t.Errorf("ServerReady: %v, %v", resp, err)
	}
	if resp, err := a.GRPC.ServerMetadata(ctx, &inference.ServerMetadataRequest{}); err != nil ||
		resp.GetName() != "muster" {
		t.Errorf("ServerMetadata: %v, %v", resp, err)
	}
	for model, want := range map[string]bool{"ncf": true, "dlrm": false} {
		if resp, err := a.GRPC.ModelReady(ctx,
			&inference.ModelReadyRequest{Name: model}); err != nil || resp.GetReady() != want {
			t.Errorf("ModelReady of %s: %v, %v", model, resp, err)
		}
	}
	metadata, err := a.GRPC.ModelMetadata(ctx, &inference.ModelMetadataRequest{
		Name: "wnd", Version: "1",
	})
	if err != nil || len(metadata.GetInputs()) != 2 ||
		metadata.GetProperties()["qos_target_ms"] != "25" {
		t.Errorf("ModelMetadata: %v, %v", metadata, err)
	}
	req := agenttest.NCFRequest(3)
	req.Id = "q1"
	resp, err := a.GRPC.ModelInfer(ctx, req)
	if err != nil || resp.GetId() != "q1" || resp.GetModelVersion() != "1" ||
		fmt.Sprint(resp.GetOutputs()[0].GetShape()) != "[3 64]" ||
		len(resp.GetRawOutputContents()[0]) != 3*64*4 {
		t.Errorf("ModelInfer: %v, %v", resp, err)
	}
	stats, err := a.GRPC.ModelStatistics(ctx, &inference.ModelStatisticsRequest{Name: "ncf"})
	if err != nil || len(stats.GetModelStats()) != 1 ||
		stats.GetModelStats()[0].GetInferenceCount() != 3 ||
		stats.GetModelStats()[0].GetLastInference() == 0 {
		t.Errorf("ModelStatistics: %v, %v", stats, err)
	}
	index, err := a.GRPC.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
	if err != nil || len(index.GetModels()) != len(zoo.Names()) {
		t.Errorf("RepositoryIndex: %v, %v", index, err)
	}
	if _, err := a.GRPC.RepositoryModelUnload(ctx,
		&inference.RepositoryModelUnloadRequest{ModelName: "ncf"}); err != nil {
		t.Error(err)
	}
	agenttest.WantCode(t, a.InferGRPC(agenttest.NCFRequest(1)), "Unavailable", "ncf")
	if resp, err := a.GRPC.ModelReady(ctx, &inference.ModelReadyRequest{Name: "ncf"}); err != nil ||
		resp.GetReady() {
		t.Errorf("ModelReady after unload: %v, %v", resp, err)
	}
	if _, err := a.GRPC.RepositoryModelLoad(ctx,
		&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
		t.Error(err)
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Error(err)
	}
	_, err = a.GRPC.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
		ModelName: "dlrm",
	})
	agenttest.WantCode(t, err, "NotFound", "dlrm")
	_, err = a.GRPC.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
		ModelName: "../ncf",
	})
	agenttest.WantCode(t, err, "InvalidArgument", "../ncf")
	_, err = a.GRPC.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
		ModelName: "ncf", RepositoryName: "other",
	})
	agenttest.WantCode(t, err, "InvalidArgument", `repository name "other"`)
	_, err = a.GRPC.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "dlrm"})
	agenttest.WantCode(t, err, "NotFound", "dlrm")
	_, err = a.GRPC.ModelStatistics(ctx, &inference.ModelStatisticsRequest{Version: "x"})
	agenttest.WantCode(t, err, "InvalidArgument", `version "x"`)
	_, err = a.GRPC.ModelStatistics(ctx, &inference.ModelStatisticsRequest{Name: "dlrm"})
	agenttest.WantCode(t, err, "NotFound", "dlrm")
}

// TestHealth: grpc.health.v1 for the server, the service and each model.
func TestHealth(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	health := healthpb.NewHealthClient(a.Conn)
	check := func(service string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		resp, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != want {
			t.Errorf("health of %q: got %v, %v, want %v", service, resp.GetStatus(), err, want)
		}
	}
	for _, service := range []string{"", "inference.GRPCInferenceService", "ncf"} {
		check(service, healthpb.HealthCheckResponse_SERVING)
	}
	if status, body := a.Do("POST", "/v2/repository/models/ncf/unload",
		""); status != http.StatusOK {
		t.Fatal(status, body)
	}
	check("ncf", healthpb.HealthCheckResponse_NOT_SERVING)
	check("wnd", healthpb.HealthCheckResponse_SERVING)
	_, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "dlrm"})
	agenttest.WantCode(t, err, "NotFound")
}

// TestCompression: queries and answers compressed in each way.
func TestCompression(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	_, want := a.Do("POST", "/v2/models/ncf/infer", agenttest.NCFBody(3))
	deflated := func(text string) string {
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, tt := range []struct {
		encoding string
		body     string
		reader   func(io.Reader) (io.ReadCloser, error)
	}{
		{"gzip", gzipped(agenttest.NCFBody(3)),
			func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
		{"deflate", deflated(agenttest.NCFBody(3)), zlib.NewReader},
	} {
		resp, body := a.Exchange("POST", "/v2/models/ncf/infer", tt.body, map[string]string{
			"Content-Encoding": tt.encoding, "Accept-Encoding": tt.encoding,
		})
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != tt.encoding {
			t.Fatalf("%s: got %d, Content-Encoding %q: %s", tt.encoding, resp.StatusCode,
				resp.Header.Get("Content-Encoding"), body)
		}
		plain, err := tt.reader(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(plain)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", tt.encoding, got, err, want)
		}
		// An error goes out plain.
		resp, body = a.Exchange("POST", "/v2/models/ncf/infer", "{}", map[string]string{
			"Accept-Encoding": tt.encoding,
		})
		if resp.StatusCode != http.StatusBadRequest || resp.Header.Get("Content-Encoding") != "" ||
			!strings.HasPrefix(body, `{"error":`) {
			t.Errorf("%s: an error: got %d, Content-Encoding %q: %s", tt.encoding, resp.StatusCode,
				resp.Header.Get("Content-Encoding"), body)
		}
	}
}
