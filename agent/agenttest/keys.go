package agenttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
)

var (
	OldKey   = bytes.Repeat([]byte{1}, gossip.KeySize)
	NewerKey = bytes.Repeat([]byte{2}, gossip.KeySize)
	OtherKey = bytes.Repeat([]byte{3}, gossip.KeySize)
)

// The steps of a rotation, as control.KeyringRequest names them.
const AddKey, UseKey, OnlyKey, EndKeys = "add", "use", "only", "end"

// RotationPause is how long an agent waits for the next step of a rotation before it takes part in
// another one.
const RotationPause = 30 * time.Second

// WithKeyFile gives an agent a key file of its own with the old key.
func WithKeyFile(a agent.Inside) {
	a.Config().GossipKey = filepath.Join(a.Config().StateDir, "gossip.key")
	if err := os.WriteFile(a.Config().GossipKey, []byte(gossip.FormatKey(OldKey)+"\n"),
		0o640); err != nil {
		panic(err)
	}
}

// Rotate changes the key by a, and returns the steps that each agent made, and
// those that it did not, with the fault. each, if not nil, is called after each progress.
func (f *Fleet) Rotate(a *Member, req *control.RotateKeysRequest,
	each func(*control.KeysProgress)) (made, faults map[string]string, err error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 5*time.Minute)
	defer cancel()
	stream, err := a.Control.RotateKeys(ctx, req)
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

// Holds checks which keys the agents hold, and that they would find the same
// after a restart.
func (f *Fleet) Holds(agents []*Member, want ...[]byte) {
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

// QueryAll sends queries to the agents, one at a time each, until stop is called. The
// test fails if one is not answered.
func (f *Fleet) QueryAll(agents []*Member) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	var querying sync.WaitGroup
	for _, a := range agents {
		querying.Go(func() {
			for ctx.Err() == nil {
				for what, n := range f.Send(1, 50*time.Millisecond, a) {
					f.Errorf("%d queries by %s: %s", n, a.AgentName(), what)
				}
			}
		})
	}
	return func() { cancel(); querying.Wait() }
}
