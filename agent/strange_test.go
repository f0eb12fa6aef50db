package agent

import (
	"context"
	"encoding/binary"
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

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// A strange executor's models answer each item with the same element.
type strange struct {
	runtime.Executor
	answer *atomic.Pointer[tensor.Tensor] // the element, without its name and shape
}

func (s strange) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := s.Executor.Load(ctx, v)
	return strangeModel{m, s}, err
}

type strangeModel struct {
	runtime.Model
	of strange
}

func (m strangeModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	r, err := m.Model.Run(ctx, inputs)
	if err != nil {
		return nil, err
	}
	answer, n := m.of.answer.Load(), inputs[0].Shape[0]
	for i := range r.Outputs {
		r.Outputs[i].DataType, r.Outputs[i].Shape = answer.DataType, []int64{n}
		r.Outputs[i].Data = []byte(strings.Repeat(string(answer.Data), int(n)))
	}
	return r, nil
}

// fp32 returns an element for a strange executor.
func fp32(v float32) *tensor.Tensor {
	return &tensor.Tensor{
		DataType: tensor.FP32, Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)),
	}
}

// post sends a query by REST to an agent of the fleet.
func (f *testFleet) post(a *fleetAgent, path, body string) (int, string) {
	f.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, to string) (net.Conn,
		error) {
		return f.network.dial(ctx, "client", to)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(f.Context(), "POST", "http://"+a.host+":8000"+path,
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
func counted(f *testFleet, name, value string, agents []*fleetAgent) (sum float64) {
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
			testInFleet(t, func(f *testFleet) {
				answer := &atomic.Pointer[tensor.Tensor]{}
				answer.Store(fp32(1))
				var all []*fleetAgent
				for range agents {
					all = append(all, f.start(func(a Inside) {
						a.Environment().OpenExecutor = func(Config, *slog.Logger) (runtime.Executor, error) {
							return strange{emulated(), answer}, nil
						}
					}))
				}
				f.settled(all...)
				leader := f.led(all...)
				// infer sends n queries by REST and wants the status and the text.
				infer := func(n int, body string, want int, text string) {
					f.Helper()
					for i := range n {
						got, said := f.post(all[i%len(all)], "/v2/models/ncf/infer", body)
						if got != want || !strings.Contains(said, text) {
							f.Errorf("answer %v: got %d %s, want %d with %s", answer.Load(), got, said,
								want, text)
						}
					}
				}
				const n = 6
				body := ncfBody(2)
				for v, text := range map[float32]string{
					inf: `"Infinity","Infinity"`, -inf: `"-Infinity","-Infinity"`, nan: `"NaN","NaN"`,
				} {
					answer.Store(fp32(v))
					infer(n, body, 200, `"data":[`+text+`]`)
				}
				answer.Store(fp32(nan))
				infer(n, strings.Replace(body, "{", fmt.Sprintf(ask, true), 1), 200, "binary_data_size")
				for i := range n {
					if _, err := all[i%len(all)].oip.ModelInfer(f.Context(), ncfRequest(2)); err != nil {
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
					if _, err := all[i%len(all)].oip.ModelInfer(f.Context(), ncfRequest(2)); err != nil {
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
					stats, err := a.oip.ModelStatistics(f.Context(),
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
				f.eventually(20*time.Second, func() string {
					s, err := leader.ctl.Status(f.Context(), &control.StatusRequest{})
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
				if _, err := leader.oip.ModelInfer(ctx, ncfRequest(1)); status.Code(err) !=
					codes.Internal {
					f.Errorf("an attempt for JSON: got %v, want INTERNAL", err)
				}
			})
		})
	}
}
