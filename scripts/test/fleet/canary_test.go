//go:build fleet

package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// What canary tries.
const (
	canaryModel  = "ncf"
	canaryType   = "m5.large" // of which no profile is shipped, so that what runs take is learned
	canaryTarget = time.Second
)

// testSlowCanary has a fleet of emulated agents under load try a version that is as fast as the current
// one, and then one that takes twice as long. The good one is to be promoted by the rule, and the
// bad one taken back within a minute, which the log, the commands, the metrics, the events and the
// dashboard must say.
//
// The short form has larger shares of the queries. It misses something only if a canary has no
// verdict after many times as many queries as it takes.
func (r *run) testSlowCanary(ctx context.Context) error {
	dir := r.dir
	// On a busy machine a run takes longer by some time, whichever version it is of. Twice as long
	// is to be seen all the same.
	takes := pick(r, 20*time.Millisecond, 60*time.Millisecond)
	f := &harness.Fleet{Muster: r.muster, Dir: dir, Models: []string{canaryModel}, Args: []string{
		"--executor", "emulated", "--profile", filepath.Join(dir, "profiles.json"),
	}}
	r.atEnd = append(r.atEnd, f.Stop)
	if err := f.GenerateSmall(ctx); err != nil {
		return err
	}
	if err := copyVersion(filepath.Join(dir, "models"), 2, 0); err != nil {
		return err
	}
	if err := copyVersion(filepath.Join(dir, "models"), 3, 0); err != nil {
		return err
	}
	err := errors.Join(
		editConfig(filepath.Join(dir, "models"), canaryModel,
			fmt.Sprintf("qos_target_ms: %d\ndeadline_ms: %d\n"+
				"merge: none\nversions: all\n", canaryTarget.Milliseconds(),
				harness.Patience.Milliseconds())),
		writeProfiles(filepath.Join(dir, "profiles.json"), map[string]time.Duration{
			canaryModel: takes,
			string(names.NewModelKey(canaryModel, 3)): 2 * takes,
		}))
	if err != nil {
		return err
	}
	for range pick(r, 6, 3) {
		if _, err := f.Add(ctx, canaryType); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	t, err := r.makeTrial(ctx, f, pick(r, 100., 18), false)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := t.runModelsCommand("promote", canaryModel, "1"); err != nil {
		return err
	}
	if err := t.d.Start(ctx, t.load); err != nil {
		return err
	}
	// so that it is known how long version 1 takes
	if err := t.waitForQueries(pick(r, 300, 60)); err != nil {
		return err
	}
	share := pick(r, "5%", "50%")
	// It takes some 800 queries of a canary to know that it is no worse.
	if err := t.tryGoodCanary("2", pick(r, share, "90%"), "--promote-queries", "100"); err != nil {
		return err
	}
	if err := t.runModelsCommand("promote", canaryModel, "3", "--share", share); err != nil {
		return err
	}
	if err := t.takenBack("slow", "muster_release_trial_queries"); err != nil {
		return err
	}
	return r.endLoad(t.d, begin)
}

// testWrongCanary is testSlowCanary of agents that run the models of a store: of a version with the weights
// of the current one, and of one whose answers to 1 % of the queries are wrong. What is released in
// the store, another fleet follows, and so do agents that begin anew with nothing on their disks.
// The short form has more wrong answers.
func (r *run) testWrongCanary(ctx context.Context) error {
	dir := r.dir
	source, address := filepath.Join(dir, "source"), "file://"+filepath.Join(dir, "store")
	if _, err := zoo.Generate(ctx, source, canaryModel,
		zoo.Options{Scale: zoo.Small}); err != nil {
		return err
	}
	err := errors.Join(copyVersion(source, 2, 0),
		copyVersion(source, 3, pick(r, 100, 10)),
		editConfig(source, canaryModel, fmt.Sprintf("qos_target_ms: %d\ndeadline_ms: %d\n",
			canaryTarget.Milliseconds(), harness.Patience.Milliseconds())))
	if err != nil {
		return err
	}
	muster := func(args ...string) error {
		_, err := harness.Output(ctx, "", r.muster, append([]string{"models"}, args...)...)
		return err
	}
	for _, version := range []string{"1", "2", "3"} {
		if err := muster("push", canaryModel, "--dir", source, "--version", version, "--store",
			address); err != nil {
			return err
		}
	}
	if err := muster("promote", canaryModel, "1", "--store", address); err != nil {
		return err
	}
	fleet := func(name string, agents int) (*harness.Fleet, error) {
		f := &harness.Fleet{
			Muster: r.muster, Dir: filepath.Join(dir, name), Models: []string{canaryModel},
			Args: []string{
				"--model-store", address, "--model-store-poll", "1s", "--cores", "1",
			},
		}
		r.atEnd = append(r.atEnd, f.Stop)
		for i := range agents {
			if _, err := f.Add(ctx, "", "--model-dir",
				filepath.Join(f.Dir, fmt.Sprint("models-", i))); err != nil {
				return nil, err
			}
		}
		return f, f.WaitComplete(ctx)
	}
	f, err := fleet("fleet", 2)
	if err != nil {
		return err
	}
	other, err := fleet("other", 1)
	if err != nil {
		return err
	}
	t, err := r.makeTrial(ctx, f, pick(r, 300., 50), true)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := t.d.Start(ctx, t.load); err != nil {
		return err
	}
	share := pick(r, "10%", "50%")
	if err := t.tryGoodCanary("2", share, "--promote-queries", "300"); err != nil {
		return err
	}
	if err := r.waitForRelease(ctx, other, "the other fleet on the store has version 2",
		func(x *control.Release) bool { return x.GetCurrent() == 2 }); err != nil {
		return err
	}
	if err := muster("promote", canaryModel, "3", "--share", share, "--max-difference", "0.05",
		"--store", address); err != nil {
		return err
	}
	if err := r.waitForRelease(ctx, f, "the fleet tries version 3, which was released in the store",
		func(x *control.Release) bool { return x.GetCanary() == 3 }); err != nil {
		return err
	}
	if err := t.takenBack("answers differ", "muster_release_trial_answers"); err != nil {
		return err
	}
	if err := r.waitForRelease(ctx, other, "the other fleet on the store has taken version 3 back",
		func(x *control.Release) bool {
			return x.GetCanary() == 3 && x.GetShare() == 0 && x.GetCurrent() == 2
		}); err != nil {
		return err
	}
	if err := r.endLoad(t.d, begin); err != nil {
		return err
	}
	f.Stop()
	other.Stop()
	again, err := fleet("again", 1)
	if err != nil {
		return err
	}
	c, err := r.newClient(again.Addresses())
	if err != nil {
		return err
	}
	answered := map[string]int{}
	d, err := harness.NewDriver(ctx, c, map[string]float64{canaryModel: 1}, harness.Patience,
		harness.Client{Name: "SDK", Share: 1, Infer: versions(c.Infer, answered)})
	if err != nil {
		return err
	}
	if _, err := d.Run(ctx, harness.Load{Rate: 50, Duration: time.Second, Seed: r.seed,
		BatchSizes: t.load.BatchSizes}); err != nil {
		return err
	}
	r.checkWanted(len(answered) == 1 && answered["2"] > 0,
		"after all agents were gone, an agent with "+
			"nothing on its disk answers with versions %v, want 2 only", answered)
	return nil
}

// versions is infer that also counts answers by version.
func versions(infer func(context.Context, *oip.Request) (*oip.Response, error),
	answered map[string]int) func(context.Context, *oip.Request) (*oip.Response, error) {
	var mu sync.Mutex
	return func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
		resp, err := infer(ctx, req)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			answered[resp.Version]++
		}
		return resp, err
	}
}

// copyVersion adds a version like version 1. If spoil is not 0, each spoil-th user of the first
// table has a hundred times the weights.
func copyVersion(dir string, version, spoil int) error {
	folder := filepath.Join(dir, canaryModel)
	to := filepath.Join(folder, fmt.Sprint(version))
	if err := os.CopyFS(to, os.DirFS(filepath.Join(folder, "1"))); err != nil || spoil == 0 {
		return err
	}
	c, err := models.ReadNewest(dir, canaryModel)
	if err != nil {
		return err
	}
	path := filepath.Join(to, models.ModelFile+".data")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	table := c.Config.Tables[0] // which is at the file's beginning
	for row := 0; row < int(table.Rows); row += spoil {
		for i := range int(table.Dim) {
			at := data[4*(row*int(table.Dim)+i):]
			weight := math.Float32frombits(binary.LittleEndian.Uint32(at))
			binary.LittleEndian.PutUint32(at, math.Float32bits(100*weight))
		}
	}
	return os.WriteFile(path, data, 0o644)
}

// editConfig puts settings in the place of those of the same names in a model's file.
func editConfig(dir, model, settings string) error {
	path := filepath.Join(dir, model, models.ConfigFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text = regexp.MustCompile(`(?m)^(qos_target_ms|deadline_ms|merge|versions):.*\n`).ReplaceAll(text,
		nil)
	return os.WriteFile(path, append(text, settings...), 0o644)
}

// writeProfiles writes profiles of models that take as long for each batch size.
func writeProfiles(path string, takes map[string]time.Duration) error {
	var infos []profiles.ModelInfo
	var tables []*profiles.Table
	for name, mean := range takes {
		knot := profiles.Knot{
			BatchSize: 1, Mean: mean, P50: mean, P90: mean * 105 / 100, P99: mean * 110 / 100,
		}
		key := profiles.Key{Model: name, InstanceType: canaryType, Provider: "cpu"}
		table, err := profiles.NewTable(key, profiles.Measured, "canary", []profiles.Knot{knot})
		if err != nil {
			return err
		}
		infos = append(infos, profiles.ModelInfo{
			Name: name, QoSTarget: canaryTarget, LargestBatchSize: profiles.MaxBatchSize,
		})
		tables = append(tables, table)
	}
	library, err := profiles.NewLibrary("scripts/test/fleet canary", "", infos, tables)
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(library.Write(out), out.Close())
}

// A trial is a fleet under a load, with canaries.
type trial struct {
	*run
	ctx  context.Context
	f    *harness.Fleet
	d    *harness.Driver
	load harness.Load
}

// makeTrial makes a trial with a load of so many queries/s of one item. Half of them go by the SDK.
// real says whether models compute the answers.
func (r *run) makeTrial(ctx context.Context, f *harness.Fleet, rate float64, real bool) (*trial,
	error) {
	one, err := workload.Fixed(1)
	if err != nil {
		return nil, err
	}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return nil, err
	}
	plain, err := harness.NewPlainGRPC(f.Addresses(), nil)
	if err != nil {
		return nil, err
	}
	r.atEnd = append(r.atEnd, plain.Close)
	d, err := harness.NewDriver(ctx, c, map[string]float64{canaryModel: 1}, harness.Patience,
		harness.Client{Name: "plain", Share: 1, Infer: plain.Infer},
		harness.Client{Name: "SDK", Share: 1, Infer: c.Infer})
	if err != nil {
		return nil, err
	}
	d.Numbers = real
	r.printLine("%d agents, %.0f queries/s; logs in %s", len(f.Nodes), rate, f.Dir)
	return &trial{r, ctx, f, d, harness.Load{Rate: rate, Seed: r.seed, BatchSizes: one}}, nil
}

// canaryPatience is how long a busy machine may take to get somewhere.
const canaryPatience = 4 * time.Minute

// eventually calls f until it returns nil, and returns its last error after canaryPatience.
func eventually(ctx context.Context, f func() error) error {
	for end := time.Now().Add(canaryPatience); ; {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		if err := harness.Settle(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// runModelsCommand runs a command of `muster models` with the fleet, which may have no leader just
// now.
func (t *trial) runModelsCommand(args ...string) error {
	return eventually(t.ctx, func() error {
		_, err := t.commandOutput(append([]string{"models"}, args...)...)
		return err
	})
}

func (t *trial) commandOutput(args ...string) (string, error) {
	return harness.Output(t.ctx, "", t.muster,
		append(args, "--server", strings.Join(t.f.Addresses(), ","))...)
}

// waitForQueries waits until so many more queries have been sent.
func (t *trial) waitForQueries(n int) error {
	for end := t.d.Sent() + n; t.d.Sent() < end; {
		if err := harness.Settle(t.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// maxTried is how many queries are sent while a canary is on trial. In the long form it takes about
// 800 queries of a canary of 5 % until it is promoted, 50 until it is known to be slow, and 700
// answers compared at 40/s until 1 % of them are wrong beyond doubt.
const maxTried = 20_000

// waitForVerdict waits until a canary has its verdict, and returns it with how long that took.
func (t *trial) waitForVerdict() (*control.ReleaseState, time.Duration, error) {
	begin, end := time.Now(), t.d.Sent()+maxTried
	for {
		var x *control.ReleaseState
		err := eventually(t.ctx, func() (err error) {
			x, err = release(t.ctx, t.f)
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		if x.GetRelease().GetShare() == 0 || t.d.Sent() > end {
			return x, time.Since(begin), nil
		}
		if err := t.waitForQueries(1); err != nil {
			return nil, 0, err
		}
	}
}

// tryGoodCanary tries a canary that is as good as the current version.
func (t *trial) tryGoodCanary(version, share string, args ...string) error {
	if err := t.runModelsCommand(append([]string{"promote", canaryModel, version, "--share", share},
		args...)...); err != nil {
		return err
	}
	x, took, err := t.waitForVerdict()
	if err != nil {
		return err
	}
	t.checkWanted(fmt.Sprint(x.GetRelease().GetCurrent()) == version,
		"a canary that is as good, with %s: after %v %q, want promoted by the rule", share,
		took.Round(time.Second), x.GetVerdict())
	return nil
}

// takenBack waits until version 3 is taken back, and wants each place to say so.
func (t *trial) takenBack(why, metric string) error {
	x, took, err := t.waitForVerdict()
	if err != nil {
		return err
	}
	verdict := x.GetRelease().GetWhy()
	t.checkWanted(x.GetState() == "taken back" && strings.HasPrefix(verdict,
		"rolled back by the rule") &&
		strings.Contains(verdict, why),
		"a bad canary: after %v and %d of its queries %q, want it rolled back",
		took.Round(time.Second),
		x.GetCanary().GetQueries(), verdict)
	t.wantQuiet(took <= time.Minute, "it took %v, want a minute at most", took.Round(time.Second))
	// Another agent may lead by now.
	all := func(of func(*harness.Node) (string, error)) func() (string, error) {
		return func() (texts string, err error) {
			for _, n := range t.f.Nodes {
				text, failed := of(n)
				texts, err = texts+text, errors.Join(err, failed)
			}
			return texts, err
		}
	}
	page := t.f.Nodes[0].HTTP
	for _, place := range []struct {
		name string
		text func() (string, error)
		want []string
	}{
		{"the leader's log", all(func(n *harness.Node) (string, error) {
			text, err := os.ReadFile(n.LogPath)
			return string(text), err
		}), []string{verdict, "event=release"}},
		{"the leader's metrics", all(func(n *harness.Node) (string, error) {
			return get(t.ctx, n.Metrics, "/metrics")
		}), []string{`muster_release_canary_share{model="ncf"} 0` + "\n", metric + "{"}},
		{"muster models release", func() (string, error) {
			return t.commandOutput("models", "release", canaryModel)
		}, []string{verdict, "taken back"}},
		{"muster models compare", func() (string, error) {
			return t.commandOutput("models", "compare", canaryModel)
		}, []string{verdict, "version 3 beside"}},
		{"muster events", func() (string, error) { return t.commandOutput("events", "--fleet") },
			[]string{"version 3 was rolled back by the rule: ", "release"}},
		{"the dashboard", func() (string, error) {
			return get(t.ctx, page,
				"/dashboard/api/events")
		},
			[]string{verdict, "release"}},
	} {
		err := eventually(t.ctx, func() error {
			text, err := place.text()
			for _, want := range place.want {
				if err == nil && !strings.Contains(text, want) {
					err = fmt.Errorf("%q is not in %q", want, text)
				}
			}
			return err
		})
		t.wantNil(err, "%s says that it is rolled back", place.name)
	}
	return nil
}

// get returns what an agent's HTTP server has at a path.
func get(ctx context.Context, address, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

// release is what the fleet's first agent says of the model's release.
func release(ctx context.Context, f *harness.Fleet) (*control.ReleaseState, error) {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	conn, err := f.Dial(ctx, f.Nodes[0])
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := control.NewControlClient(conn).Release(ctx, &control.ReleaseRequest{
		Model: canaryModel,
	})
	if err != nil {
		return nil, err
	}
	return resp.GetReleases()[0], nil
}

// waitForRelease waits until a fleet follows a release, and wants that it does.
func (r *run) waitForRelease(ctx context.Context, f *harness.Fleet, what string,
	good func(*control.Release) bool) error {
	r.wantNil(eventually(ctx, func() error {
		x, err := release(ctx, f)
		if err == nil && !good(x.GetRelease()) {
			err = fmt.Errorf("got %v", x.GetRelease())
		}
		return err
	}), "%s", what)
	return nil
}
