package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/gossip"
)

var (
	oldKey   = bytes.Repeat([]byte{1}, gossip.KeySize)
	newerKey = bytes.Repeat([]byte{2}, gossip.KeySize)
	otherKey = bytes.Repeat([]byte{3}, gossip.KeySize)
)

// The steps of a rotation, as control.KeyringRequest names them.
const addKey, useKey, onlyKey, endKeys = "add", "use", "only", "end"

// rotationPause is how long an agent waits for the next step of a rotation before it takes part in
// another one.
const rotationPause = 30 * time.Second

// statesExchanged is longer than memberlist takes to know who failed, or until it
// exchanges whole states again: by then what cannot be read has done its harm.
const statesExchanged = 12 * time.Second

// withKeyFile gives an agent a key file of its own with the old key.
func withKeyFile(a Inside) {
	a.Config().GossipKey = filepath.Join(a.Config().StateDir, "gossip.key")
	if err := os.WriteFile(a.Config().GossipKey, []byte(gossip.FormatKey(oldKey)+"\n"),
		0o640); err != nil {
		panic(err)
	}
}

// rotate changes the key by a, and returns the steps that each agent made, and
// those that it did not, with the fault. each, if not nil, is called after each progress.
func (f *testFleet) rotate(a *fleetAgent, req *control.RotateKeysRequest,
	each func(*control.KeysProgress)) (made, faults map[string]string, err error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 5*time.Minute)
	defer cancel()
	stream, err := a.ctl.RotateKeys(ctx, req)
	if err != nil {
		f.Fatal(err)
	}
	made, faults = map[string]string{}, map[string]string{}
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return made, faults, nil
		}
		if err != nil {
			return made, faults, err
		}
		if p.Keys.Fault != "" {
			faults[p.Keys.Agent] = p.Step + ": " + p.Keys.Fault
		} else {
			made[p.Keys.Agent] += p.Step + " "
		}
		if each != nil {
			each(p)
		}
	}
}

// holds checks which keys the agents hold, and that they would find the same
// after a restart.
func (f *testFleet) holds(agents []*fleetAgent, want ...[]byte) {
	f.Helper()
	for _, a := range agents {
		if got := a.Gossip().Keys(); !slices.EqualFunc(got, want, bytes.Equal) {
			f.Errorf("keys of %s: %x, want %x", a.AgentName(), got, want)
		}
		if kept, err := a.KeptKeys(); err != nil ||
			!slices.EqualFunc(kept, want, bytes.Equal) {
			f.Errorf("key file of %s: %x, %v, want %x", a.AgentName(), kept, err, want)
		}
	}
}

// queryAll sends queries to the agents, one at a time each, until stop is called. The
// test fails if one is not answered.
func (f *testFleet) queryAll(agents []*fleetAgent) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	var querying sync.WaitGroup
	for _, a := range agents {
		querying.Go(func() {
			for ctx.Err() == nil {
				for what, n := range f.send(1, 50*time.Millisecond, a) {
					f.Errorf("%d queries by %s: %s", n, a.AgentName(), what)
				}
			}
		})
	}
	return func() { cancel(); querying.Wait() }
}

// TestRotate changes the key of a fleet that serves queries. No agent loses
// sight of another, each finds the new key again, and who has the old one stays out.
func TestRotate(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{
			f.start(withKeyFile), f.start(withKeyFile), f.start(withKeyFile), f.start(withKeyFile),
		}
		f.settled(agents...)
		stop := f.queryAll(agents)
		made, faults, err := f.rotate(agents[1], &control.RotateKeysRequest{Key: newerKey}, nil)
		if err != nil || len(faults) > 0 {
			t.Errorf("rotation: %v, %q", err, faults)
		}
		for _, a := range agents {
			if made[string(a.AgentName())] != "list add use only " {
				t.Errorf("%s made the steps %q", a.AgentName(), made[string(a.AgentName())])
			}
		}
		time.Sleep(time.Second)
		stop()
		time.Sleep(statesExchanged)
		f.settled(agents...)
		f.holds(agents, newerKey)
		for _, a := range agents {
			for _, bad := range []string{
				"not heard", "agent left", "unreadable", "taken for dead",
			} {
				if strings.Contains(a.log.String(), bad) {
					t.Errorf("log of %s has %q", a.AgentName(), bad)
				}
			}
			if info, err := os.Stat(a.Config().GossipKey); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("key file: %v, %v, want the mode that it had", info.Mode(), err)
			}
			if files, _ := filepath.Glob(filepath.Join(a.Config().StateDir, ".gossip*")); len(
				files) > 0 {
				t.Errorf("left over: %q", files)
			}
		}

		// One starts anew, with its file; one comes with the old key.
		file := agents[3].Config().GossipKey
		if err := agents[3].stop(); err != nil {
			t.Error(err)
		}
		again := f.startOn("10.0.0.4", func(a Inside) { a.Config().GossipKey = file })
		stranger := f.start(withKeyFile)
		agents[3] = again
		f.settled(agents...)
		time.Sleep(statesExchanged)
		f.settled(agents...)
		if n := len(stranger.Gossip().Members()); n != 1 {
			t.Errorf("with the old key an agent sees %d members, want itself alone", n)
		}

		// The agents make a key of their own.
		if _, _, err := f.rotate(again, &control.RotateKeysRequest{}, nil); err != nil {
			t.Error(err)
		}
		made1 := agents[0].Gossip().Keys()
		if len(made1) != 1 || bytes.Equal(made1[0], newerKey) {
			t.Errorf("keys after a rotation to a new one: %x", made1)
		}
		f.holds(agents, made1...)
		list, err := agents[2].ctl.ListKeys(f.Context(), &control.ListKeysRequest{})
		if err != nil || len(list.Agents) != 4 {
			t.Fatalf("list: %v, %v", list, err)
		}
		for _, keys := range list.Agents {
			if !slices.Equal(keys.Fingerprints, []string{gossip.Fingerprint(made1[0])}) ||
				!keys.InFile || keys.Fault != "" {
				t.Errorf("list: %v", keys)
			}
		}
	})
}

// TestRotateUnreachable parts an agent from the others at any step. The
// rotation stops and says so; when the agent is back all see each other, and
// the rotation can be run again.
func TestRotateUnreachable(t *testing.T) {
	if raceDetector { // on one thread a rotation ends before its progress is read; see TestMain
		t.Skip("an agent is parted from the others when its progress is read")
	}
	for _, s := range []struct{ step, stopped string }{
		{addKey, ""}, {useKey, ""}, {"long before", "nothing has been changed"},
	} {
		t.Run(s.step, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				agents := []*fleetAgent{
					f.start(withKeyFile), f.start(withKeyFile), f.start(withKeyFile),
				}
				f.settled(agents...)
				gone := agents[2]
				part := func(p *control.KeysProgress) {
					if p.Step == s.step && p.Keys.Agent == gone.Name() {
						f.partition([]*fleetAgent{gone})
					}
				}
				stop := f.queryAll(agents[:2])
				if s.step == "long before" {
					f.partition([]*fleetAgent{gone})
					time.Sleep(statesExchanged) // it is no member any more
					f.settled(agents[:2]...)
				}
				_, faults, err := f.rotate(agents[0], &control.RotateKeysRequest{Key: newerKey},
					part)
				// The agent may have been parted between its answer and the next step.
				if status.Code(err) != codes.FailedPrecondition ||
					!strings.Contains(err.Error(), string(gone.AgentName())) ||
					!strings.Contains(faults[string(gone.AgentName())], "it ") {
					t.Errorf("rotation without %s: %v, %q", gone.AgentName(), err, faults)
				}
				if s.step == "long before" {
					if !strings.Contains(err.Error(), s.stopped) {
						t.Errorf("rotation: %v, want %q", err, s.stopped)
					}
					f.holds(agents, oldKey)
				}
				f.heal()
				f.settled(agents...)
				stop()
				// It may hear only now of the rotation that stopped, and wait for its next step.
				f.eventually(2*rotationPause, func() string {
					_, faults, err := f.rotate(agents[1], &control.RotateKeysRequest{Key: otherKey},
						nil)
					if err == nil {
						return ""
					}
					time.Sleep(5 * time.Second)
					return fmt.Sprintf("rotation with all: %v, %q", err, faults)
				})
				time.Sleep(statesExchanged)
				f.settled(agents...)
				f.holds(agents, otherKey)
			})
		})
	}
}

// TestRotateUnknown: the agent that is asked to change the key does not know one that the others
// know, because gossip with it was cut off when that one came. It changes nothing.
func TestRotateUnknown(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(withKeyFile), f.start(withKeyFile)}
		f.settled(agents...)
		f.gossip.Partition([]netip.AddrPort{netip.MustParseAddrPort(agents[1].host + ":7946")})
		unknown := f.start(withKeyFile)
		f.eventually(time.Second, func() string {
			if agents[0].Members().Member(names.AgentName(unknown.AgentName())) == nil {
				return "the one that is not cut off does not know it"
			}
			return ""
		})
		_, faults, err := f.rotate(agents[1], &control.RotateKeysRequest{Key: newerKey}, nil)
		if status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(faults[string(unknown.AgentName())], string("known to "+agents[0].AgentName())) {
			t.Errorf("rotation without %s: %v, %q", unknown.AgentName(), err, faults)
		}
		agents = append(agents, unknown)
		f.holds(agents, oldKey)
		f.heal()
		f.settled(agents...)
		if _, faults, err := f.rotate(agents[1], &control.RotateKeysRequest{Key: newerKey},
			nil); err != nil {
			t.Errorf("rotation with all: %v, %q", err, faults)
		}
		f.holds(agents, newerKey)
	})
}

// TestRotateWithout leaves an agent behind that is not coming back.
func TestRotateWithout(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(withKeyFile), f.start(withKeyFile), f.start(withKeyFile)}
		f.settled(agents...)
		f.kill(agents[2])
		time.Sleep(statesExchanged)
		_, faults, err := f.rotate(agents[0],
			&control.RotateKeysRequest{Key: newerKey, Without: []string{string(agents[2].AgentName())}},
			nil)
		if err != nil || len(faults) != 1 {
			t.Errorf("rotation: %v, %q", err, faults)
		}
		f.holds(agents[:2], newerKey)
	})
}

// TestRotateTwice has two rotations at the same time: at most one can go on, and
// whatever comes of them, all agents see each other.
func TestRotateTwice(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(withKeyFile), f.start(withKeyFile), f.start(withKeyFile)}
		f.settled(agents...)
		var errs [2]error
		var rotating sync.WaitGroup
		for i, key := range [][]byte{newerKey, otherKey} {
			rotating.Go(func() {
				_, _, errs[i] = f.rotate(agents[i], &control.RotateKeysRequest{Key: key}, nil)
			})
		}
		rotating.Wait()
		if errs[0] == nil && errs[1] == nil {
			// They did not meet, if one came after the other.
			if len(agents[0].Gossip().Keys()) != 1 {
				t.Errorf("two rotations, and the keys are %x", agents[0].Gossip().Keys())
			}
		}
		time.Sleep(statesExchanged)
		f.settled(agents...)
		if _, faults, err := f.rotate(agents[2], &control.RotateKeysRequest{}, nil); err != nil {
			t.Errorf("rotation after two that met (%v, %v): %v, %q", errs[0], errs[1], err, faults)
		}
		f.holds(agents, agents[0].Gossip().Keys()...)

		// One dies half way: another can begin, but not at once.
		req := func(step string, rotation uint64, key []byte) error {
			_, err := agents[0].ctl.Keyring(f.Context(), &control.KeyringRequest{
				Step: step, Rotation: rotation, Key: key,
			})
			return err
		}
		err := errors.Join(req(addKey, 1, oldKey), req(useKey, 1, oldKey),
			req(useKey, 1, agents[1].Gossip().Keys()[0]))
		if err != nil {
			t.Error(err)
		}
		if err := req(addKey, 2, newerKey); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a rotation while another is under way: %v", err)
		}
		time.Sleep(rotationPause)
		if err := errors.Join(req(addKey, 2, newerKey), req(endKeys, 2, nil)); err != nil {
			t.Error(err)
		}
		if err := req(onlyKey, 1, agents[1].Gossip().Keys()[0]); status.Code(
			err) != codes.FailedPrecondition {
			t.Errorf("a rotation that was overtaken goes on: %v", err)
		}
	})
}

// TestRotateRefused is rotations that would lose an agent, or cannot be.
func TestRotateRefused(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		inSettings := func(a Inside) { a.Config().GossipKey = gossip.FormatKey(oldKey) }
		a, b := f.start(withKeyFile), f.start(inSettings)
		f.settled(a, b)
		for _, tt := range []struct {
			name string
			req  *control.RotateKeysRequest
			code codes.Code
			want string
		}{
			{"key that nobody would have", &control.RotateKeysRequest{}, codes.FailedPrecondition,
				string(b.AgentName() + ": its key is in its settings")},
			{"short key", &control.RotateKeysRequest{Key: []byte("short")}, codes.InvalidArgument,
				"5 bytes, want 32"},
		} {
			if _, _, err := f.rotate(a, tt.req, nil); status.Code(err) != tt.code ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.code, tt.want)
			}
			f.holds([]*fleetAgent{a, b}, oldKey)
		}
		// The file of an agent cannot be written: its directory is gone.
		dir := filepath.Dir(a.Config().GossipKey)
		if err := os.Rename(dir, dir+"-away"); err != nil {
			t.Fatal(err)
		}
		_, faults, err := f.rotate(b, &control.RotateKeysRequest{Key: newerKey}, nil)
		if status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(faults[string(a.AgentName())], "add: ") ||
			!strings.Contains(faults[string(a.AgentName())], "key file") {
			t.Errorf("rotation where a key cannot be kept: %v, %q", err, faults)
		}
		if err := os.Rename(dir+"-away", dir); err != nil {
			t.Fatal(err)
		}
		f.holds([]*fleetAgent{a}, oldKey)
		if _, _, err := f.rotate(b, &control.RotateKeysRequest{Key: newerKey}, nil); err != nil {
			t.Error(err)
		}
		f.holds([]*fleetAgent{a}, newerKey)
	})
	testInFleet(t, func(f *testFleet) {
		a := f.start()
		f.settled(a)
		if _, _, err := f.rotate(a, &control.RotateKeysRequest{},
			nil); status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "not encrypted") {
			t.Errorf("rotation without keys: %v", err)
		}
	})
}

// TestRotateAlone: an agent that does not see the fleet does not leave it behind.
func TestRotateAlone(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(withKeyFile), f.start(withKeyFile), f.start(withKeyFile)}
		f.settled(agents...)
		refused := func(a *fleetAgent, expected uint32, words ...string) {
			f.Helper()
			made, _, err := f.rotate(a,
				&control.RotateKeysRequest{Key: newerKey, Expected: expected}, nil)
			if status.Code(err) != codes.FailedPrecondition || len(made) > 0 {
				f.Errorf("rotation by %s: %v, made %q, want FailedPrecondition and none", a.host,
					err, made)
			}
			for _, word := range append(words, string(a.AgentName()), "nothing has been changed") {
				if !strings.Contains(err.Error(), word) {
					f.Errorf("rotation by %s: %v, want %q in it", a.host, err, word)
				}
			}
			f.holds([]*fleetAgent{a}, oldKey)
		}
		refused(agents[0], 4, "3 agents", "expected 4", string(agents[2].AgentName()))

		// One starts anew where it reaches nobody, and so knows of nobody.
		file := agents[2].Config().GossipKey
		if err := agents[2].stop(); err != nil {
			f.Fatal(err)
		}
		f.settled(agents[:2]...)
		f.partition(agents[:2])
		alone := f.startOn("10.0.0.3", func(a Inside) { a.Config().GossipKey = file })
		f.settled(alone)
		refused(alone, 0, "no other agent", "10.0.0.1:7946", "--expect 1")
		refused(alone, 3, "1 agents", "expected 3")

		f.heal()
		f.settled(agents[0], agents[1], alone)
		if _, faults, err := f.rotate(alone, &control.RotateKeysRequest{Key: newerKey, Expected: 3},
			nil); err != nil {
			f.Errorf("rotation by all: %v, %q", err, faults)
		}
		f.holds([]*fleetAgent{agents[0], agents[1], alone}, newerKey)
	})

	// One whose fleet it is alone, and one told that it is.
	testInFleet(t, func(f *testFleet) {
		a := f.start(withKeyFile, func(a Inside) { a.Config().Join = []string{"10.0.0.1:7946"} })
		f.settled(a)
		if _, _, err := f.rotate(a, &control.RotateKeysRequest{Key: newerKey}, nil); err != nil {
			f.Errorf("rotation by an agent that is its only seed: %v", err)
		}
		f.holds([]*fleetAgent{a}, newerKey)
	})
	testInFleet(t, func(f *testFleet) {
		a := f.start(withKeyFile, func(a Inside) { a.Config().Join = []string{"10.0.0.7:7946"} })
		f.settled(a)
		if _, _, err := f.rotate(a, &control.RotateKeysRequest{Key: newerKey, Expected: 1},
			nil); err != nil {
			f.Errorf("rotation by an agent that is said to be alone: %v", err)
		}
		f.holds([]*fleetAgent{a}, newerKey)
	})
}
