//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testAlone sends one agent three times the queries that it can serve: WND with batch size 256 from
// 8, 64 and 512 clients. Each sends its next query when it knows the outcome of the last, and after
// a refusal when it is told to try again; 64 clients also do so as fast as they can. Wanted: each
// query is answered or refused, at least 0.8 of what the agent can do is answered in time, and the
// 99th percentile of the answers is at most three QoS targets. The target is the model's own or, if
// this machine is too slow for that, three times what a query takes. The short form, in which
// queries may wait for long, wants some answers and nothing but answers and refusals.
func (r *run) testAlone(ctx context.Context) error {
	f, _, _, err := r.startReal(ctx, pick(r, zoo.Default, zoo.Small), "wnd")
	if err != nil {
		return err
	}
	v, err := models.ReadVersion(filepath.Join(f.Dir, "models"), "wnd", 1)
	if err != nil {
		return err
	}
	conn, err := f.Dial(ctx, f.Nodes[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	query, err := zeros(v, 256)
	if err != nil {
		return err
	}
	l := closedLoop{
		inference.NewGRPCInferenceServiceClient(conn), query, pick(r, 0, harness.Patience),
	}
	lasts, target := pick(r, 10*time.Second, time.Second), v.Config.QoSTarget
	// Two clients keep the agent busy, and are in time if nobody else asks.
	capacity := func() (float64, error) {
		got, err := l.run(ctx, 2, 0, lasts/4)
		if err == nil && len(got.answered) == 0 {
			err = fmt.Errorf("none of %d queries was answered", got.refused+got.failed)
		}
		return float64(len(got.answered)) / (lasts / 4).Seconds(), err
	}
	dir := filepath.Join(f.Dir, "models")
	if err := l.changeTarget(ctx, dir, harness.Patience); err != nil {
		return err
	}
	can := 0.
	for range 2 { // first it gets to know how long a run takes
		if can, err = capacity(); err != nil {
			return err
		}
	}
	target = max(target, time.Duration(3/can*float64(time.Second)).Round(time.Millisecond))
	if err := l.changeTarget(ctx, dir, target); err != nil {
		return err
	}
	r.printLine("The agent answers %.0f queries/s of two clients; the QoS target is %v", can,
		target)
	for _, clients := range []int{-64, 8, 64, 512} {
		what := fmt.Sprintf("%d clients at three times that", clients)
		pace := time.Duration(float64(clients) / (3 * can) * float64(time.Second))
		if clients < 0 {
			clients, pace = -clients, 0
			what = fmt.Sprintf("%d clients without pause", clients)
		}
		got, err := l.run(ctx, clients, pace, lasts)
		if err != nil {
			return err
		}
		before := can
		if can, err = capacity(); err != nil { // it changes with what else the machine does
			return err
		}
		slices.Sort(got.answered)
		inTime, _ := slices.BinarySearch(got.answered, target+1)
		r.checkWanted(len(got.answered) > 0 && got.failed == 0,
			"%s: %d answered, %d refused, %d neither; want some, any, none", what,
			len(got.answered), got.refused, got.failed)
		if len(got.answered) == 0 {
			continue
		}
		rate, possible := float64(inTime)/lasts.Seconds(), (before+can)/2
		r.wantQuiet(rate >= 0.8*possible, "%s: %.0f queries/s in time, %.2f of %.0f, want 0.80",
			what, rate, rate/possible, possible)
		p99 := got.answered[len(got.answered)*99/100]
		r.wantQuiet(p99 <= 3*target, "%s: 99 %% of the answers within %v, want %v", what,
			p99.Round(100*time.Microsecond), 3*target)
	}
	return nil
}

// changeTarget changes the model's QoS target, and has the agent load the model again.
func (l *closedLoop) changeTarget(ctx context.Context, dir string, target time.Duration) error {
	err := editConfig(dir, l.query.GetModelName(),
		fmt.Sprintf("qos_target_ms: %d\ndeadline_ms: %d\n",
			target.Milliseconds(), 10*target.Milliseconds()))
	if err != nil {
		return err
	}
	_, err = l.to.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
		ModelName: l.query.GetModelName(),
	})
	return err
}

// zeros returns a query of a batch size whose inputs are all zero.
func zeros(v *models.Version, batch int) (*inference.ModelInferRequest, error) {
	query := &inference.ModelInferRequest{ModelName: v.Model}
	for _, in := range v.Inputs {
		shape := append([]int64{int64(batch)}, in.Shape[1:]...)
		n, err := tensor.Elements(shape)
		if err != nil {
			return nil, err
		}
		query.Inputs = append(query.Inputs, &inference.ModelInferRequest_InferInputTensor{
			Name: in.Name, Datatype: string(in.DataType), Shape: shape,
		})
		query.RawInputContents = append(query.RawInputContents, make([]byte, n*in.DataType.Size()))
	}
	return query, nil
}

// A closedLoop is clients that each send a query when they know the outcome of the last.
type closedLoop struct {
	to    inference.GRPCInferenceServiceClient
	query *inference.ModelInferRequest
	// timeout is the queries' own; 0: none, the model's deadline holds.
	timeout time.Duration
}

// sendQuery sends a query.
func (l *closedLoop) sendQuery(ctx context.Context) error {
	if l.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.timeout)
		defer cancel()
	}
	_, err := l.to.ModelInfer(ctx, l.query)
	return err
}

// outcomes are what became of queries.
type outcomes struct {
	answered        []time.Duration // their latencies
	refused, failed int
}

// run lets clients send queries for a time, each at most one in a pace.
func (l *closedLoop) run(ctx context.Context, clients int, pace, lasts time.Duration) (all outcomes,
	err error) {
	var mu sync.Mutex
	_, err = harness.Loop{Clients: clients, For: lasts, Pace: pace,
		Send: func(ctx context.Context) (wait time.Duration, err error) {
			start := time.Now()
			err = l.sendQuery(ctx)
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			switch s := status.Convert(err); s.Code() {
			case codes.OK:
				all.answered = append(all.answered, took)
			case codes.ResourceExhausted:
				all.refused++
				wait = oip.RetryAfter(s)
			default:
				all.failed++
			}
			return wait, nil
		}}.Run(ctx)
	return all, err
}
