//go:build fleet

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// trappedFleet has a price limit and what is stated for the family.
const trappedFleet = `fleet: trapped
mode: auto
limits:
  max_price_usd_per_hour: %s
  types: {g4dn.xlarge: {max: 3}, r5n.large: {max: 8}}
calm: 10s
process: {dir: %q, models: %q, boots: 1s}
families: {rank: {target_accuracy: %s}}
`

// testTrap has agents with memory for one model each, under a price limit that allows so few of
// them that all have to hold the less accurate variant of a family. Then the leader is killed, so
// that the next one has never seen the accurate variant held, and the limit is raised. Wanted: the
// next leader knows the variant from the disks, rents, and has it loaded: the family gets its
// accuracy back; and no query fails. The short form is the same.
func (r *run) testTrap(ctx context.Context) error {
	machines := r.killAtEnd()
	f, err := r.newFleet(ctx, "rm2", "dien")
	if err != nil {
		return err
	}
	// A run of 1000 takes rm2 .42 s on an r5n.large, and dien .09 s.
	if err := r.rateVariants("rank", time.Second, f.Models, 1, .98); err != nil {
		return err
	}
	bytes, err := sizeOfFiles(filepath.Join(r.dir, "models", "rm2", "1"))
	if err != nil {
		return err
	}
	f.Models = nil // that every agent serves
	u := &rentedRun{run: r, fleet: f, machines: machines,
		file: filepath.Join(r.dir, "fleet.yaml")}
	policy := func(limit, target string) string {
		return fmt.Sprintf(trappedFleet, limit, u.machines, filepath.Join(r.dir, "models"), target)
	}
	err = errors.Join(os.WriteFile(u.file, []byte(policy(".16", ".98")), 0o644),
		// Of the machines, too.
		os.Setenv("MUSTER_MODEL_CONTROL", "leader"),
		os.Setenv("MUSTER_MODEL_MEMORY", fmt.Sprint(bytes*5/4)))
	if err != nil {
		return err
	}
	f.Args = append(f.Args, "--rent", u.file)
	if err := r.start(ctx, f, pool(0, 2)); err != nil {
		return err
	}
	if err := u.awaitFamily(ctx); err != nil {
		return err
	}
	// The first queries wait until both agents have changed to dien.
	d, err := harness.NewDriver(ctx, u.client, map[string]float64{"rank": 1}, placedPatience)
	if err != nil {
		return err
	}
	large, err := workload.Weighted("1000", []workload.Probability{{BatchSize: 1000, P: 1}})
	if err != nil {
		return err
	}
	begin := time.Now()
	// Two agents with dien would be too few for so many.
	if err := d.Start(ctx,
		harness.Load{Rate: 22, Seed: r.seed, BatchSizes: large}); err != nil {
		return err
	}
	if err := u.await(ctx, "no agent holds the accurate variant any more",
		func(s *control.FleetState) bool {
			view, err := f.View(ctx, f.Nodes[0])
			holds := map[string]int{}
			for _, m := range view.GetMembers() {
				for _, held := range m.GetModels() {
					holds[held.GetName()]++
				}
			}
			return err == nil && len(serving(s)) == 1 && holds["rm2"] == 0 && holds["dien"] == 3
		}); err != nil {
		return err
	}
	leader, epoch, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	leader.Signal(syscall.SIGKILL)
	if _, err := f.AwaitLeader(ctx, leader, epoch); err != nil {
		return err
	}
	<-leader.Exited()
	if err := f.Restart(leader); err != nil {
		return err
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	if err := u.setPolicy(ctx, policy("3", ".99")); err != nil {
		return err
	}
	if err := u.await(ctx, "the family has its accuracy again", func(*control.FleetState) bool {
		s, err := u.client.Status(ctx)
		return err == nil && accuracy(s) >= .985
	}); err != nil {
		return err
	}
	_, err = harness.Output(ctx, "", r.muster, "infer", "rank", "--batch-size", "2",
		"--least-accuracy", ".99", "--server", f.Addresses()[0])
	r.wantNil(err, "a query that demands the accurate variant is answered")
	return r.endLoad(d, begin)
}
