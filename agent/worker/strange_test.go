package worker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
)

// request sends a request by REST to an agent of the fleet.
func request(f *agenttest.Fleet, a *agenttest.Member, method, path, body string) (int, string) {
	f.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, to string) (net.Conn,
		error) {
		return f.Network.Dial(ctx, "client", to)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(f.Context(), method, "http://"+a.Host+":8000"+path,
		strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// counted returns the sum of a metric's series over the agents, of those with a label's value, or of
// all for "".
func counted(f *agenttest.Fleet, name, value string, agents []*agenttest.Member) (sum float64) {
	f.Helper()
	for _, a := range agents {
		families, err := a.Registry().Gather()
		if err != nil {
			f.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				has := value == ""
				for _, l := range m.GetLabel() {
					has = has || l.GetValue() == value
				}
				if family.GetName() == name && has {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// TestStrangeAnswers: what a model answers is its own fault and never the client's. NaN and infinity
// are answers in each protocol, and counted as such; BYTES that are no text are none to a client that
// gets JSON: such a query fails, and counts as failed alone, wherever it has run.
func TestStrangeAnswers(t *testing.T) {
	bytes := &tensor.Tensor{DataType: tensor.Bytes, Data: []byte("\x02\x00\x00\x00\xc3\x28")}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	const ask = `{"outputs":[{"name":"scores","parameters":{"binary_data":%v}}],`
	for _, agents := range []int{1, 3} {
		t.Run(fmt.Sprint(agents), func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				answer := &atomic.Pointer[tensor.Tensor]{}
				answer.Store(agenttest.FP32(1))
				var all []*agenttest.Member
				for range agents {
					all = append(all, f.Start(func(a agent.Inside) {
						a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
							return agenttest.Strange{Executor: agenttest.Emulated(), Answer: answer}, nil
						}
					}))
				}
				f.Settled(all...)
				leader := f.Led(all...)
				// infer sends n queries by REST and wants the status and the text.
				infer := func(n int, body string, want int, text string) {
					f.Helper()
					for i := range n {
						got, said := request(f, all[i%len(all)], "POST", "/v2/models/ncf/infer", body)
						if got != want || !strings.Contains(said, text) {
							f.Errorf("answer %v: got %d %s, want %d with %s", answer.Load(), got, said,
								want, text)
						}
					}
				}
				const n = 6
				body := agenttest.NCFBody(2)
				for v, text := range map[float32]string{
					inf: `"Infinity","Infinity"`, -inf: `"-Infinity","-Infinity"`, nan: `"NaN","NaN"`,
				} {
					answer.Store(agenttest.FP32(v))
					infer(n, body, 200, `"data":[`+text+`]`)
				}
				answer.Store(agenttest.FP32(nan))
				infer(n, strings.Replace(body, "{", fmt.Sprintf(ask, true), 1), 200, "binary_data_size")
				for i := range n {
					if _, err := all[i%len(all)].OIP.ModelInfer(f.Context(), agenttest.NCFRequest(2)); err != nil {
						f.Errorf("NaN by gRPC: %v", err)
					}
				}
				for value, want := range map[string]float64{
					"nan": 3 * n, "infinity": n, "-infinity": n,
				} {
					if got := counted(f, "muster_nonfinite_answers_total", value, all); got != want {
						f.Errorf("%v answers with %s, want %v", got, value, want)
					}
				}

				answer.Store(bytes)
				infer(n, body, 500, "output \\\"scores\\\": element 0 is not valid UTF-8")
				infer(n, strings.Replace(body, "{", fmt.Sprintf(ask, true), 1), 200, "binary_data_size")
				for i := range n {
					if _, err := all[i%len(all)].OIP.ModelInfer(f.Context(), agenttest.NCFRequest(2)); err != nil {
						f.Errorf("bytes by gRPC: %v", err)
					}
				}
				const answered = 7 * n
				for name, want := range map[string]float64{
					"muster_arrived_queries_total": answered + n, "muster_queries_total": answered,
					"muster_failed_queries_total": n,
				} {
					if got := counted(f, name, "", all); got != want {
						f.Errorf("%s is %v, want %v", name, got, want)
					}
				}
				if got := counted(f, "muster_failed_queries_total", "internal", all); got != n {
					f.Errorf("%v queries failed as internal, want %d", got, n)
				}
				success, fail := uint64(0), uint64(0)
				for _, a := range all {
					stats, err := a.OIP.ModelStatistics(f.Context(),
						&inference.ModelStatisticsRequest{Name: "ncf"})
					if err != nil {
						f.Fatal(err)
					}
					for _, s := range stats.GetModelStats() {
						success += s.GetInferenceStats().GetSuccess().GetCount()
						fail += s.GetInferenceStats().GetFail().GetCount()
					}
				}
				if success != answered || fail != n {
					f.Errorf("the statistics have %d successes and %d failures, want %d and %d", success,
						fail, answered, n)
				}
				f.Eventually(20*time.Second, func() string {
					s, err := leader.Control.Status(f.Context(), &control.StatusRequest{})
					if err != nil {
						return err.Error()
					}
					for _, m := range s.GetModels() {
						if m.GetModel() == "ncf" {
							got := fmt.Sprintf("%d answered, %d refused, %d not finite, %.3f within",
								m.GetAnswered(), m.GetRefused(), m.GetNonFinite(), m.GetWithinQos())
							want := fmt.Sprintf("%d answered, %d refused, %d not finite, %.3f within",
								answered, n, 5*n, float64(answered)/(answered+n))
							if got != want {
								return fmt.Sprintf("the status has %s, want %s", got, want)
							}
							return ""
						}
					}
					return "the status has no ncf"
				})
				if agents == 1 {
					return
				}
				// A gateway's attempt says that the answer is to be JSON.
				ctx := metadata.AppendToOutgoingContext(f.Context(), control.AttemptHeader,
					"1/1/1/0/0/0", control.JSONHeader, "1")
				if _, err := leader.OIP.ModelInfer(ctx, agenttest.NCFRequest(1)); status.Code(err) !=
					codes.Internal {
					f.Errorf("an attempt for JSON: got %v, want INTERNAL", err)
				}
			})
		})
	}
}
