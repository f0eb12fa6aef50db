package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// measureStarts prints how long servers take from their start until WND and RM2 have answered: at
// rest, and while as many processes as there are cores compute. Servers start in turns.
func (r *run) measureStarts(ctx context.Context) error {
	if len(r.only) == 0 {
		r.only = []string{"Muster", "FastAPI"}
	}
	all, err := r.prepareServers(ctx)
	if err != nil {
		return err
	}
	queries, err := r.makeQueries("two")
	if err != nil {
		return err
	}
	took := map[string][]float64{}
	var names []string
	for round := range r.rounds {
		for i := range all {
			s := all[(i+round)%len(all)]
			if s.loop != nil || s.spin == "1" || strings.Contains(s.name, ",") {
				continue // how queries come, and what waits for them, does not count here
			}
			for _, load := range []int{0, runtime.NumCPU()} {
				end, err := burn(load)
				if err != nil {
					return err
				}
				p, err := r.start(ctx, s, "two", queries)
				end()
				if err != nil {
					return err
				}
				p.stop()
				name := fmt.Sprintf("%s, %d processes compute", s.name, load)
				if took[name] == nil {
					names = append(names, name)
				}
				took[name] = append(took[name], p.ready.Seconds())
				fmt.Fprintf(os.Stderr, "round %d of %d: %s: ready in %.2f s\n", round+1, r.rounds,
					name,
					p.ready.Seconds())
			}
		}
	}
	fmt.Printf("Until WND and RM2 have answered, median of %d:\n\n| | s |\n| --- | --- |\n",
		r.rounds)
	for _, name := range names {
		fmt.Printf("| %s | %.2f |\n", name, harness.Quantile(took[name], 0.5))
	}
	return nil
}

// burn starts processes that compute until end is called.
func burn(n int) (end func(), err error) {
	var all []*exec.Cmd
	end = func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	for range n {
		c := exec.Command("sh", "-c", "while :; do :; done")
		c.SysProcAttr = harness.ChildAttributes()
		if err := c.Start(); err != nil {
			end()
			return nil, err
		}
		all = append(all, c)
	}
	return end, nil
}
