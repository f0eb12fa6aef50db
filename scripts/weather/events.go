package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/scripts/process"
)

// An event is something that happens to one agent, or to several.
type event struct {
	name  string
	often int
	// happen reports whether it can, just now.
	happen func(w *weather, r *rand.Rand) bool
}

var events = []event{
	{"killed", 3, (*weather).kill},
	{"drained", 2, (*weather).drain},
	{"frozen", 3, (*weather).freeze},
	{"slowed", 2, (*weather).slow},
	{"cut off", 3, (*weather).cutOff},
	{"gossip key changed", 2, (*weather).changeKey},
	{"certificates changed", 2, (*weather).changeCertificates},
}

// happen has something happen. What, and for how long, the seed says; the state
// of the fleet, to whom, and whether it can.
func (w *weather) happen() {
	w.happened++
	r := rand.New(rand.NewPCG(w.seed, w.happened))
	sum := 0
	for _, e := range events {
		sum += e.often
	}
	n := r.IntN(sum)
	for _, e := range events {
		if n -= e.often; n < 0 {
			if e.happen(w, r) {
				w.counts[e.name]++
			}
			return
		}
	}
}

func seconds(r *rand.Rand, least, most float64) time.Duration {
	return time.Duration((least + (most-least)*r.Float64()) * float64(time.Second))
}

// later has the loop call f after a while.
func (w *weather) later(d time.Duration, f func()) {
	w.pending++
	time.AfterFunc(d, func() { w.todo <- func() { w.pending--; f() } })
}

// background runs work beside the loop, which then calls then.
func (w *weather) background(work func() error, then func(error)) {
	w.pending++
	go func() {
		err := work()
		w.todo <- func() { w.pending--; then(err) }
	}()
}

// pick chooses an agent to get into trouble: one time in three the leader. It
// returns nil if there is none, or if enough are in trouble: a third.
func (w *weather) pick(r *rand.Rand, suits func(*agent) bool) *agent {
	wantLeader, n := r.IntN(3) == 0, r.IntN(1<<20)
	var able []*agent
	troubled := 0
	for _, a := range w.agents {
		switch {
		case a.trouble != "":
			troubled++
		case !a.changing && suits(a):
			able = append(able, a)
		}
	}
	if len(able) == 0 || troubled >= max(1, w.size/3) {
		return nil
	}
	if i := slices.IndexFunc(able, func(a *agent) bool { return a.Name == w.leader }); i >= 0 && wantLeader {
		return able[i]
	}
	return able[n%len(able)]
}

func anyone(*agent) bool    { return true }
func mortals(a *agent) bool { return !a.spared }
func (w *weather) who(a *agent) string {
	if a.Name == w.leader && a.Name != "" {
		return a.String() + " (which leads)"
	}
	return a.String()
}

// kill ends a process without a warning. It is started anew after a while.
func (w *weather) kill(r *rand.Rand) bool {
	away := max(0, seconds(r, -2, 6))
	a := w.pick(r, mortals)
	if a == nil {
		return false
	}
	w.say("%s is killed", w.who(a))
	a.trouble, a.ended = "killed", true
	a.Kill()
	w.later(away, func() { w.restart(a) })
	return true
}

// drain ends a process in good order, and starts it anew.
func (w *weather) drain(r *rand.Rand) bool {
	away := max(0, seconds(r, -2, 4))
	if w.rotating { // who is away does not get the new key
		return false
	}
	a := w.pick(r, mortals)
	if a == nil {
		return false
	}
	w.say("%s is told to drain", w.who(a))
	a.trouble, a.ended = "drained", true
	w.draining++
	begun := time.Now()
	w.background(a.Stop, func(err error) {
		if err != nil {
			w.fail("%v was told to drain: %v", a, err)
		}
		w.say("%v has drained in %.1f s", a, time.Since(begun).Seconds())
		w.later(away, func() { w.restart(a) })
	})
	return true
}

// restart starts an agent that has ended.
func (w *weather) restart(a *agent) {
	if err := w.fleet.Restart(a.Node); err != nil {
		w.fail("%v cannot be started: %v", a, err)
		return
	}
	a.ended = false
	w.await(a, a.Name, a.Started, func() {
		if a.trouble == "drained" {
			w.draining--
		}
	})
}

// await waits until an agent serves again; then it is in trouble no more. Former is
// the name of its process before, if it has ended.
func (w *weather) await(a *agent, former string, since time.Time, then func()) {
	var name string
	w.background(func() (err error) {
		name, err = w.waitReady(w.ctx, a.Node, former)
		return err
	}, func(err error) {
		then()
		if err != nil {
			w.fail("%v, which was %s: %v", a, a.trouble, err)
		} else {
			w.say("%v is back after %.1f s", a, time.Since(since).Seconds())
		}
		a.trouble, a.Name = "", name
	})
}

// freeze stops a process for some time.
func (w *weather) freeze(r *rand.Rand) bool {
	long := seconds(r, 0.1, 3)
	if r.IntN(4) == 0 {
		long = seconds(r, 3, 9) // long enough to be taken for dead
	}
	a := w.pick(r, anyone)
	if a == nil {
		return false
	}
	w.say("%s is frozen for %.1f s", w.who(a), long.Seconds())
	a.trouble = "frozen"
	a.Signal(syscall.SIGSTOP)
	w.later(long, func() {
		a.Signal(syscall.SIGCONT)
		w.await(a, "", time.Now(), func() {})
	})
	return true
}

// slow stops a process for a part of the time.
func (w *weather) slow(r *rand.Rand) bool {
	const period = 50 * time.Millisecond
	long, stopped := seconds(r, 2, 10), time.Duration((0.3+0.5*r.Float64())*float64(period))
	a := w.pick(r, anyone)
	if a == nil {
		return false
	}
	w.say("%s is slowed for %.1f s: it stands still for %d %% of the time", w.who(a), long.Seconds(), 100*stopped/period)
	a.trouble = "slowed"
	slowed := a.Agent
	w.background(func() error {
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

// cutOff has some agents see nobody but each other. The clients stay with the
// others.
func (w *weather) cutOff(r *rand.Rand) bool {
	long, most := seconds(r, 0.3, 12), 1+r.IntN(max(1, w.size/3))
	if w.network == nil {
		return false
	}
	var cut []*agent
	var names []string
	var indexes []int
	for len(cut) < most {
		a := w.pick(r, anyone)
		if a == nil {
			break
		}
		a.trouble = "cut off"
		cut, names, indexes = append(cut, a), append(names, w.who(a)), append(indexes, a.Index)
	}
	if len(cut) == 0 {
		return false
	}
	w.say("cut off: %s, for %.1f s", strings.Join(names, ", "), long.Seconds())
	if err := w.network.Cut(indexes...); err != nil {
		w.fail("%v", err)
	}
	w.later(long, func() {
		if err := w.network.Heal(indexes...); err != nil {
			w.fail("%v", err)
		}
		for _, a := range cut {
			w.await(a, "", time.Now(), func() {})
		}
	})
	return true
}

// changeKey has an agent change the gossip key of the fleet. It may have to
// stop, where agents are in trouble; what it leaves behind must work.
func (w *weather) changeKey(r *rand.Rand) bool {
	n := r.IntN(1 << 20)
	if w.rotating || w.draining > 0 {
		return false
	}
	var able []*agent
	for _, a := range w.agents {
		if a.trouble == "" {
			able = append(able, a)
		}
	}
	a := able[n%len(able)]
	w.rotating = true
	begun := time.Now()
	w.say("%v is asked to change the gossip key", a)
	w.background(func() error { return w.rotate(a) }, func(err error) {
		w.rotating = false
		if err != nil {
			w.say("the gossip key is not changed: %v", err)
		} else {
			w.counts["gossip key changed to the end"]++
			w.say("the gossip key is changed, in %.1f s", time.Since(begun).Seconds())
		}
	})
	return true
}

// rotate returns the last line of why the key has not been changed.
func (w *weather) rotate(a *agent) error {
	args := append([]string{"keys", "rotate", "--server", a.GRPC}, w.tlsArgs(w.pairOf("admin"))...)
	out, err := w.muster(w.ctx, args...)
	if err == nil {
		return nil
	}
	return errors.New(out[strings.LastIndexByte(out, '\n')+1:])
}

// changeCertificates gives an agent, all, or the SDK a new certificate.
func (w *weather) changeCertificates(r *rand.Rand) bool {
	var to []*agent
	how, pause := r.IntN(3), seconds(r, 0.5, 2.5)
	switch whose, n := r.IntN(4), r.IntN(1<<20); {
	case whose == 0: // the SDK's
	case whose == 1:
		to = w.agents
	default:
		to = w.agents[n%w.size : n%w.size+1]
	}
	names := []string{"sdk"}
	what := "the SDK gets a new certificate"
	if to != nil {
		to = slices.DeleteFunc(slices.Clone(to), func(a *agent) bool { return a.trouble != "" || a.changing })
		names, what = nil, "new certificates for"
		for _, a := range to {
			names = append(names, called(a.Index))
			what += fmt.Sprintf(" %d", a.Index)
		}
	}
	if len(names) == 0 || w.certifying {
		return false
	}
	w.certifying = true
	w.say("%s, %s", what, [...]string{"at once", "the key first, and the certificate a while after", "half of the files at first"}[how])
	for _, a := range to {
		a.changing = true // it could not start with half of them
	}
	w.background(func() error { return w.certify(names, how, pause) }, func(err error) {
		if err != nil {
			w.fail("change certificates: %v", err)
		}
		w.certifying = false
		for _, a := range to {
			a.changing = false
		}
	})
	return true
}

// certify issues certificates and replaces the files of those who have the names.
func (w *weather) certify(names []string, how int, pause time.Duration) error {
	type file struct {
		path string
		text []byte
	}
	var keys, certs []file
	for _, name := range names {
		fresh := filepath.Join(w.dir, "issued")
		if err := errors.Join(os.RemoveAll(fresh), w.issue(w.ctx, name, fresh)); err != nil {
			return err
		}
		from, to := pairIn(fresh, name), w.pairOf(name)
		key, err := os.ReadFile(from.key)
		if err != nil {
			return err
		}
		cert, err := os.ReadFile(from.cert)
		if err != nil {
			return err
		}
		keys, certs = append(keys, file{to.key, key}), append(certs, file{to.cert, cert})
	}
	write := func(files []file, whole bool) (err error) {
		for _, f := range files {
			if !whole {
				err = errors.Join(err, os.WriteFile(f.path, f.text[:len(f.text)/2], 0o600)) // not even at once
				continue
			}
			err = errors.Join(err, os.WriteFile(f.path+".new", f.text, 0o600), os.Rename(f.path+".new", f.path))
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

// standstill is how long the loop may not run before that is worth a line: the
// machine has no time for it, and so hardly for the agents.
const standstill = 500 * time.Millisecond

// look finds out who leads, whether processes have ended, and whether the machine
// is too busy to tell.
func (w *weather) look() {
	now := time.Now()
	if took := now.Sub(w.looked); took > standstill {
		w.say("this machine has stood still for %.1f s", took.Seconds())
		w.counts["machine stood still"]++
	}
	w.looked = now
	if g := w.clients.sdk.Gateway(); g != nil {
		if leader := g.Leader(); leader != "" && leader != w.leader {
			w.leader = leader
			if i := slices.IndexFunc(w.agents, func(a *agent) bool { return a.Name == leader }); i >= 0 {
				w.say("%v leads", w.agents[i])
			} else {
				w.say("%s leads", leader)
			}
		}
	}
	for _, a := range w.agents {
		if !a.ended && exited(a.Agent) {
			w.fail("%v: %v", a, a.Stop())
			a.ended, a.trouble = true, "ended"
			w.restart(a)
		}
	}
}

func exited(a *process.Agent) bool {
	select {
	case <-a.Exited():
		return true
	default:
		return false
	}
}
