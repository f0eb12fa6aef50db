package secure

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// shortestKey is the least length of an API key, in characters.
const shortestKey = 16

// Keys are the API keys of clients. A key is looked up by a keyed SHA-256 of its SHA-256, with a
// secret of this process, so that the time of a look-up reveals nothing about other keys. Keys
// never change, so they may be used concurrently.
type Keys struct {
	secret  [sha256.Size]byte
	clients map[digest]string
	digests map[string][]digest // by client
}

// A digest is the SHA-256 of an API key.
type digest [sha256.Size]byte

// digestOf returns the digest of an API key.
func digestOf(key string) digest { return sha256.Sum256([]byte(key)) }

func (k *Keys) indexOf(key digest) digest {
	return sha256.Sum256(append(k.secret[:], key[:]...))
}

type apiKey struct {
	client string
	digest digest
}

// ParseKeys reads the keys of clients, one a line:
//
//	ads: 3f0c9f...                  the key as it is
//	feed: sha256:9f86d0...          or its SHA-256 in hexadecimal
//
// A client may have several, to change from one to the next. Empty lines and
// those that begin with # are passed over. path is for errors, which never
// show a key; all faults are reported at once.
func ParseKeys(path string, data []byte) (*Keys, error) {
	k := &Keys{clients: map[digest]string{}, digests: map[string][]digest{}}
	_, _ = rand.Read(k.secret[:]) // never fails
	var faults []error
	first := map[digest]int{} // the first line of each digest
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		key, err := parseKey(text)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s:%d: %w", path, number, err))
			continue
		case first[key.digest] != 0:
			faults = append(faults,
				fmt.Errorf("%s:%d: the key of %q is that of line %d too", path, number, key.client,
					first[key.digest]))
			continue
		}
		first[key.digest] = number
		k.clients[k.indexOf(key.digest)] = key.client
		k.digests[key.client] = append(k.digests[key.client], key.digest)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return k, nil
}

func parseKey(line string) (apiKey, error) {
	name, secret, ok := strings.Cut(line, ":")
	if !ok {
		return apiKey{}, errors.New("want a line of `name: key`")
	}
	key := apiKey{client: strings.TrimSpace(name)}
	if err := checkName(key.client); err != nil {
		return apiKey{}, err
	}
	secret = strings.TrimSpace(secret)
	if digits, hashed := strings.CutPrefix(secret, "sha256:"); hashed {
		decoded, err := hex.DecodeString(digits)
		if err != nil || len(decoded) != sha256.Size {
			return apiKey{}, fmt.Errorf(
				"the SHA-256 of the key of %q has %d characters, want %d hexadecimal digits",
				key.client, len(digits), 2*sha256.Size)
		}
		copy(key.digest[:], decoded)
		return key, nil
	}
	if len(secret) < shortestKey {
		return apiKey{}, fmt.Errorf(
			"the key of %q has %d characters, want %d or more; `openssl rand -hex 32` makes a "+
				"good one", key.client, len(secret), shortestKey)
	}
	if err := checkKey(secret); err != nil {
		return apiKey{}, fmt.Errorf("the key of %q: %w", key.client, err)
	}
	key.digest = sha256.Sum256([]byte(secret))
	return key, nil
}

// checkKey returns an error for a key that a header cannot carry.
func checkKey(secret string) error {
	for _, c := range []byte(secret) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("has the character %q, want visible ASCII", c)
		}
	}
	return nil
}

// ownerOf returns the name of the key's client; ok is false for an unknown key.
func (k *Keys) ownerOf(key digest) (name string, ok bool) {
	name, ok = k.clients[k.indexOf(key)]
	return name, ok
}

// longestName is the longest name of a client, in bytes.
const longestName = 128

// checkName returns an error for a name that would be unclear in a file or a log.
func checkName(name string) error {
	if name == "" || len(name) > longestName {
		return fmt.Errorf("name of %d characters, want 1 to %d", len(name), longestName)
	}
	for _, c := range []byte(name) {
		if c == ':' {
			return fmt.Errorf("name %q has a colon, want none: it ends the name", name)
		}
	}
	return checkClientName(name)
}

// checkClientName returns an error for a name of a certificate or token that would be unclear in a
// file or a log. It may have colons, as the IDs of SPIFFE have.
func checkClientName(name string) error {
	if name == "" || len(name) > longestClientName {
		return fmt.Errorf("name of %d characters, want 1 to %d", len(name), longestClientName)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || strings.IndexByte(`*"#,`, c) >= 0 {
			return fmt.Errorf(
				"name %q has the character %q, want visible ASCII without *, \", # and comma", name, c)
		}
	}
	return nil
}

// longestClientName is the longest name of a certificate's or token's owner, in bytes: IDs of
// SPIFFE and of service accounts are long.
const longestClientName = 256
