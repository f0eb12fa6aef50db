package serve_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/agenttest"
)

// TestSlowLog: queries that fail are in the slow log with their cause, and with the ids that clients
// sent in headers, by each protocol.
func TestSlowLog(t *testing.T) {
	config := agenttest.Config(t)
	config.SlowLog = filepath.Join(t.TempDir(), "slow.json")
	a := agenttest.Start(t, config, agenttest.Emulated())
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "by-grpc",
		"traceparent", agenttest.TestHeaders["traceparent"])
	unknown := agenttest.NCFRequest(1)
	unknown.ModelName, unknown.Id = "nothing", "q1"
	_, err := a.GRPC.ModelInfer(ctx, unknown)
	agenttest.WantCode(t, err, "NotFound")
	for path, id := range map[string]string{
		"/v2/models/nothing/infer": "by-rest", "/v2/models/ncf/infer": "refused-early",
	} {
		body := map[bool]string{true: `{"inputs":[]}`, false: `{`}[id == "by-rest"]
		a.Exchange("POST", path, body, map[string]string{"X-Request-Id": id})
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(config.SlowLog)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]any{}
	for line := range strings.Lines(string(text)) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		id, _ := l["request_id"].(string)
		found[id] = l
	}
	for id, want := range map[string]map[string]any{
		"by-grpc": {
			"cause": "invalid", "reason": "not_found", "model": "", "id": "q1",
			"trace_id": agenttest.TestTrace,
		},
		"by-rest":       {"cause": "invalid", "reason": "not_found", "model": ""},
		"refused-early": {"cause": "invalid", "reason": "invalid", "model": "ncf"},
	} {
		for key, value := range want {
			if got := found[id][key]; got != value {
				t.Errorf("%s: %s is %v, want %v, in\n%s", id, key, got, value, text)
			}
		}
	}
	if len(found) != 3 {
		t.Errorf("%d queries are in the log, want 3:\n%s", len(found), text)
	}
}
