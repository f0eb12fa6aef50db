package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testMemory has another process take the card's memory. Wanted: the models that are loaded answer
// on; DIEN cannot be loaded, the error says why, and it can when the memory is back; RM2 can, with
// its tables in the machine's memory.
func (r *run) testMemory(ctx context.Context) error {
	agent, err := r.start(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = agent.stop() }()
	status := func() error {
		out, err := harness.Output(ctx, "", r.muster, "status", "--server", agent.GRPC)
		fmt.Println(out)
		return err
	}
	if err := errors.Join(status(), agent.UnloadModel(ctx, "rm2"),
		agent.UnloadModel(ctx, "dien")); err != nil {
		return err
	}

	said, empty, err := harness.OccupyCardMemory(ctx, 100)
	if err != nil {
		return err
	}
	fmt.Print("another process: ", said)
	failure := agent.LoadModel(ctx, "dien")
	fmt.Println("load dien:", failure)
	var failed []error
	if failure == nil {
		failed = append(failed, errors.New("dien was loaded without memory"))
	}
	failed = append(failed, agent.LoadModel(ctx, "rm2"))
	for _, model := range []string{"wnd", "rm2"} {
		q, err := queryOf(agent.repository, model, 1000)
		if err != nil {
			return err
		}
		us, qps, err := closed(ctx, agent.Client, q, 4, 5*r.time)
		fmt.Printf("%s meanwhile: %d answers of batch size 1000, %.0f/s, error: %v\n", model,
			len(us),
			qps, err)
		failed = append(failed, err)
	}
	failed = append(failed, empty())
	again := agent.LoadModel(ctx, "dien")
	fmt.Println("load dien when the memory is back:", again)
	r.results["memory"] = fmt.Sprint(failure)
	return errors.Join(append(failed, again)...)
}

// testLoading has one client send queries to WND while RM2 is loaded and unloaded, in turns with
// seconds in which it is not.
func (r *run) testLoading(ctx context.Context) error {
	agent, err := r.start(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = agent.stop() }()
	q, err := queryOf(agent.repository, "wnd", 64)
	if err != nil {
		return err
	}
	var quiet, loaded []float64
	loads := 0
	for range r.rounds {
		us, _, err := closed(ctx, agent.Client, q, 1, 5*r.time)
		if err != nil {
			return err
		}
		quiet = append(quiet, us...)
		done, failed := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(failed)
			for {
				select {
				case <-done:
					return
				default:
				}
				loads++
				if err := errors.Join(agent.UnloadModel(ctx, "rm2"),
					agent.LoadModel(ctx, "rm2")); err != nil {
					failed <- err
					return
				}
			}
		}()
		us, _, err = closed(ctx, agent.Client, q, 1, 10*r.time)
		close(done)
		if err := errors.Join(err, <-failed); err != nil {
			return err
		}
		loaded = append(loaded, us...)
	}
	for name, us := range map[string][]float64{"alone": quiet, "while RM2 is loaded": loaded} {
		fmt.Printf("wnd 64 %s: p50 %.0f us, p99 %.0f us, p99.9 %.0f us\n", name,
			harness.Quantile(us, .5),
			harness.Quantile(us, .99), harness.Quantile(us, .999))
	}
	fmt.Printf("%d loads\n", loads)
	r.results["loading"] = map[string]float64{
		"alone_p50_us": harness.Quantile(quiet, .5), "alone_p99_us": harness.Quantile(quiet, .99),
		"loading_p50_us": harness.Quantile(loaded, .5),
		"loading_p99_us": harness.Quantile(loaded, .99),
	}
	return nil
}
