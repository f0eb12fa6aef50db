//go:build fleet

package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// An agent is one of the fleet's agents.
type agent struct {
	*harness.Node
	// spared agents are neither killed nor drained, so that leaks in them are seen in the end.
	spared bool
	// trouble says what is done to it. It is "" if the agent should serve.
	trouble string
	ended   bool // its process has ended, as it was told to
	// changing: its certificate is being changed.
	changing bool
}

// An event is something that happens to one agent, or to several.
type event struct {
	name  string
	often int // how often it happens, relative to the others
	// happen starts the event. It returns false if the event cannot happen just now.
	happen func(c *chaos, r *rand.Rand) bool
}

var events = []event{
	{"killed", 3, (*chaos).killAgent},
	{"drained", 2, (*chaos).drainAgent},
	{"frozen", 3, (*chaos).freezeAgent},
	{"slowed", 2, (*chaos).slowAgent},
	{"cut off", 3, (*chaos).cutOff},
	{"gossip key changed", 2, (*chaos).changeKey},
	{"certificates changed", 2, (*chaos).changeCertificates},
}

// startRandomEvent starts a random event. The seed decides which one and for how long. The state of
// the fleet decides to which agents, and whether it can happen at all.
func (c *chaos) startRandomEvent() {
	c.happened++
	r := rand.New(rand.NewPCG(c.seed, c.happened))
	sum := 0
	for _, e := range events {
		sum += e.often
	}
	n := r.IntN(sum)
	for _, e := range events {
		if n -= e.often; n < 0 {
			if e.happen(c, r) {
				c.counts[e.name]++
			}
			return
		}
	}
}

// seconds draws a time between least and most, in seconds.
func seconds(r *rand.Rand, least, most float64) time.Duration {
	return time.Duration((least + (most-least)*r.Float64()) * float64(time.Second))
}

// drawDuration draws how long something lasts, in seconds; half of that in a short run.
func (c *chaos) drawDuration(r *rand.Rand, least, most float64) time.Duration {
	return seconds(r, least, most) / pick[time.Duration](c.run, 1, 2)
}

// callLater has the loop call f after d.
func (c *chaos) callLater(d time.Duration, f func()) {
	c.pending++
	time.AfterFunc(d, func() { c.todo <- func() { c.pending--; f() } })
}

// runInBackground runs work on a goroutine of its own. The loop then calls then with its error.
func (c *chaos) runInBackground(work func() error, then func(error)) {
	c.pending++
	go func() {
		err := work()
		c.todo <- func() { c.pending--; then(err) }
	}()
}

// pickAgent chooses an agent that suits, to get it into trouble; one time in three the leader, if
// it suits. It returns nil if no agent suits, or if a third of the agents are in trouble already.
func (c *chaos) pickAgent(r *rand.Rand, suits func(*agent) bool) *agent {
	wantLeader, n := r.IntN(3) == 0, r.IntN(1<<20)
	var able []*agent
	troubled := 0
	for _, a := range c.agents {
		switch {
		case a.trouble != "":
			troubled++
		case !a.changing && suits(a):
			able = append(able, a)
		}
	}
	if len(able) == 0 || troubled >= max(1, c.size/3) {
		return nil
	}
	if i := slices.IndexFunc(able, func(a *agent) bool { return a.Name == c.leader }); i >= 0 &&
		wantLeader {
		return able[i]
	}
	return able[n%len(able)]
}

// What pick is asked for: any agent, or one that is not spared.
func anyone(*agent) bool    { return true }
func mortals(a *agent) bool { return !a.spared }

// agentLabel is the agent's name in what is printed, which says if it leads.
func (c *chaos) agentLabel(a *agent) string {
	if a.Name == c.leader && a.Name != "" {
		return a.String() + " (which leads)"
	}
	return a.String()
}

// killAgent kills an agent, and restarts it after a while.
func (c *chaos) killAgent(r *rand.Rand) bool {
	away := max(0, c.drawDuration(r, -2, 6))
	a := c.pickAgent(r, mortals)
	if a == nil {
		return false
	}
	c.printEvent("%s is killed", c.agentLabel(a))
	a.trouble, a.ended = "killed", true
	a.Kill()
	c.callLater(away, func() { c.restartAgent(a) })
	return true
}

// drainAgent drains an agent until it has ended, and restarts it after a while.
func (c *chaos) drainAgent(r *rand.Rand) bool {
	away := max(0, c.drawDuration(r, -2, 4))
	if c.rotating { // an agent that is away would not get the new key
		return false
	}
	a := c.pickAgent(r, mortals)
	if a == nil {
		return false
	}
	c.printEvent("%s is told to drain", c.agentLabel(a))
	a.trouble, a.ended = "drained", true
	c.draining++
	begun := time.Now()
	c.runInBackground(a.Stop, func(err error) {
		if err != nil {
			c.fail("%v was told to drain: %v", a, err)
		}
		c.printEvent("%v has drained in %.1f s", a, time.Since(begun).Seconds())
		c.callLater(away, func() { c.restartAgent(a) })
	})
	return true
}

// restartAgent starts an agent that has ended.
func (c *chaos) restartAgent(a *agent) {
	if err := c.fleet.Restart(a.Node); err != nil {
		c.fail("%v cannot be started: %v", a, err)
		return
	}
	a.ended = false
	c.awaitAgent(a, a.Name, a.Started, func() {
		if a.trouble == "drained" {
			c.draining--
		}
	})
}

// awaitAgent waits until an agent serves again and is no longer in trouble. If its process was
// restarted, former is the name of the process before. It calls then first.
func (c *chaos) awaitAgent(a *agent, former string, since time.Time, then func()) {
	var name string
	c.runInBackground(func() (err error) {
		name, err = c.fleet.WaitBack(c.ctx, a.Node, former)
		return err
	}, func(err error) {
		then()
		if err != nil {
			c.fail("%v, which was %s: %v", a, a.trouble, err)
		} else {
			c.printEvent("%v is back after %.1f s", a, time.Since(since).Seconds())
		}
		a.trouble, a.Name = "", name
	})
}

// freezeAgent stops an agent's process (SIGSTOP) for some time.
func (c *chaos) freezeAgent(r *rand.Rand) bool {
	long := c.drawDuration(r, 0.1, 3)
	if r.IntN(4) == 0 {
		long = c.drawDuration(r, 3, 9) // long enough to be taken for dead
	}
	a := c.pickAgent(r, anyone)
	if a == nil {
		return false
	}
	c.printEvent("%s is frozen for %.1f s", c.agentLabel(a), long.Seconds())
	a.trouble = "frozen"
	a.Signal(syscall.SIGSTOP)
	c.callLater(long, func() {
		a.Signal(syscall.SIGCONT)
		c.awaitAgent(a, "", time.Now(), func() {})
	})
	return true
}

// slowAgent stops an agent's process for a share of every 50 ms.
func (c *chaos) slowAgent(r *rand.Rand) bool {
	const period = 50 * time.Millisecond
	long, stopped := c.drawDuration(r, 2, 10), time.Duration((0.3+0.5*r.Float64())*float64(period))
	a := c.pickAgent(r, anyone)
	if a == nil {
		return false
	}
	c.printEvent("%s is slowed for %.1f s: it is stopped for %d %% of the time",
		c.agentLabel(a), long.Seconds(), 100*stopped/period)
	a.trouble = "slowed"
	slowed := a.Agent
	c.runInBackground(func() error {
		for end := time.Now().Add(long); time.Now().Before(end); {
			slowed.Signal(syscall.SIGSTOP)
			time.Sleep(stopped)
			slowed.Signal(syscall.SIGCONT)
			time.Sleep(period - stopped)
		}
		return nil
	}, func(error) { a.trouble = "" })
	return true
}

// cutOff cuts the network between some agents and all others for some time. The clients
// stay with the others.
func (c *chaos) cutOff(r *rand.Rand) bool {
	long, most := c.drawDuration(r, 0.3, 12), 1+r.IntN(max(1, c.size/3))
	if c.network == nil {
		return false
	}
	var cut []*agent
	var names []string
	var indexes []int
	for len(cut) < most {
		a := c.pickAgent(r, anyone)
		if a == nil {
			break
		}
		a.trouble = "cut off"
		cut, names, indexes = append(cut, a), append(names, c.agentLabel(a)), append(indexes,
			a.Index)
	}
	if len(cut) == 0 {
		return false
	}
	c.printEvent("cut off: %s, for %.1f s", strings.Join(names, ", "), long.Seconds())
	if err := c.network.Cut(indexes...); err != nil {
		c.fail("%v", err)
	}
	c.callLater(long, func() {
		if err := c.network.Heal(indexes...); err != nil {
			c.fail("%v", err)
		}
		for _, a := range cut {
			c.awaitAgent(a, "", time.Now(), func() {})
		}
	})
	return true
}

// changeKey asks an agent to change the fleet's gossip key. The change may stop halfway if agents
// are in trouble. That is no failure, but gossip must still work.
func (c *chaos) changeKey(r *rand.Rand) bool {
	n := r.IntN(1 << 20)
	if c.rotating || c.draining > 0 {
		return false
	}
	var able []*agent
	for _, a := range c.agents {
		if a.trouble == "" {
			able = append(able, a)
		}
	}
	a := able[n%len(able)]
	c.rotating = true
	begun := time.Now()
	c.printEvent("%v is asked to change the gossip key", a)
	c.runInBackground(func() error { return c.rotateKey(a) }, func(err error) {
		c.rotating = false
		if err != nil {
			c.printEvent("the gossip key is not changed: %v", err)
		} else {
			c.counts["gossip key changed to the end"]++
			c.printEvent("the gossip key is changed, in %.1f s", time.Since(begun).Seconds())
		}
	})
	return true
}

// rotateKey changes the gossip key by a call to the agent. Its error is the last line of the
// command's.
func (c *chaos) rotateKey(a *agent) error {
	certificates := c.fleet.Certificates
	args := append([]string{"keys", "rotate", "--server", a.GRPC},
		certificates.Args(harness.Admin)...)
	_, err := certificates.Run(c.ctx, args...)
	if err == nil {
		return nil
	}
	_, said, _ := strings.Cut(err.Error(), "exit status 1: ") // without the command line
	return errors.New(said[strings.LastIndexByte(said, '\n')+1:])
}

// changeCertificates gives one agent, all agents or the SDK a new certificate.
func (c *chaos) changeCertificates(r *rand.Rand) bool {
	var to []*agent
	how, pause := r.IntN(3), c.drawDuration(r, 0.5, 2.5) // how the files are replaced: see certify
	switch whose, n := r.IntN(4), r.IntN(1<<20); {
	case whose == 0: // the SDK's
	case whose == 1:
		to = c.agents
	default:
		to = c.agents[n%c.size : n%c.size+1]
	}
	names := []string{"sdk"}
	what := "the SDK gets a new certificate"
	if to != nil {
		to = slices.DeleteFunc(slices.Clone(to), func(a *agent) bool {
			return a.trouble != "" || a.changing
		})
		names, what = nil, "new certificates for"
		for _, a := range to {
			names = append(names, harness.AgentName(a.Index))
			what += fmt.Sprintf(" %d", a.Index)
		}
	}
	if len(names) == 0 || c.certifying {
		return false
	}
	c.certifying = true
	c.printEvent("%s, %s", what, [...]string{
		"at once", "the key first, the certificate later", "each file half written at first",
	}[how])
	for _, a := range to {
		a.changing = true // so it is not restarted, with half-written files
	}
	c.runInBackground(func() error { return c.issueCertificates(names, how, pause) },
		func(err error) {
			if err != nil {
				c.fail("change certificates: %v", err)
			}
			c.certifying = false
			for _, a := range to {
				a.changing = false
			}
		})
	return true
}

// issueCertificates issues certificates for the names and replaces their files. how is 0: all at
// once; 1: the keys first, and the certificates after a pause; 2: as 1, after half-written files
// for a pause.
func (c *chaos) issueCertificates(names []string, how int, pause time.Duration) error {
	type file struct {
		path string
		text []byte
	}
	var certs, keys []file
	for _, name := range names {
		host := "" // the SDK's
		for _, a := range c.agents {
			if harness.AgentName(a.Index) == name {
				host, _, _ = net.SplitHostPort(a.GRPC)
			}
		}
		certificates, fresh := c.fleet.Certificates, filepath.Join(c.dir, "issued")
		if err := errors.Join(os.RemoveAll(fresh),
			certificates.Issue(c.ctx, name, host, fresh)); err != nil {
			return err
		}
		fromCert, fromKey := certificates.Pair(name, fresh)
		toCert, toKey := certificates.Pair(name, "")
		cert, certErr := os.ReadFile(fromCert)
		key, keyErr := os.ReadFile(fromKey)
		if err := errors.Join(certErr, keyErr); err != nil {
			return err
		}
		certs, keys = append(certs, file{toCert, cert}), append(keys, file{toKey, key})
	}
	write := func(all []file, whole bool) (err error) {
		for _, f := range all {
			if !whole {
				// Neither whole nor at once, as a careless copy does.
				err = errors.Join(err, os.WriteFile(f.path, f.text[:len(f.text)/2], 0o600))
				continue
			}
			err = errors.Join(err, files.Replace(f.path, f.text, 0o600))
		}
		return err
	}
	if how == 2 {
		if err := errors.Join(write(keys, false), write(certs, false)); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	err := write(keys, true)
	if how > 0 {
		time.Sleep(pause)
	}
	return errors.Join(err, write(certs, true))
}

// standstill: if the loop does not run for longer, a line says so. The machine has then no time for
// this process, and so hardly any for the agents.
const standstill = 500 * time.Millisecond

// observeFleet finds out who leads, whether a process has ended by itself, and whether the machine
// stood still.
func (c *chaos) observeFleet() {
	now := time.Now()
	if took := now.Sub(c.looked); took > standstill {
		c.printEvent("this machine has stood still for %.1f s", took.Seconds())
		c.counts["machine stood still"]++
	}
	c.looked = now
	if g := c.sdk.Gateway(); g != nil {
		if leader := string(g.Leader()); leader != "" && leader != c.leader {
			c.leader = leader
			if i := slices.IndexFunc(c.agents,
				func(a *agent) bool { return a.Name == leader }); i >= 0 {
				c.printEvent("%v leads", c.agents[i])
			} else {
				c.printEvent("%s leads", leader)
			}
		}
	}
	for _, a := range c.agents {
		if !a.ended && a.HasExited() {
			c.fail("%v: %v", a, a.Stop())
			a.ended, a.trouble = true, "ended"
			c.restartAgent(a)
		}
	}
}
