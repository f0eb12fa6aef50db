package members

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/gossip"
)

// The steps of a rotation, as control.KeyringRequest names them.
const (
	listKeys = "list" // changes nothing
	addKey   = "add"
	useKey   = "use"
	onlyKey  = "only"
	endKeys  = "end" // changes nothing: another rotation may begin
)

// rotationPause is how long an agent waits for the next step of a rotation
// before it takes part in another one. Two at a time could each remove the key
// that the other has some agents use.
const rotationPause = 30 * time.Second

// A Keyring is the keys of this agent's gossip: those that it holds, and those
// that it will find when it starts anew. Its methods may be called
// concurrently.
type Keyring struct {
	members *Members
	gossip  *gossip.Gossip
	file    string // that the keys are kept in; "" if the key is in the settings

	mu       sync.Mutex
	rotation uint64    // the one that this agent takes part in, or did last
	until    time.Time // when another one may begin
}

// NewKeyring returns the keys of the agent that knows the members; file is where they are kept, ""
// if the key is in the settings.
func NewKeyring(members *Members, file string) *Keyring {
	return &Keyring{members: members, gossip: members.config.Gossip, file: file}
}

// Step takes a step of a rotation.
func (k *Keyring) Step(req *control.KeyringRequest) (*control.AgentKeys, error) {
	keys, err := k.step(req)
	if err != nil {
		return nil, err
	}
	keys.Members = names.Strings(k.members.Names())
	keys.Lost = names.Strings(k.members.lostAgents())
	return keys, nil
}

func (k *Keyring) step(req *control.KeyringRequest) (*control.AgentKeys, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := k.gossip.Keys()
	if len(held) == 0 {
		return nil, gossip.ErrNotEncrypted
	}
	now := time.Now()
	switch req.Step {
	case listKeys:
		return k.describe(), nil
	case endKeys:
		if req.Rotation == k.rotation {
			k.until = now
		}
		return k.describe(), nil
	case addKey:
		if req.Rotation != k.rotation && now.Before(k.until) {
			return nil, fmt.Errorf("%w: another rotation is under way, or stopped less than %v ago",
				outcome.ErrRotation, rotationPause)
		}
		k.rotation = req.Rotation
	}
	if req.Rotation != k.rotation {
		return nil, fmt.Errorf("%w: this rotation has been overtaken by another",
			outcome.ErrRotation)
	}
	want, err := changedKeys(held, req.Step, req.Key)
	if err != nil {
		return nil, err
	}
	// The file goes first: what cannot be kept must not be relied on.
	if err := k.keep(want); err != nil {
		return nil, err
	}
	switch req.Step {
	case addKey:
		err = k.gossip.AddKey(req.Key)
	case useKey:
		err = k.gossip.UseKey(req.Key)
	case onlyKey:
		for _, key := range held[1:] {
			err = errors.Join(err, k.gossip.RemoveKey(key))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", outcome.ErrRotation, err)
	}
	k.until = now.Add(rotationPause)
	if req.Step == onlyKey {
		k.until = now
	}
	return k.describe(), nil
}

// changedKeys are the keys of an agent that held some, the first in use, after
// a step with key.
func changedKeys(held [][]byte, step string, key []byte) ([][]byte, error) {
	if len(key) != gossip.KeySize {
		return nil, fmt.Errorf("%w: gossip key has %d bytes, want %d", outcome.ErrInvalid, len(key),
			gossip.KeySize)
	}
	same := func(k []byte) bool { return bytes.Equal(k, key) }
	has := slices.ContainsFunc(held, same)
	switch {
	case step == addKey && has:
		return held, nil
	case step == addKey:
		return append(slices.Clip(held), key), nil
	case step == useKey && has:
		return append([][]byte{key}, slices.DeleteFunc(slices.Clone(held), same)...), nil
	case step == onlyKey && same(held[0]):
		return held[:1], nil
	case step == useKey, step == onlyKey:
		return nil, fmt.Errorf("%w: %q of key %s, while this agent uses %s", outcome.ErrRotation,
			step, gossip.Fingerprint(key), gossip.Fingerprint(held[0]))
	}
	return nil, fmt.Errorf("%w: step %q", outcome.ErrInvalid, step)
}

// describe is what the agent holds. k.mu is held.
func (k *Keyring) describe() *control.AgentKeys {
	return &control.AgentKeys{
		Agent: string(k.members.Self()), Fingerprints: k.Fingerprints(), InFile: k.file != "",
	}
}

// Fingerprints are those of the keys that this agent holds, the one in use first.
func (k *Keyring) Fingerprints() []string {
	var prints []string
	for _, key := range k.gossip.Keys() {
		prints = append(prints, gossip.Fingerprint(key))
	}
	return prints
}

// keep writes the keys to the file, if there is one, all or nothing.
func (k *Keyring) keep(keys [][]byte) error {
	if k.file == "" {
		return nil
	}
	// What the name leads to is replaced, not a link to it.
	path, err := filepath.EvalSymlinks(k.file)
	if err != nil {
		return fmt.Errorf("%w: key file: %w", outcome.ErrRotation, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: key file: %w", outcome.ErrRotation, err)
	}
	var lines strings.Builder
	for _, key := range keys {
		lines.WriteString(gossip.FormatKey(key) + "\n")
	}
	dir := filepath.Dir(path)
	// with the file's mode
	err = renameio.WriteFile(path, []byte(lines.String()), info.Mode().Perm(),
		renameio.WithTempDir(dir))
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf(
			"%w: the agent must be able to write its key file and the directory it is in: %w",
			outcome.ErrRotation, err)
	}
	return nil
}

// syncDir makes what a directory has durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
