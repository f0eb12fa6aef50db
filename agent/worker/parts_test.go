package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// An rowsExecutor is an emulated executor whose models answer each row of four ids with a number
// that tells the ids.
type rowsExecutor struct{ runtime.Executor }

func (e rowsExecutor) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := e.Executor.Load(ctx, v)
	return rowsModel{m}, err
}

type rowsModel struct{ runtime.Model }

func (m rowsModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	result, err := m.Model.Run(ctx, inputs)
	if err != nil {
		return nil, err
	}
	ids, err := tensor.Values[int64](inputs[0])
	if err != nil {
		return nil, err
	}
	out, err := tensor.Values[float32](result.Outputs[0])
	if err != nil {
		return nil, err
	}
	width := 4 * len(out) / len(ids)
	for i := range out {
		row := i / width
		out[i] = told(ids[4*row : 4*row+4])
	}
	return result, nil
}

// told is the number that stands for a row's ids, each below 28.
func told(ids []int64) float32 {
	return float32(ids[0] + 28*(ids[1]+28*(ids[2]+28*ids[3])))
}

// numbered returns the ids of rows that count from 0 on, in a query of the given number.
func numbered(rows, query int) []int64 {
	ids := make([]int64, 0, 4*rows)
	for i := range int64(rows) {
		ids = append(ids, i%28, i/28%28, i/28/28, int64(query%28))
	}
	return ids
}

// rowsInOrder returns what is wrong with the answer to a query of numbered rows.
func rowsInOrder(got []float32, rows, query int) error {
	if len(got) == 0 || len(got)%rows != 0 {
		return fmt.Errorf("%d values are answered for %d rows", len(got), rows)
	}
	width, ids := len(got)/rows, numbered(rows, query)
	for i, x := range got {
		row := i / width
		if want := told(ids[4*row : 4*row+4]); x != want {
			return fmt.Errorf("row %d of %d is %v, want %v", row, rows, x, want)
		}
	}
	return nil
}

// TestPartsOfQueries: a fleet that is nearly overloaded, where one agent alone answers large
// queries in time, has some of them run as parts on the others, and small ones run together.
// Whatever happens to agents meanwhile, and although some queries are cancelled, an answer has its
// rows in order, by gRPC, REST and the SDK. Queries are counted, not parts.
func TestPartsOfQueries(t *testing.T) {
	dir, err := agenttest.DienDir()
	if err != nil {
		t.Fatal(err)
	}
	for name, deed := range map[string]func(f *agenttest.Fleet, agents []*agenttest.Member){
		"nothing":       func(*agenttest.Fleet, []*agenttest.Member) {},
		"worker killed": func(f *agenttest.Fleet, agents []*agenttest.Member) { f.Kill(agents[4]) },
		"leader killed": func(f *agenttest.Fleet, agents []*agenttest.Member) { f.Kill(f.Led(agents...)) },
		"frozen and back": func(f *agenttest.Fleet, agents []*agenttest.Member) {
			f.Partition([]*agenttest.Member{agents[3]})
			time.Sleep(300 * time.Millisecond)
			f.Heal()
		},
	} {
		if testing.Short() && name != "leader killed" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) { parts(f, dir, name, deed) })
		})
	}
}

// parts is the test with one deed of a name after a third of the queries.
func parts(f *agenttest.Fleet, dir, name string, deed func(*agenttest.Fleet, []*agenttest.Member)) {
	f.Dir = dir
	var agents []*agenttest.Member
	for i := range 5 {
		agents = append(agents, f.Start(func(a agent.Inside) {
			if i == 0 {
				a.Config().InstanceType, a.Config().Leader = "g4dn.xlarge", "never"
			} else if i < 3 { // whose clients send queries; it stays
				a.Config().Leader = "never"
			}
			open := a.Environment().OpenExecutor
			a.Environment().OpenExecutor = func(c agent.Config, log *slog.Logger) (runtime.Executor, error) {
				e, err := open(c, log)
				return rowsExecutor{e}, err
			}
		}))
	}
	f.Settled(agents...)
	f.Led(agents...)
	dial := func(ctx context.Context, to string) (net.Conn, error) {
		return f.Network.Dial(ctx, "client", to)
	}
	sdk, err := client.New([]string{agents[1].Host + ":8001"},
		client.WithDialOptions(grpc.WithContextDialer(dial),
			grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		f.Fatal(err)
	}
	defer sdk.Close()
	gateways, err := client.New([]string{agents[0].Host + ":8001", agents[2].Host + ":8001"},
		client.WithoutFleet(), client.WithDialOptions(grpc.WithContextDialer(dial),
			grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		f.Fatal(err)
	}
	defer gateways.Close()
	web := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
			return dial(ctx, to)
		},
	}}
	defer web.CloseIdleConnections()
	time.Sleep(time.Second)

	// The first agent takes 13 ms for a large query, and the others 49 ms, but 25 ms for half of
	// it: the target is 35 ms. It is busy with the large queries alone.
	const rate, small, large = 240, 50, 600
	queries := 500
	if testing.Short() {
		queries = 150
	}
	rng := rand.New(rand.NewPCG(1, 0))
	var all sync.WaitGroup
	var mu sync.Mutex
	rows := 0
	for n := range queries {
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / rate))
		if n == queries/3 {
			all.Go(func() { deed(f, agents) })
		}
		how, size, patience := rng.IntN(3), small, 10*time.Second
		if rng.IntN(10) < 3 {
			size = large
		}
		impatient := name != "nothing" && n%5 == 0
		if impatient {
			patience = time.Duration(rng.IntN(30)) * time.Millisecond
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(f.Context(), patience)
			defer cancel()
			var got []float32
			var err error
			switch how {
			case 0:
				got, err = askREST(ctx, web, agents[1+n%2], size, n)
			case 1:
				got, err = ask(ctx, sdk, size, n)
			case 2:
				got, err = ask(ctx, gateways, size, n)
			}
			if err != nil && impatient {
				return
			}
			if err == nil {
				err = rowsInOrder(got, size, n)
			}
			if err != nil {
				f.Errorf("query %d of %d rows: %v", n, size, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			rows += size
		})
	}
	all.Wait()
	splits, counted, items := float64(sdk.Gateway().Stats().Splits), 0.0, 0.0
	merged := 0.0
	for _, a := range agents {
		merged += mergedQueries(a.Inside)
		splits += agenttest.Counted(a.Inside, "muster_gateway_split_queries_total")
		counted += agenttest.Counted(a.Inside, "muster_queries_total")
		items += agenttest.Counted(a.Inside, "muster_items_total")
	}
	least := float64(queries) / 50
	if f.Logf("%v queries were split, %v ran with others", splits, merged); splits < least ||
		merged < least {
		f.Errorf("%v of %d queries were split, %v ran with others, want %v at least of each",
			splits, queries, merged, least)
	}
	// A fault has some queries run twice.
	if name == "nothing" && (counted != float64(queries) || items != float64(rows)) ||
		counted > 1.02*float64(queries) {
		f.Errorf("%v queries of %v rows are counted, want %d of %d", counted, items, queries, rows)
	}
}

// mergedQueries is how many queries the agent's lanes have run together with another one before them.
func mergedQueries(a agent.Inside) (n float64) {
	families, err := a.Registry().Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() != "muster_lane_merged_queries" {
			continue
		}
		for _, m := range family.GetMetric() {
			n += m.GetHistogram().GetSampleSum() - float64(m.GetHistogram().GetSampleCount())
		}
	}
	return n
}

// ask sends a query of numbered rows by gRPC.
func ask(ctx context.Context, c *client.Client, rows, query int) ([]float32, error) {
	ids, err := tensor.Of("ids", numbered(rows, query), int64(rows), 4)
	if err != nil {
		return nil, err
	}
	resp, err := c.Infer(ctx, &oip.Request{Model: "dien", Inputs: []tensor.Tensor{ids}})
	if err != nil {
		return nil, err
	}
	defer resp.Release()
	got, err := tensor.Values[float32](resp.Outputs[0])
	return slices.Clone(got), err
}

// askREST does the same by JSON.
func askREST(ctx context.Context, c *http.Client, a *agenttest.Member, rows, query int) ([]float32,
	error) {
	body, err := json.Marshal(map[string]any{"inputs": []any{map[string]any{
		"name": "ids", "datatype": "INT64", "shape": []int{rows, 4}, "data": numbered(rows, query),
	}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+a.Host+":8000/v2/models/dien/infer", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var said struct {
		Error   string
		Outputs []struct{ Data []float32 }
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || len(said.Outputs) != 1 {
		return nil, fmt.Errorf("%s: %s", resp.Status, said.Error)
	}
	return said.Outputs[0].Data, nil
}
