package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/harness"
)

// versions has 65 versions of a small NCF take each other's place in an agent that runs it, each
// serving for a second, and waits for twelve minutes, when all of them should be forgotten. Wanted:
// no query fails, resident memory has grown by a quarter at most since the fifth version, and so
// have the series of metrics since the first. The short form has eight versions, and does not wait
// for their series to be forgotten, which takes ten minutes.
func (r *run) versions(ctx context.Context) error {
	f, err := r.startReal(ctx, zoo.Small, "ncf")
	if err != nil {
		return err
	}
	c, err := r.client(f.Addresses())
	if err != nil {
		return err
	}
	d, err := harness.NewDriver(ctx, c, map[string]float64{"ncf": 1}, harness.Patience)
	if err != nil {
		return err
	}
	d.Numbers = true
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
		r.say("%-22s %4d MB resident, %4d of them of Go; %6d series", when, u[0].Memory,
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
			if n == 5 { // that is memory which any agent needs once
				fifth = u
			}
		}
	}
	// What is gone is forgotten at queries, after ten minutes.
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
	return r.account(d, begin)
}

// startReal starts an agent that runs models of the zoo, and waits until it serves them.
func (r *run) startReal(ctx context.Context, scale zoo.Scale, models ...string) (*harness.Fleet,
	error) {
	f := &harness.Fleet{Muster: r.muster, Dir: r.dir, Models: models}
	r.atEnd = append(r.atEnd, f.Stop)
	for _, model := range models {
		if _, err := zoo.Generate(ctx, filepath.Join(f.Dir, "models"), model,
			zoo.Options{Scale: scale}); err != nil {
			return nil, err
		}
	}
	if _, err := f.Add(ctx, ""); err != nil {
		return nil, err
	}
	return f, f.WaitComplete(ctx)
}
