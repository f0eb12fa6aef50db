package serve_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/capture"
	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/models/store"
)

// capturing is the configuration of an agent that keeps all queries of ncf, by the given rule, in the
// folder.
func capturing(t *testing.T, rule string) (config agent.Config, dir string) {
	config = agenttest.Config(t)
	config.ModelDir, dir = t.TempDir(), filepath.Join(t.TempDir(), "kept")
	err := agenttest.CopyNCF(config.ModelDir, "ncf", func(settings []byte) []byte {
		// A busy machine may keep a query waiting for longer than its usual deadline of 50 ms.
		return append([]byte("requires: 3\ncapture: "+rule+"\n"),
			bytes.Replace(settings, []byte("deadline_ms: 50"), []byte("deadline_ms: 60000"), 1)...)
	})
	if err != nil {
		t.Fatal(err)
	}
	config.Capture = dir
	return config, dir
}

func readCaptures(t *testing.T, dir string) (all []querytrace.TracedQuery) {
	t.Helper()
	err := capture.Read(t.Context(), store.Directory(dir), time.Unix(0, 0),
		func(q querytrace.TracedQuery) error {
			all = append(all, q)
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCapture: queries of two clients at once are kept with their own inputs and answers, by each
// protocol, and a query that fails with its reason and cause.
func TestCapture(t *testing.T) {
	config, dir := capturing(t, "{share: 1}")
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("shop: shop-shop-shop-shop\nnews: news-news-news-news\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config.Security.APIKeysFile = keys
	a := agenttest.Start(t, config, agenttest.Emulated())
	// An agent keeps nothing before its gateway knows what it holds.
	for a.Gateway().CaptureRule("ncf", "").Capture == nil {
		time.Sleep(time.Millisecond)
	}
	const each = 50
	var clients sync.WaitGroup
	for i, client := range []string{"shop", "news"} {
		clients.Go(func() {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization",
				"Bearer "+strings.Repeat(client+"-", 3)+client)
			for range each {
				q := agenttest.NCFRequest(3)
				for k := range q.Inputs[0].Contents.Int64Contents {
					q.Inputs[0].Contents.Int64Contents[k] = int64(1 + i)
				}
				if _, err := a.GRPC.ModelInfer(ctx, q); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	a.Exchange("POST", "/v2/models/ncf/infer", `{"inputs":[]}`,
		map[string]string{
			"Authorization": "Bearer shop-shop-shop-shop", "Connection": "close", // a drain waits for it
		})
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, q := range readCaptures(t, dir) {
		count[q.Client+" "+q.Outcome]++
		if q.Outcome != "ok" {
			if q.Cause != "invalid" || q.Client != "shop" || q.Outputs != nil {
				t.Errorf("a query without inputs is kept as %+v", q)
			}
			continue
		}
		want := map[string]uint64{"shop": 1, "news": 2}[q.Client]
		for data := q.Inputs[0].Data; len(data) > 0; data = data[8:] {
			if got := binary.LittleEndian.Uint64(data); got != want {
				t.Fatalf("a query of %s has the id %d, want %d", q.Client, got, want)
			}
		}
		if q.Agent != a.Name() || q.Version != "1" || q.Latency <= 0 || q.Rows != 3 ||
			len(q.Outputs) != 1 || q.Outputs[0].Shape[0] != 3 {
			t.Fatalf("kept %+v", q)
		}
	}
	if count["shop ok"] != each || count["news ok"] != each || len(count) != 3 {
		t.Errorf("kept %v, want %d answers of each client and a failure", count, each)
	}
}

// TestCaptureRule: what the model's settings leave out is not kept, and a share is a share.
func TestCaptureRule(t *testing.T) {
	config, dir := capturing(t, "{share: .2, leave_out: [client], hash: [ids]}")
	a := agenttest.Start(t, config, agenttest.Emulated())
	const sent = 500
	for range sent {
		if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	all := readCaptures(t, dir)
	// 100 expected; 55 and 145 are 5 standard deviations away.
	if len(all) < 55 || len(all) > 145 {
		t.Errorf("kept %d of %d queries, want a fifth", len(all), sent)
	}
	ids := agenttest.NCFIDs(2)
	for i, q := range all {
		if q.Client != "" || len(q.Inputs) != 1 {
			t.Fatalf("kept %+v", q)
		}
		same := 0
		for k := range ids {
			if binary.LittleEndian.Uint64(q.Inputs[0].Data[8*k:]) == uint64(ids[k]) {
				same++
			}
		}
		if same == len(ids) || string(q.Inputs[0].Data) != string(all[0].Inputs[0].Data) {
			t.Fatalf("query %d has the ids of the query, or other hashes than the first", i)
		}
	}
}

// TestCaptureBroken: an agent whose captures cannot be written answers every query, and counts those
// that it does not keep.
func TestCaptureBroken(t *testing.T) {
	config, _ := capturing(t, "{share: 1}")
	config.Capture = "s3://nowhere"
	refused := errors.New("the store refuses")
	a := agenttest.Start(t, config, agenttest.Emulated(), func(in agent.Inside) {
		in.Agent.OpenBucket(func(context.Context, string) (store.Bucket, error) { return nil, refused })
	})
	for range 20 {
		if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	families, err := a.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	lost := 0.0
	for _, f := range families {
		if f.GetName() == "muster_capture_dropped_queries_total" {
			for _, m := range f.Metric {
				lost += m.GetCounter().GetValue()
			}
		}
	}
	if lost != 20 {
		t.Errorf("%v queries are counted as dropped, want 20", lost)
	}
}

// TestCaptureFaults: an agent does not serve a
// model whose rule names what it does not have.
func TestCaptureFaults(t *testing.T) {
	config, _ := capturing(t, "{share: 1, leave_out: [idz]}")
	a := agenttest.Start(t, config, agenttest.Emulated())
	if _, text := a.Do("GET", "/v2/models/ncf", ""); !strings.Contains(text, "ncf") {
		t.Errorf("got %s", text)
	}
	if !strings.Contains(a.Log.String(), `the model has no \"idz\"`) {
		t.Errorf("the log does not name the column that is not there:\n%s", a.Log)
	}
}
