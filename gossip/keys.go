package gossip

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// ErrNotEncrypted is the error of changing keys while gossip is not encrypted. Encryption can only
// be turned on when all agents start.
var ErrNotEncrypted = errors.New("gossip: not encrypted")

// NewKey returns a new random key.
func NewKey() []byte {
	key := make([]byte, KeySize)
	rand.Read(key)
	return key
}

// FormatKey returns a key in the form that [ParseKey] reads.
func FormatKey(key []byte) string { return base64.StdEncoding.EncodeToString(key) }

// ParseKey parses a key: 32 bytes in base64. The error does not contain the text.
func ParseKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != KeySize {
		return nil, fmt.Errorf("want %d bytes in base64", KeySize)
	}
	return key, nil
}

// Fingerprint identifies a random key without revealing it: 16 hexadecimal digits of its SHA-256.
func Fingerprint(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// Keys returns copies of this agent's keys, first the one that encrypts; none without encryption.
// To change the key of a running fleet, add the new one on every agent, then use it on every agent,
// then remove the old one from every agent.
func (g *Gossip) Keys() [][]byte {
	if g.keyring == nil {
		return nil
	}
	var keys [][]byte
	for _, key := range g.keyring.GetKeys() {
		keys = append(keys, slices.Clone(key))
	}
	return keys
}

// AddKey makes this agent accept messages encrypted with key, of KeySize bytes. Adding a key again
// does nothing.
func (g *Gossip) AddKey(key []byte) error {
	if g.keyring == nil {
		return ErrNotEncrypted
	}
	if len(key) != KeySize {
		return fmt.Errorf("gossip: key has %d bytes, want %d", len(key), KeySize)
	}
	g.keyMu.Lock()
	defer g.keyMu.Unlock()
	return g.keyring.AddKey(slices.Clone(key))
}

// UseKey makes this agent encrypt with key, which must have been added before.
func (g *Gossip) UseKey(key []byte) error {
	if g.keyring == nil {
		return ErrNotEncrypted
	}
	g.keyMu.Lock()
	defer g.keyMu.Unlock()
	if !g.hasKey(key) {
		return errors.New("gossip: use of a key that was not added")
	}
	return g.keyring.UseKey(slices.Clone(key))
}

// RemoveKey makes this agent reject messages encrypted with key, which must not be the one in use.
// Removing an unknown key does nothing.
func (g *Gossip) RemoveKey(key []byte) error {
	if g.keyring == nil {
		return ErrNotEncrypted
	}
	g.keyMu.Lock()
	defer g.keyMu.Unlock()
	keys := g.keyring.GetKeys()
	if bytes.Equal(keys[0], key) {
		return errors.New("gossip: removal of the key in use")
	}
	if !g.hasKey(key) {
		return nil
	}
	// The keyring removes a key by moving the keys after it, in an array that memberlist may be
	// reading. Nothing moves if the key is the last one. UseKey moves a key to the front, so use
	// all other keys, and the one in use last. With two keys nothing moves.
	for i := len(keys) - 1; i >= 0; i-- {
		if last := g.keyring.GetKeys(); bytes.Equal(last[len(last)-1], key) {
			break
		}
		if !bytes.Equal(keys[i], key) {
			if err := g.keyring.UseKey(keys[i]); err != nil {
				return err
			}
		}
	}
	if err := g.keyring.UseKey(keys[0]); err != nil {
		return err
	}
	return g.keyring.RemoveKey(key)
}

func (g *Gossip) hasKey(key []byte) bool {
	return slices.ContainsFunc(g.keyring.GetKeys(),
		func(k []byte) bool { return bytes.Equal(k, key) })
}
