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

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
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

// rotationPause is how long an agent waits for the next step of a rotation before it accepts
// another rotation. Two rotations at once could each remove the key that the other has made some
// agents use. Chosen: three times the longest step, see keyringTimeout, and one that was broken off
// does not bar the next for long.
const rotationPause = 30 * time.Second

// A Keyring manages the gossip keys of this agent: those in use, and the file from which a
// restarted agent reads them. Its methods may be called concurrently.
type Keyring struct {
	members *Members
	gossip  *gossip.Gossip
	file    string // the key file's path; "" if the key itself is in the settings

	mu       sync.Mutex
	rotation uint64    // the id of the current rotation, or of the last one
	until    time.Time // when another rotation may begin
}

// NewKeyring returns the Keyring of an agent. file is the path of its key file; "" if the key
// itself is in the settings.
func NewKeyring(members *Members, file string) *Keyring {
	return &Keyring{members: members, gossip: members.config.Gossip, file: file}
}

// Step performs one step of a rotation on this agent, and returns the keys that it holds
// afterwards. It writes the key file before it changes a key. It returns an error that wraps
// outcome.ErrRotation, outcome.ErrInvalid or gossip.ErrNotEncrypted, and then has changed nothing
// or can be repeated.
func (k *Keyring) Step(req *control.KeyringRequest) (*control.AgentKeys, error) {
	keys, err := k.runRotationStep(req)
	if err != nil {
		return nil, err
	}
	keys.Members = names.Strings(k.members.Names())
	keys.Lost = names.Strings(k.members.lostAgents())
	return keys, nil
}

func (k *Keyring) runRotationStep(req *control.KeyringRequest) (*control.AgentKeys, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := k.gossip.Keys()
	if len(held) == 0 {
		return nil, gossip.ErrNotEncrypted
	}
	now := time.Now()
	switch req.Step {
	case listKeys:
		return k.listKeys(), nil
	case endKeys:
		if req.Rotation == k.rotation {
			k.until = now
		}
		return k.listKeys(), nil
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
	// The file is written first: an agent must not use a key that it would lose at a restart.
	if err := k.storeKeys(want); err != nil {
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
	return k.listKeys(), nil
}

// changedKeys returns the keys that an agent holds after a step with key, if it held the keys held
// before. The first of each is the one in use.
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

// listKeys lists the keys that the agent holds by their fingerprints. k.mu is held.
func (k *Keyring) listKeys() *control.AgentKeys {
	return &control.AgentKeys{
		Agent: string(k.members.Self()), Fingerprints: k.Fingerprints(), InFile: k.file != "",
	}
}

// Fingerprints returns the fingerprints of the keys that this agent holds, the key in use first.
func (k *Keyring) Fingerprints() []string {
	var prints []string
	for _, key := range k.gossip.Keys() {
		prints = append(prints, gossip.Fingerprint(key))
	}
	return prints
}

// storeKeys replaces the contents of the key file, if there is one, with keys.
func (k *Keyring) storeKeys(keys [][]byte) error {
	if k.file == "" {
		return nil
	}
	// A symbolic link stays; the file that it leads to is replaced.
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
	err = files.Replace(path, []byte(lines.String()), info.Mode().Perm())
	if err != nil {
		return fmt.Errorf(
			"%w: the agent must be able to write its key file and the directory it is in: %w",
			outcome.ErrRotation, err)
	}
	return nil
}
