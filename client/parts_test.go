package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/leader/match"
)

func partOf(sequence uint64, n int) uint64 {
	return match.QueryID{Sequence: sequence}.Part(n).Sequence
}

func isPart(sequence uint64) bool { return match.QueryID{Sequence: sequence}.IsPart() }

// splitInto splits whole queries into parts of these rows, and assigns the parts, again too, to
// agents in turn.
func splitInto(rows ...uint32) func(*control.Submit, int) *control.MatchMessage {
	turn := 0
	assign := func(sequence uint64, attempt uint32) *control.Assign {
		turn++
		return &control.Assign{
			Sequence: sequence, Attempt: attempt, Agent: fmt.Sprint("agent-", (turn-1)%3),
			ExecutionNs: int64(time.Millisecond),
		}
	}
	return func(s *control.Submit, _ int) *control.MatchMessage {
		if isPart(s.Sequence) || s.Agent != "" {
			return &control.MatchMessage{
				Assign: []*control.Assign{assign(s.Sequence, s.Attempts+1)},
			}
		}
		m := &control.MatchMessage{Split: []*control.Split{{Sequence: s.Sequence, Rows: rows}}}
		for i := range rows {
			m.Assign = append(m.Assign, assign(partOf(s.Sequence, i+1), 1))
		}
		return m
	}
}

// rowsQuery is a query of which row i is the numbers i and n, so that the sums tell the rows'
// order.
func rowsQuery(t *testing.T, rows int, n float32) *oip.Request {
	values := make([]float32, 0, 2*rows)
	for i := range rows {
		values = append(values, float32(i), n)
	}
	x, err := tensor.Of("x", values, int64(rows), 2)
	if err != nil {
		t.Fatal(err)
	}
	return &oip.Request{Model: "sum", ID: "mine", Inputs: []tensor.Tensor{x}}
}

// inOrder returns what is wrong with the answer to a rowsQuery.
func inOrder(resp *oip.Response, rows int, n float32) error {
	out, _ := resp.Output("sum")
	sums, err := tensor.Values[float32](out)
	if err != nil || !slices.Equal(out.Shape, []int64{int64(rows), 1}) || len(sums) != rows ||
		resp.ID != "mine" || resp.Model != "sum" || resp.Version != "1" {
		return fmt.Errorf("got %+v, %v; want %d rows", resp, err, rows)
	}
	for i, sum := range sums {
		if sum != float32(i)+n {
			return fmt.Errorf("row %d of %d is %v, want %v", i, rows, sum, float32(i)+n)
		}
	}
	return nil
}

// TestMergeHeader: a worker hears with which queries the leader wants a query to run, and of a
// query that runs alone nothing.
func TestMergeHeader(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = func(s *control.Submit, _ int) *control.MatchMessage {
			a := &control.Assign{
				Sequence: s.Sequence, Attempt: s.Attempts + 1, Agent: "agent-1",
				ExecutionNs: int64(time.Millisecond),
			}
			if s.BatchSize == 2 {
				a.Merge, a.Merged = 7, 3
			}
			return &control.MatchMessage{Assign: []*control.Assign{a}}
		}
		g := f.gateway()
		settle()
		for rows := range 2 {
			if _, err := g.Infer(t.Context(), rowsQuery(t, rows+1, 0), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		seen := f.agents[1].seen
		if len(seen) != 2 || seen[0].Merge != 0 || seen[0].Merged != 0 || seen[1].Merge != 7 ||
			seen[1].Merged != 3 {
			t.Errorf("attempts %+v, want the second one to name group 7 of 3", seen)
		}
	})
}

// TestParts: the parts of a query that the leader splits run at the same time, and the answer has
// its rows in order.
func TestParts(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = splitInto(3, 3, 4)
		g := f.gateway()
		settle()
		start := time.Now()
		resp, err := g.Infer(t.Context(), rowsQuery(t, 10, 100), start)
		if err != nil {
			t.Fatal(err)
		}
		if err := inOrder(resp, 10, 100); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != time.Millisecond {
			t.Errorf("took %v, want that of one part, 1ms", took)
		}
		settle()
		for i, a := range f.agents {
			if len(a.seen) != 1 || a.seen[0].Part != uint32(i+1) ||
				a.seen[0].Sequence != partOf(4, i+1) || len(a.cancels)+len(a.unused) > 0 {
				t.Errorf("%s: attempts %v, cancels %v, unused %v; want one, of part %d", a.name,
					a.seen, a.cancels, a.unused, i+1)
			}
		}
		if s := g.Stats(); s.Queries != 1 || s.Splits != 1 || s.Submits != 1 || s.Attempts != 3 {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestPartLost: a part whose attempt fails is submitted alone, and runs again.
func TestPartLost(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = splitInto(1, 9)
		f.agents[1].refuse = status.Error(codes.Unavailable, "the lane is full")
		g := f.gateway()
		settle()
		resp, err := g.Infer(t.Context(), rowsQuery(t, 10, 7), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := inOrder(resp, 10, 7); err != nil {
			t.Error(err)
		}
		last := f.agents[0].submits[len(f.agents[0].submits)-1]
		if last.Sequence != partOf(4, 2) || last.BatchSize != 9 || last.Attempts != 1 ||
			!last.Splits || last.Version != 1 {
			t.Errorf("the last submit is %v, want part 2", last)
		}
	})
}

// TestRankedPartLost: a part that is submitted again tells the users and values that it has: those of
// its own rows, and all of the user's.
func TestRankedPartLost(t *testing.T) {
	r, err := roles.Complete(roles.Roles{
		Inputs: []roles.NamedRole{
			{Name: "x", Role: roles.Row}, {Name: "tags", Role: roles.Ragged},
			{Name: "tag_lengths", Role: roles.Ragged}, {Name: "history", Role: roles.Ragged},
			{Name: "history_lengths", Role: roles.Ragged},
		},
		Outputs: []roles.NamedRole{{Name: "sum", Role: roles.Row}},
		Ragged: []roles.Feature{
			{Values: "tags", Form: roles.Lengths, Index: "tag_lengths", Per: roles.Row},
			{Values: "history", Form: roles.Lengths, Index: "history_lengths", Per: roles.User},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ids := func(name string, values ...int64) tensor.Tensor {
		made, err := tensor.Of(name, values, int64(len(values)))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.metadata = &inference.ModelMetadataResponse{Properties: oip.Properties{Roles: r}.Map()}
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = splitInto(1, 3)
		f.agents[1].refuse = status.Error(codes.Unavailable, "the lane is full")
		g := f.gateway()
		settle()
		query := rowsQuery(t, 4, 7)
		query.Inputs = append(query.Inputs, ids("tags", 1, 2, 3, 4, 5), ids("tag_lengths", 4, 0, 1, 0),
			ids("history", 1, 2, 3, 4, 5, 6, 7, 8, 9), ids("history_lengths", 9))
		resp, err := g.Infer(t.Context(), query, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := inOrder(resp, 4, 7); err != nil {
			t.Error(err)
		}
		last := f.agents[0].submits[len(f.agents[0].submits)-1]
		if last.Sequence != partOf(4, 2) || last.BatchSize != 3 || last.Users != 1 || last.Values != 10 {
			t.Errorf("the last submit is %v, want part 2 with 1 user and 10 values", last)
		}
	})
}

// TestPartFails: the first error of a part is that of the query. It says which rows it is about,
// and the other parts are cut off, and cancelled at the leader.
func TestPartFails(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		split := splitInto(2, 2, 6)
		f.agents[0].assign = func(s *control.Submit, n int) *control.MatchMessage {
			m := split(s, n)
			m.Assign = m.Assign[:2] // the third part waits
			return m
		}
		f.agents[0].takes = time.Second
		f.agents[1].refuse = status.Error(codes.InvalidArgument, "id 9 at position [1 0]")
		g := f.gateway()
		settle()
		start := time.Now()
		_, err := g.Infer(t.Context(), rowsQuery(t, 10, 7), start)
		if want := "in the 2 rows from row 2 on: id 9 at position [1 0]"; status.Convert(
			err).Message() != want || status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v, want %q", err, want)
		}
		if took := time.Since(start); took > time.Millisecond {
			t.Errorf("took %v, want the other parts to be cut off", took)
		}
		settle()
		if want := []uint64{
			partOf(4, 1), partOf(4, 2), partOf(4, 3),
		}; !equalSet(f.agents[0].cancels, want) {
			t.Errorf("cancels are %v, want %v", f.agents[0].cancels, want)
		}
		if n := f.total(t); n != 0 || g.queries.Len() != 0 {
			t.Errorf("%d parts ran to their end, and the gateway keeps %d", n, g.queries.Len())
		}
	})
}

func equalSet(a, b []uint64) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// TestPartsCancelled: whoever gives up a query, or its deadline, ends its parts, wherever they are.
func TestPartsCancelled(t *testing.T) {
	for _, want := range []codes.Code{codes.Canceled, codes.DeadlineExceeded} {
		bubble(t, 3, func(t *testing.T, f *testFleet) {
			f.lead("agent-0", "agent-1")
			split := splitInto(2, 2, 6)
			f.agents[0].assign = func(s *control.Submit, n int) *control.MatchMessage {
				m := split(s, n)
				m.Assign = m.Assign[:2]
				return m
			}
			for _, a := range f.agents {
				a.takes = time.Second
			}
			g := f.gateway()
			settle()
			ctx, cancel := context.WithCancel(t.Context())
			if want == codes.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
			} else {
				time.AfterFunc(10*time.Millisecond, cancel)
			}
			defer cancel()
			start := time.Now()
			if _, err := g.Infer(ctx, rowsQuery(t, 10, 7), start); status.Code(err) != want ||
				time.Since(start) != 10*time.Millisecond {
				t.Errorf("got %v after %v, want %v after 10ms", err, time.Since(start), want)
			}
			settle()
			if all := []uint64{partOf(4, 1), partOf(4, 2), partOf(4, 3)}; !equalSet(
				f.agents[0].cancels, all) {
				t.Errorf("cancels are %v, want %v", f.agents[0].cancels, all)
			}
			time.Sleep(2 * time.Second)
			if n := f.total(t); n != 0 || g.queries.Len() != 0 {
				t.Errorf("%d parts ran to their end, and the gateway keeps %d", n, g.queries.Len())
			}
		})
	}
}

// TestSplitTooLate: a split that crosses a query's answer is cancelled, and its assignments are
// given back.
func TestSplitTooLate(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		g := f.gateway()
		settle()
		good(t, g, t.Context())
		g.handleMessage(splitInto(1, 2)(&control.Submit{Sequence: 4}, 0))
		settle()
		parts := []uint64{partOf(4, 1), partOf(4, 2)}
		var unused []uint64
		for _, u := range f.agents[0].unused {
			unused = append(unused, u.Sequence)
		}
		if !slices.Equal(f.agents[0].cancels, parts) || !slices.Equal(unused, parts) {
			t.Errorf("cancels %v, unused %v, want both %v", f.agents[0].cancels, unused, parts)
		}
	})
}

// TestPartsThatDoNotFit: answers that are not rows of the query, or not of one version, are an
// error that names the model and the output; so is a split into other rows than the query has.
func TestPartsThatDoNotFit(t *testing.T) {
	for name, tt := range map[string]struct {
		rows   []uint32
		answer func(agent int, resp *oip.Response)
		want   string
	}{
		"one row for all": {[]uint32{5, 5}, func(_ int, resp *oip.Response) {
			resp.Outputs[0].Shape, resp.Outputs[0].Data = []int64{1, 1}, make([]byte, 4)
		}, `model "sum" answers 5 rows with output "sum" of shape [1 1]`},
		"no rows": {[]uint32{5, 5}, func(_ int, resp *oip.Response) {
			resp.Outputs[0].Shape, resp.Outputs[0].Data = nil, make([]byte, 4)
		}, `model "sum" answers 5 rows with output "sum" of shape []`},
		"two shapes": {[]uint32{5, 5}, func(agent int, resp *oip.Response) {
			resp.Outputs[0].Shape = append([]int64{5}, [][]int64{{1}, {1, 1}}[agent]...)
		}, `model "sum": join the parts of a query: tensor "sum" is FP32 [5 1] and FP32 [5 1 1]`},
		"two versions": {[]uint32{5, 5}, func(agent int, resp *oip.Response) {
			resp.Version = fmt.Sprint(agent)
		}, `by model "sum", version 0, with 1 outputs, and by model "sum", version 1,`},
		"other outputs": {[]uint32{5, 5}, func(agent int, resp *oip.Response) {
			resp.Outputs[0].Name = fmt.Sprint("out-", agent)
		}, `model "sum" answers parts of a query with the outputs "out-0" and "out-1"`},
		"fewer rows": {[]uint32{5, 4}, nil, `has split a query of 10 rows into parts of [5 4]`},
		"none":       {nil, nil, `has split a query of 10 rows into parts of []`},
		"too many": {
			[]uint32{1, 1, 1, 7}, nil, `has split a query of 10 rows into parts of [1 1 1 7]`,
		},
		"an empty part": {[]uint32{10, 0}, nil, `tensor "x": a part of 0 rows`},
	} {
		bubble(t, 3, func(t *testing.T, f *testFleet) {
			f.lead("agent-0", "agent-1")
			f.agents[0].assign = splitInto(tt.rows...)
			for i, a := range f.agents {
				infer := a.fake.infer
				a.fake.infer = func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
					resp, err := infer(ctx, req)
					if err == nil && tt.answer != nil {
						tt.answer(i, resp)
					}
					return resp, err
				}
			}
			g := f.gateway()
			settle()
			_, err := g.Infer(t.Context(), rowsQuery(t, 10, 7), time.Now())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %q", name, err, tt.want)
			}
			settle()
			if g.queries.Len() != 0 {
				t.Errorf("%s: the gateway keeps %d queries", name, g.queries.Len())
			}
		})
	}
}

// TestPartsTraced: each part has a span under the query's, with its steps below it.
func TestPartsTraced(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = splitInto(3, 7)
		g := f.gateway()
		settle()
		spans := tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		ctx, query := provider.Tracer("test").Start(t.Context(), "query")
		if _, err := g.Infer(ctx, rowsQuery(t, 10, 1), time.Now()); err != nil {
			t.Fatal(err)
		}
		query.End()
		byID, under := map[string]string{}, map[string]int{}
		for _, s := range spans.GetSpans() {
			byID[s.SpanContext.SpanID().String()] = s.Name
			for _, a := range s.Attributes {
				if s.Name == tracing.InParts && a.Key == tracing.Part {
					byID[s.SpanContext.SpanID().String()] = fmt.Sprint("part ", a.Value.AsInt64())
				}
			}
		}
		for _, s := range spans.GetSpans() {
			under[byID[s.Parent.SpanID().String()]+"/"+byID[s.SpanContext.SpanID().String()]]++
		}
		for _, want := range []string{
			"/query", "query/" + tracing.Assign, "query/part 1", "query/part 2",
			"part 1/" + tracing.Assign, "part 1/" + tracing.Method,
			"part 2/" + tracing.Assign, "part 2/" + tracing.Method,
		} {
			if under[want] != 1 {
				t.Errorf("%d spans %q, want 1", under[want], want)
			}
			delete(under, want)
		}
		if len(under) > 0 {
			t.Errorf("other spans are %v", under)
		}
	})
}

// TestRowsInOrder: whatever is split, refused, lost, offered again, cancelled or decided alone, in
// whatever order, a query has one outcome, and an answer has the query's rows in their order.
func TestRowsInOrder(t *testing.T) {
	answered, splits, failed := 0, uint64(0), 0
	for seed := range uint64(60) {
		bubble(t, 4, func(t *testing.T, f *testFleet) {
			rng := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			one := func(in int) bool {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(in) == 0
			}
			agent := func() string {
				return f.agents[rng.IntN(len(f.agents))].name
			}
			for _, a := range f.agents {
				a.takes = time.Duration(1+rng.IntN(20)) * time.Millisecond
				infer := a.fake.infer
				a.fake.infer = func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
					if one(8) {
						return nil, status.Error(codes.Unavailable, "the lane is full")
					}
					return infer(ctx, req)
				}
				a.assign = func(s *control.Submit, _ int) *control.MatchMessage {
					mu.Lock()
					defer mu.Unlock()
					m := &control.MatchMessage{}
					if s.Agent != "" {
						return m
					}
					sequences, attempt := []uint64{s.Sequence}, s.Attempts+1
					if n := int(s.BatchSize); n > 2 && !isPart(s.Sequence) && rng.IntN(4) > 0 {
						if !s.Splits {
							t.Error("a gateway does not say that it can split")
						}
						first := 1 + rng.IntN(n-2)
						rows := []uint32{uint32(first), uint32(n - first)}
						if n-first > 1 && rng.IntN(2) == 0 {
							second := 1 + rng.IntN(n-first-1)
							rows = []uint32{
								uint32(first), uint32(second), uint32(n - first - second),
							}
						}
						m.Split = []*control.Split{{Sequence: s.Sequence, Rows: rows}}
						sequences, attempt = nil, 1
						for i := range rows {
							sequences = append(sequences, partOf(s.Sequence, i+1))
						}
					}
					for _, sequence := range sequences {
						assign := &control.Assign{
							Sequence: sequence, Attempt: attempt, Agent: agent(),
							ExecutionNs: int64(time.Millisecond),
						}
						m.Assign = append(m.Assign, assign)
						if rng.IntN(6) == 0 { // later assigned anew
							again := &control.Assign{
								Sequence: sequence, Attempt: attempt + 1, Agent: agent(),
							}
							m.OfferAgain = append(m.OfferAgain, &control.OfferAgain{
								Sequence: sequence, Attempt: attempt,
							})
							m.Assign = append(m.Assign, again)
						}
					}
					return m
				}
			}
			if rng.IntN(6) > 0 {
				f.lead("agent-0", "agent-1")
			}
			g := f.gateway()
			settle()
			var all sync.WaitGroup
			for i := range 40 {
				mu.Lock()
				rows, n := 1+rng.IntN(12), float32(100*(i+1))
				ctx, cancel := context.WithTimeout(t.Context(),
					time.Duration(20+rng.IntN(2000))*time.Millisecond)
				if rng.IntN(10) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(20))*time.Millisecond, cancel)
				}
				mu.Unlock()
				all.Go(func() {
					defer cancel()
					resp, err := g.Infer(ctx, rowsQuery(t, rows, n), time.Now())
					if err != nil {
						mu.Lock()
						failed++
						mu.Unlock()
						return
					}
					defer resp.Release()
					if err := inOrder(resp, rows, n); err != nil {
						t.Errorf("seed %d: %v", seed, err)
					}
					mu.Lock()
					answered++
					mu.Unlock()
				})
				mu.Lock()
				pause, deed, who := time.Duration(rng.IntN(10))*time.Millisecond, rng.IntN(40),
					rng.IntN(len(f.agents))
				mu.Unlock()
				time.Sleep(pause)
				switch deed {
				case 0:
					f.lead(f.agents[who].name, f.agents[(who+1)%4].name)
					g.SetView(f.view())
				case 1:
					f.agents[who].freeze()
					time.AfterFunc(50*time.Millisecond, f.agents[who].thaw)
				case 2:
					f.agents[0].mu.Lock()
					f.agents[0].muteAck = !f.agents[0].muteAck
					f.agents[0].mu.Unlock()
				}
			}
			all.Wait()
			settle()
			if n := g.queries.Len(); n != 0 {
				t.Errorf("seed %d: the gateway keeps %d queries", seed, n)
			}
			splits += g.Stats().Splits
		})
	}
	t.Logf("%d answered, %d failed, %d were split", answered, failed, splits)
	if answered < 1500 || splits < 500 {
		t.Errorf("%d queries were answered and %d split, want more to look at", answered, splits)
	}
}
