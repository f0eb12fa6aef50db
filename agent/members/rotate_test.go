package members_test

import (
	"bytes"
	"errors"
	"fmt"
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

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/gossip"
)

// statesExchanged is longer than memberlist takes to know who failed, or until it
// exchanges whole states again: by then what cannot be read has done its harm.
const statesExchanged = 12 * time.Second

// TestRotate changes the key of a fleet that serves queries. No agent loses
// sight of another, each finds the new key again, and who has the old one stays out.
func TestRotate(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{
			f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile),
			f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile),
		}
		f.Settled(agents...)
		stop := f.QueryAll(agents)
		made, faults, err := f.Rotate(agents[1], &control.RotateKeysRequest{Key: agenttest.NewerKey}, nil)
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
		f.Settled(agents...)
		f.Holds(agents, agenttest.NewerKey)
		for _, a := range agents {
			for _, bad := range []string{
				"event=failed", "event=left", "unreadable", "taken for dead",
			} {
				if strings.Contains(a.Log.String(), bad) {
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
		if err := agents[3].Stop(); err != nil {
			t.Error(err)
		}
		again := f.StartOn("10.0.0.4", func(a agent.Inside) { a.Config().GossipKey = file })
		stranger := f.Start(agenttest.WithKeyFile)
		agents[3] = again
		f.Settled(agents...)
		time.Sleep(statesExchanged)
		f.Settled(agents...)
		if n := len(stranger.Gossip().Members()); n != 1 {
			t.Errorf("with the old key an agent sees %d members, want itself alone", n)
		}

		// The agents make a key of their own.
		if _, _, err := f.Rotate(again, &control.RotateKeysRequest{}, nil); err != nil {
			t.Error(err)
		}
		made1 := agents[0].Gossip().Keys()
		if len(made1) != 1 || bytes.Equal(made1[0], agenttest.NewerKey) {
			t.Errorf("keys after a rotation to a new one: %x", made1)
		}
		f.Holds(agents, made1...)
		list, err := agents[2].Control.ListKeys(f.Context(), &control.ListKeysRequest{})
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
	if agenttest.RaceDetector { // on one thread a rotation ends before its progress is read; see TestMain
		t.Skip("an agent is parted from the others when its progress is read")
	}
	for _, s := range []struct{ step, stopped string }{
		{agenttest.AddKey, ""}, {agenttest.UseKey, ""}, {"long before", "nothing has been changed"},
	} {
		t.Run(s.step, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				agents := []*agenttest.Member{
					f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile),
				}
				f.Settled(agents...)
				gone := agents[2]
				part := func(p *control.KeysProgress) {
					if p.Step == s.step && p.Keys.Agent == gone.Name() {
						f.Partition([]*agenttest.Member{gone})
					}
				}
				stop := f.QueryAll(agents[:2])
				if s.step == "long before" {
					f.Partition([]*agenttest.Member{gone})
					time.Sleep(statesExchanged) // it is no member any more
					f.Settled(agents[:2]...)
				}
				_, faults, err := f.Rotate(agents[0], &control.RotateKeysRequest{Key: agenttest.NewerKey},
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
					f.Holds(agents, agenttest.OldKey)
				}
				f.Heal()
				f.Settled(agents...)
				stop()
				// It may hear only now of the rotation that stopped, and wait for its next step.
				f.Eventually(2*agenttest.RotationPause, func() string {
					_, faults, err := f.Rotate(agents[1], &control.RotateKeysRequest{Key: agenttest.OtherKey},
						nil)
					if err == nil {
						return ""
					}
					time.Sleep(5 * time.Second)
					return fmt.Sprintf("rotation with all: %v, %q", err, faults)
				})
				time.Sleep(statesExchanged)
				f.Settled(agents...)
				f.Holds(agents, agenttest.OtherKey)
			})
		})
	}
}

// TestRotateUnknown: the agent that is asked to change the key does not know one that the others
// know, because gossip with it was cut off when that one came. It changes nothing.
func TestRotateUnknown(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile)}
		f.Settled(agents...)
		f.Gossip.Partition([]netip.AddrPort{netip.MustParseAddrPort(agents[1].Host + ":7946")})
		unknown := f.Start(agenttest.WithKeyFile)
		f.Eventually(time.Second, func() string {
			if agents[0].Members().Member(names.AgentName(unknown.AgentName())) == nil {
				return "the one that is not cut off does not know it"
			}
			return ""
		})
		_, faults, err := f.Rotate(agents[1], &control.RotateKeysRequest{Key: agenttest.NewerKey}, nil)
		if status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(faults[string(unknown.AgentName())], string("known to "+agents[0].AgentName())) {
			t.Errorf("rotation without %s: %v, %q", unknown.AgentName(), err, faults)
		}
		agents = append(agents, unknown)
		f.Holds(agents, agenttest.OldKey)
		f.Heal()
		f.Settled(agents...)
		if _, faults, err := f.Rotate(agents[1], &control.RotateKeysRequest{Key: agenttest.NewerKey},
			nil); err != nil {
			t.Errorf("rotation with all: %v, %q", err, faults)
		}
		f.Holds(agents, agenttest.NewerKey)
	})
}

// TestRotateWithout leaves an agent behind that is not coming back.
func TestRotateWithout(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{
			f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile),
			f.Start(agenttest.WithKeyFile),
		}
		f.Settled(agents...)
		f.Kill(agents[2])
		time.Sleep(statesExchanged)
		_, faults, err := f.Rotate(agents[0],
			&control.RotateKeysRequest{Key: agenttest.NewerKey, Without: []string{string(agents[2].AgentName())}},
			nil)
		if err != nil || len(faults) != 1 {
			t.Errorf("rotation: %v, %q", err, faults)
		}
		f.Holds(agents[:2], agenttest.NewerKey)
	})
}

// TestRotateTwice has two rotations at the same time: at most one can go on, and
// whatever comes of them, all agents see each other.
func TestRotateTwice(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{
			f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile),
			f.Start(agenttest.WithKeyFile),
		}
		f.Settled(agents...)
		var errs [2]error
		var rotating sync.WaitGroup
		for i, key := range [][]byte{agenttest.NewerKey, agenttest.OtherKey} {
			rotating.Go(func() {
				_, _, errs[i] = f.Rotate(agents[i], &control.RotateKeysRequest{Key: key}, nil)
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
		f.Settled(agents...)
		if _, faults, err := f.Rotate(agents[2], &control.RotateKeysRequest{}, nil); err != nil {
			t.Errorf("rotation after two that met (%v, %v): %v, %q", errs[0], errs[1], err, faults)
		}
		f.Holds(agents, agents[0].Gossip().Keys()...)

		// One dies half way: another can begin, but not at once.
		req := func(step string, rotation uint64, key []byte) error {
			_, err := agents[0].Control.Keyring(f.Context(), &control.KeyringRequest{
				Step: step, Rotation: rotation, Key: key,
			})
			return err
		}
		err := errors.Join(req(agenttest.AddKey, 1, agenttest.OldKey), req(agenttest.UseKey, 1, agenttest.OldKey),
			req(agenttest.UseKey, 1, agents[1].Gossip().Keys()[0]))
		if err != nil {
			t.Error(err)
		}
		if err := req(agenttest.AddKey, 2, agenttest.NewerKey); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a rotation while another is under way: %v", err)
		}
		time.Sleep(agenttest.RotationPause)
		if err := errors.Join(req(agenttest.AddKey, 2, agenttest.NewerKey),
			req(agenttest.EndKeys, 2, nil)); err != nil {
			t.Error(err)
		}
		if err := req(agenttest.OnlyKey, 1, agents[1].Gossip().Keys()[0]); status.Code(
			err) != codes.FailedPrecondition {
			t.Errorf("a rotation that was overtaken goes on: %v", err)
		}
	})
}

// TestRotateRefused is rotations that would lose an agent, or cannot be.
func TestRotateRefused(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		inSettings := func(a agent.Inside) { a.Config().GossipKey = gossip.FormatKey(agenttest.OldKey) }
		a, b := f.Start(agenttest.WithKeyFile), f.Start(inSettings)
		f.Settled(a, b)
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
			if _, _, err := f.Rotate(a, tt.req, nil); status.Code(err) != tt.code ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.code, tt.want)
			}
			f.Holds([]*agenttest.Member{a, b}, agenttest.OldKey)
		}
		// The file of an agent cannot be written: its directory is gone.
		dir := filepath.Dir(a.Config().GossipKey)
		if err := os.Rename(dir, dir+"-away"); err != nil {
			t.Fatal(err)
		}
		_, faults, err := f.Rotate(b, &control.RotateKeysRequest{Key: agenttest.NewerKey}, nil)
		if status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(faults[string(a.AgentName())], "add: ") ||
			!strings.Contains(faults[string(a.AgentName())], "key file") {
			t.Errorf("rotation where a key cannot be kept: %v, %q", err, faults)
		}
		if err := os.Rename(dir+"-away", dir); err != nil {
			t.Fatal(err)
		}
		f.Holds([]*agenttest.Member{a}, agenttest.OldKey)
		if _, _, err := f.Rotate(b, &control.RotateKeysRequest{Key: agenttest.NewerKey}, nil); err != nil {
			t.Error(err)
		}
		f.Holds([]*agenttest.Member{a}, agenttest.NewerKey)
	})
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start()
		f.Settled(a)
		if _, _, err := f.Rotate(a, &control.RotateKeysRequest{},
			nil); status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "not encrypted") {
			t.Errorf("rotation without keys: %v", err)
		}
	})
}

// TestRotateAlone: an agent that does not see the fleet does not leave it behind.
func TestRotateAlone(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{
			f.Start(agenttest.WithKeyFile), f.Start(agenttest.WithKeyFile),
			f.Start(agenttest.WithKeyFile),
		}
		f.Settled(agents...)
		refused := func(a *agenttest.Member, expected uint32, words ...string) {
			f.Helper()
			made, _, err := f.Rotate(a,
				&control.RotateKeysRequest{Key: agenttest.NewerKey, Expected: expected}, nil)
			if status.Code(err) != codes.FailedPrecondition || len(made) > 0 {
				f.Errorf("rotation by %s: %v, made %q, want FailedPrecondition and none", a.Host,
					err, made)
			}
			for _, word := range append(words, string(a.AgentName()), "nothing has been changed") {
				if !strings.Contains(err.Error(), word) {
					f.Errorf("rotation by %s: %v, want %q in it", a.Host, err, word)
				}
			}
			f.Holds([]*agenttest.Member{a}, agenttest.OldKey)
		}
		refused(agents[0], 4, "3 agents", "expected 4", string(agents[2].AgentName()))

		// One starts anew where it reaches nobody, and so knows of nobody.
		file := agents[2].Config().GossipKey
		if err := agents[2].Stop(); err != nil {
			f.Fatal(err)
		}
		f.Settled(agents[:2]...)
		f.Partition(agents[:2])
		alone := f.StartOn("10.0.0.3", func(a agent.Inside) { a.Config().GossipKey = file })
		f.Settled(alone)
		refused(alone, 0, "no other agent", "10.0.0.1:7946", "--expect 1")
		refused(alone, 3, "1 agents", "expected 3")

		f.Heal()
		f.Settled(agents[0], agents[1], alone)
		if _, faults, err := f.Rotate(alone, &control.RotateKeysRequest{Key: agenttest.NewerKey, Expected: 3},
			nil); err != nil {
			f.Errorf("rotation by all: %v, %q", err, faults)
		}
		f.Holds([]*agenttest.Member{agents[0], agents[1], alone}, agenttest.NewerKey)
	})

	// One whose fleet it is alone, and one told that it is.
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start(agenttest.WithKeyFile, func(a agent.Inside) { a.Config().Join = []string{"10.0.0.1:7946"} })
		f.Settled(a)
		if _, _, err := f.Rotate(a, &control.RotateKeysRequest{Key: agenttest.NewerKey}, nil); err != nil {
			f.Errorf("rotation by an agent that is its only seed: %v", err)
		}
		f.Holds([]*agenttest.Member{a}, agenttest.NewerKey)
	})
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start(agenttest.WithKeyFile, func(a agent.Inside) { a.Config().Join = []string{"10.0.0.7:7946"} })
		f.Settled(a)
		if _, _, err := f.Rotate(a, &control.RotateKeysRequest{Key: agenttest.NewerKey, Expected: 1},
			nil); err != nil {
			f.Errorf("rotation by an agent that is said to be alone: %v", err)
		}
		f.Holds([]*agenttest.Member{a}, agenttest.NewerKey)
	})
}
