package main

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// The emulated fleet. It serves RM2, whose queries take long: so there are few of them, and this
// machine's CPUs, which all six agents share, have little to do.
const (
	fleetModel = "rm2"
	firstType  = "g4dn.xlarge" // the fastest, and the fleet's first member
	fleetPool  = "g4dn.xlarge=2,r5n.large=4"
)

var others = []string{"g4dn.xlarge", "r5n.large", "r5n.large", "r5n.large", "r5n.large"}

// showFleet is the second and the third part: an emulated fleet serves a load that none of its
// members could serve in time, and then does so while its leader is killed.
func (d *demo) showFleet(ctx context.Context) error {
	d.printLine("\n2  An emulated fleet of six, 2 g4dn.xlarge and 4 r5n.large, serves rm2. Its agents " +
		"run " +
		"no model:\n" +
		"   for each query they wait as long as was measured on their instance type")
	f := &harness.Fleet{
		Muster: d.muster, Dir: filepath.Join(d.dir, "emulated"), Models: []string{fleetModel},
		Args: harness.Emulated(),
	}
	if err := f.GenerateSmall(ctx); err != nil {
		return err
	}
	config, err := models.ReadConfig(filepath.Join(f.Dir, "models", fleetModel, models.ConfigFile))
	if err != nil {
		return err
	}
	var allowed [3]float64
	for i, pool := range []string{"g4dn.xlarge=1", "r5n.large=1", fleetPool} {
		if allowed[i], err = harness.AllowableThroughput(ctx, d.muster, fleetModel, pool,
			0); err != nil {
			return err
		}
	}
	rate, err := chooseFleetLoad(allowed[:2], allowed[2])
	if err != nil {
		return err
	}
	d.printLine(
		"   By simulation, one g4dn.xlarge serves %s in time (within %g ms), one r5n.large %s,\n"+
			"   and all six %s",
		queriesASecond(allowed[0]), milliseconds(config.QoSTarget), queriesASecond(allowed[1]),
		queriesASecond(allowed[2]))
	d.printLine("   The load is half of what all six serve: %s, for %.0f s", queriesASecond(rate),
		d.load.Seconds())
	defer f.Stop()
	if err := d.addAgents(ctx, f, firstType); err != nil {
		return err
	}
	alone, err := d.driveFleet(ctx, f, rate, max(d.load/4, 3*time.Second))
	if err != nil {
		return err
	}
	d.printLine("   One g4dn.xlarge alone answers %s of %d queries within %g ms",
		percent(alone.QoSSatisfaction), alone.Queries, alone.QoSTargetMS)
	d.addResult(*alone, "emulated g4dn.xlarge alone", "rm2 on a g4dn.xlarge alone (emulated)")

	if err := d.addAgents(ctx, f, others...); err != nil {
		return err
	}
	// An agent that came later: the one that leads is killed further below.
	shows := f.Nodes[len(f.Nodes)-1]
	d.printLine("   Watch it at %s", pageURL(shows))
	picture := make(chan string, 1)
	halfway := time.AfterFunc(d.load/2, func() { picture <- d.takePagePicture(ctx, shows) })
	whole, err := d.driveFleet(ctx, f, rate, d.load)
	for err == nil && len(picture) == 0 { // the picture shall show the load
		_, err = d.driveFleet(ctx, f, rate, time.Second)
	}
	if err != nil {
		halfway.Stop()
		return err
	}
	if said := <-picture; said != "" {
		d.printLine("   %s", said)
	}
	d.printLine("   The other five join it. All six answer %s of %d queries within %g ms",
		percent(whole.QoSSatisfaction), whole.Queries, whole.QoSTargetMS)
	d.addResult(*whole, "emulated fleet of six", "rm2 on the fleet of six (emulated)")
	d.lookAround()

	d.printLine("\n3  The same load again. After a third of it the leader's process is killed")
	killed := make(chan error, 1)
	var story string
	killing := time.AfterFunc(d.load/3, func() {
		var err error
		story, err = killLeader(ctx, f)
		killed <- err
	})
	without, err := d.driveFleet(ctx, f, rate, d.load)
	if err != nil {
		killing.Stop()
		return err
	}
	if err := <-killed; err != nil {
		return err
	}
	d.printLine("   %s", story)
	d.printLine("   %d of %d queries were answered, %s within %g ms; none was lost",
		without.Answered,
		without.Queries,
		percent(without.QoSSatisfaction), without.QoSTargetMS)
	d.addResult(*without, "the same, its leader killed", "rm2, the leader killed (emulated)")
	d.lookAround()
	return nil
}

// chooseFleetLoad is half of the fleet's allowable throughput, in queries/s. It is an error if a
// member alone could serve half of that: then the demo would not show what a fleet is for.
func chooseFleetLoad(alone []float64, together float64) (float64, error) {
	rate := together / 2
	for _, x := range alone {
		if 2*x > rate {
			return 0, fmt.Errorf(
				"half of what the fleet allows is %.1f queries/s, want at least twice what a "+
					"member allows, %.1f", rate, x)
		}
	}
	return rate, nil
}

func queriesASecond(rate float64) string {
	if rate == 0 {
		return "none"
	}
	return fmt.Sprintf("%.0f queries/s", rate)
}

// addAgents adds agents to the fleet and waits until all see each other.
func (d *demo) addAgents(ctx context.Context, f *harness.Fleet, types ...string) error {
	defer d.showActivity("starting agents")()
	for _, t := range types {
		if _, err := f.Add(ctx, t); err != nil {
			return err
		}
	}
	return f.WaitComplete(ctx)
}

// driveFleet puts load on the fleet.
func (d *demo) driveFleet(ctx context.Context, f *harness.Fleet, rate float64,
	duration time.Duration) (*bench.ModelReport, error) {
	c, err := client.New(f.Addresses(), client.WithTimeout(patience))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	report, err := d.sendLoad(ctx, c, false, rate, duration, map[string]float64{fleetModel: 1})
	if err != nil {
		return nil, err
	}
	return &report.Models[0], nil
}

// killLeader ends the leader's process without a warning and waits until another leads.
func killLeader(ctx context.Context, f *harness.Fleet) (story string, err error) {
	leader, epoch, err := f.Leader(ctx)
	if err != nil {
		return "", err
	}
	leader.Signal(syscall.SIGKILL)
	took, err := f.AwaitLeader(ctx, leader, epoch)
	if err != nil {
		return "", err
	}
	f.Remove(leader)
	next, _, err := f.Leader(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (%s) was killed; %d ms later %s (%s) was the leader", leader.Name,
		leader.InstanceType,
		took.Milliseconds(), next.Name, next.InstanceType), nil
}
