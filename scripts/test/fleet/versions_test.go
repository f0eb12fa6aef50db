//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testVersions replaces the version of a small NCF 65 times in one agent; each serves for a second.
// Then it waits for twelve minutes, after which the agent should have forgotten all but the last.
// Wanted: no query fails; resident memory has grown by at most a quarter since the fifth version,
// and the number of metrics' series by at most a quarter since the first. The short form has eight
// versions and does not wait.
func (r *run) testVersions(ctx context.Context) error {
	f, c, d, err := r.startReal(ctx, zoo.Small, "ncf")
	if err != nil {
		return err
	}
	begin := time.Now()
	load := harness.Load{
		Rate: 300, Seed: r.seed, Duration: pick(r, time.Second, 250*time.Millisecond),
	}
	if _, err := d.Run(ctx, load); err != nil {
		return err
	}
	look := func(when string) (harness.Usage, error) {
		u, err := f.Usages(ctx)
		if err != nil {
			return harness.Usage{}, err
		}
		r.printLine("%-22s %4d MiB resident, %4d of them Go's; %6d series", when, u[0].Memory,
			u[0].GoMemory, u[0].Series)
		return u[0], nil
	}
	first, err := look("in the beginning")
	if err != nil {
		return err
	}
	fifth := first
	at := func(version int) string {
		return filepath.Join(f.Dir, "models", "ncf", strconv.Itoa(version))
	}
	more := pick(r, 60, 3)
	for v := 2; v <= 5+more+1; v++ {
		if err := os.Rename(at(v-1), at(v)); err != nil {
			return err
		}
		if err := c.LoadModel(ctx, "ncf"); err != nil {
			return err
		}
		if _, err := d.Run(ctx, load); err != nil {
			return err
		}
		if n := v - 1; n == 5 || n > 5 && (n-5)%10 == 0 {
			u, err := look(fmt.Sprintf("after %d versions", n))
			if err != nil {
				return err
			}
			if n == 5 { // until then memory grows to what any agent needs
				fifth = u
			}
		}
	}
	// Agents forget when queries come, ten minutes after a version is gone.
	for end := time.Now().Add(pick(r, 12*time.Minute, 0)); time.Now().Before(end); {
		if _, err := d.Run(ctx,
			harness.Load{Rate: 300, Seed: r.seed, Duration: 100 * time.Millisecond}); err != nil {
			return err
		}
		if err := harness.Settle(ctx, 10*time.Second); err != nil {
			return err
		}
	}
	last, err := look("in the end")
	if err != nil {
		return err
	}
	memory, series := float64(last.Memory)/float64(fifth.Memory), float64(last.Series)/
		float64(first.Series)
	r.wantQuiet(max(memory, series) <= 1.25,
		"resident memory is %.2f times that of the fifth version, and the series %.2f times "+
			"those of the first, want at most 1.25", memory, series)
	return r.endLoad(d, begin)
}

// startReal starts an agent that runs models of the zoo, waits until it serves them, and returns a
// driver that sends queries to the first of them, by the client.
func (r *run) startReal(ctx context.Context, scale zoo.Scale, models ...string) (
	f *harness.Fleet, c *client.Client, d *harness.Driver, err error) {
	f = &harness.Fleet{Muster: r.muster, Dir: r.dir, Models: models}
	r.atEnd = append(r.atEnd, f.Stop)
	for _, model := range models {
		if _, err := zoo.Generate(ctx, filepath.Join(f.Dir, "models"), model,
			zoo.Options{Scale: scale}); err != nil {
			return nil, nil, nil, err
		}
	}
	if _, err := f.Add(ctx, ""); err != nil {
		return nil, nil, nil, err
	}
	if err := f.WaitComplete(ctx); err != nil {
		return nil, nil, nil, err
	}
	if c, err = r.newClient(f.Addresses()); err != nil {
		return nil, nil, nil, err
	}
	d, err = harness.NewDriver(ctx, c, map[string]float64{models[0]: 1}, harness.Patience)
	if err != nil {
		return nil, nil, nil, err
	}
	d.Numbers = true
	return f, c, d, nil
}
