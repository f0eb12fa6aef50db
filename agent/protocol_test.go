package agent_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/tensor"
)

// inferBinary sends a query by REST with binary tensors both ways and returns
// the outputs' data.
func inferBinary(a *agenttest.Agent, model string, inputs []tensor.Tensor) [][]byte {
	a.T.Helper()
	body, n := agenttest.BinaryBody(inputs)
	resp, answer := a.Exchange("POST", "/v2/models/"+model+"/infer", body, map[string]string{
		"Inference-Header-Content-Length": strconv.Itoa(n),
	})
	if resp.StatusCode != http.StatusOK {
		a.T.Fatalf("%s: %d %s", model, resp.StatusCode, answer)
	}
	return binaryOutputs(a.T, resp, answer)
}

func binaryOutputs(t testing.TB, resp *http.Response, body string) [][]byte {
	t.Helper()
	length, err := strconv.Atoi(resp.Header.Get("Inference-Header-Content-Length"))
	if err != nil {
		t.Fatal(err)
	}
	var header struct {
		Outputs []struct {
			Parameters struct {
				Size int `json:"binary_data_size"`
			}
		}
	}
	if err := json.Unmarshal([]byte(body[:length]), &header); err != nil {
		t.Fatal(err)
	}
	var outputs [][]byte
	rest := []byte(body[length:])
	for _, o := range header.Outputs {
		outputs = append(outputs, rest[:o.Parameters.Size])
		rest = rest[o.Parameters.Size:]
	}
	if len(rest) > 0 {
		t.Fatalf("%d bytes after the outputs", len(rest))
	}
	return outputs
}
