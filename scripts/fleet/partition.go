package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// partition has each agent in a network namespace of its own, joined by two
// bridges that are one network until they are taken apart for ten seconds. The
// client stays on the first one's side.
func (e *experiment) partition(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if os.Getenv(unshared) == "" {
		return runUnshared(ctx)
	}
	const agents = 6
	n := network{prefix: fmt.Sprintf("mf%d", os.Getpid()%1000)}
	defer func() { err = errors.Join(err, n.remove()) }()
	if err := n.make(agents); err != nil {
		return err
	}
	types := pool(2, agents-2)
	f, err := e.newFleet(ctx, "dien", "--insecure")
	if err != nil {
		return err
	}
	defer f.Stop()
	// A base instance on each side.
	types[1], types[agents/2] = types[agents/2], types[1]
	for i, t := range types {
		if _, err := f.Add(t, n.address(i), n.namespace(i)); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	fmt.Printf("%d emulated agents, each in a network namespace\n", agents)
	d, err := newDriver(ctx, "dien", f.Addresses())
	if err != nil {
		return err
	}
	defer d.c.Close()
	// Half of what the client's side can serve alone.
	allowable, err := e.calibrated(ctx, f, d, types[:agents/2])
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := d.drive(ctx, allowable/2, time.Minute, 1); err != nil {
		return err
	}
	if err := settle(ctx, 5*time.Second); err != nil {
		return err
	}
	cut := time.Now()
	if err := n.cut(); err != nil {
		return err
	}
	if err := settle(ctx, 10*time.Second); err != nil {
		return err
	}
	healed := time.Now()
	if err := n.heal(); err != nil {
		return err
	}
	if err := settle(ctx, 10*time.Second); err != nil {
		return err
	}
	fmt.Printf("  before: %v\n  cut:    %v\n  healed: %v\n", d.between(begin, cut, dienTarget), d.between(cut, healed, dienTarget), d.between(healed, time.Now(), dienTarget))
	d.stop()
	if err := f.WaitComplete(ctx); err != nil {
		e.want(false, "all see all again: %v", err)
	} else {
		e.want(true, "all see all again, and one leader")
	}
	e.account(d, begin)
	return nil
}

// unshared is set in the environment of the command that runs in a network
// namespace of its own.
const unshared = "MUSTER_FLEET_UNSHARED"

// runUnshared runs this command again where the machine's own network is out of
// reach.
func runUnshared(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--net", self}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), unshared+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		os.Exit(exit.ExitCode()) // it has said why
	}
	if err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// A network is namespaces on two bridges.
type network struct {
	prefix string
	made   [][]string // how to remove what was made, in order
}

func (n *network) namespace(i int) string { return fmt.Sprintf("%s-%d", n.prefix, i) }
func (n *network) veth(i int) string      { return fmt.Sprintf("%sv%d", n.prefix, i) }
func (n *network) bridge(side int) string { return fmt.Sprintf("%sb%d", n.prefix, side) }

// address of agent i; the client has the first of the network.
func (n *network) address(i int) string { return fmt.Sprintf("10.213.0.%d", i+2) }

func (n *network) make(agents int) error {
	if err := n.do(nil, "link", "set", "lo", "up"); err != nil {
		return err
	}
	for side := range 2 {
		if err := n.do([]string{"link", "del", n.bridge(side)}, "link", "add", n.bridge(side), "type", "bridge"); err != nil {
			return err
		}
		if err := n.do(nil, "link", "set", n.bridge(side), "up"); err != nil {
			return err
		}
	}
	if err := n.do([]string{"link", "del", n.prefix + "x0"}, "link", "add", n.prefix+"x0", "type", "veth", "peer", "name", n.prefix+"x1"); err != nil {
		return err
	}
	steps := []string{
		"link set " + n.prefix + "x0 master " + n.bridge(0) + " up",
		"link set " + n.prefix + "x1 master " + n.bridge(1) + " up",
		"addr add 10.213.0.1/24 dev " + n.bridge(0),
	}
	for i := range agents {
		ns, veth := n.namespace(i), n.veth(i)
		if err := n.do([]string{"netns", "del", ns}, "netns", "add", ns); err != nil {
			return err
		}
		side := 0
		if i >= agents/2 {
			side = 1
		}
		steps = append(steps,
			"link add "+veth+" type veth peer name eth0 netns "+ns,
			"link set "+veth+" master "+n.bridge(side)+" up",
			"-n "+ns+" addr add "+n.address(i)+"/24 dev eth0",
			"-n "+ns+" link set eth0 up",
			"-n "+ns+" link set lo up",
		)
	}
	for _, step := range steps {
		if err := n.do(nil, strings.Fields(step)...); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) cut() error  { return n.do(nil, "link", "set", n.prefix+"x0", "down") }
func (n *network) heal() error { return n.do(nil, "link", "set", n.prefix+"x0", "up") }

// do runs ip with args, and remembers how to undo it.
func (n *network) do(undo []string, args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	if undo != nil {
		n.made = append(n.made, undo)
	}
	return nil
}

func (n *network) remove() (err error) {
	for i := len(n.made) - 1; i >= 0; i-- {
		if out, e := exec.Command("ip", n.made[i]...).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("ip %s: %w: %s", strings.Join(n.made[i], " "), e, out))
		}
	}
	return err
}
