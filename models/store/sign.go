package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"aead.dev/minisign"

	"github.com/muster-serve/muster/api/files"
)

// signatureEnd is what the key of a manifest's signature has behind that of the manifest.
const signatureEnd = ".minisig"

// ErrSignature means that a version, a release or a revocation is not signed as it must be. Errors
// wrap it.
var ErrSignature = errors.New("store: not signed by a trusted key")

// Keys are the public keys that may sign versions; nil: versions need no signature.
type Keys []minisign.PublicKey

// ReadKeys reads a file of public keys in minisign's format, of which there may be several, one
// after the other.
func ReadKeys(path string) (Keys, error) {
	data, err := files.Read(path, files.MaxDocumentBytes)
	if err != nil {
		return nil, err
	}
	var keys Keys
	for n, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") ||
			strings.HasPrefix(line, "untrusted comment:") {
			continue
		}
		var key minisign.PublicKey
		if err := key.UnmarshalText([]byte(line)); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w; expected a public key of minisign", path, n+1,
				err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: no public key, expected one as minisign -G writes it", path)
	}
	return keys, nil
}

// Verify returns nil if one of the keys has signed the document.
func (k Keys) Verify(document, signature []byte) error {
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return fmt.Errorf("the signature cannot be read: %w", err)
	}
	var known []string
	for _, key := range k {
		if key.ID() == s.KeyID {
			if minisign.Verify(key, document, signature) {
				return nil
			}
			return fmt.Errorf("the signature of key %X does not fit the document", s.KeyID)
		}
		known = append(known, fmt.Sprintf("%X", key.ID()))
	}
	return fmt.Errorf("key %X has signed it, trusted is %s", s.KeyID, strings.Join(known, ", "))
}

// FleetName is the name of the fleets that follow the store at a URL, unless they are given another:
// the URL without its parameters, which may differ from machine to machine. Signed documents say for
// which fleet they are, so that one for another store cannot be copied to this one.
func FleetName(address string) string {
	address, _, _ = strings.Cut(address, "?")
	return strings.TrimRight(address, "/")
}

// A Signer signs documents.
type Signer struct {
	// Sign returns the signature of a document.
	Sign func(document []byte) ([]byte, error)
	// Key has the public key that belongs to it.
	Key Keys
}

// ReadSigner reads a private key in minisign's format. password is asked for if the key is encrypted.
func ReadSigner(path string, password func() (string, error)) (*Signer, error) {
	data, err := files.Read(path, files.MaxDocumentBytes)
	if err != nil {
		return nil, err
	}
	var key minisign.PrivateKey
	if minisign.IsEncrypted(data) {
		word, err := password()
		if err != nil {
			return nil, err
		}
		if key, err = minisign.DecryptKey(word, data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	} else if err := key.UnmarshalText(bytes.TrimSpace(data)); err != nil {
		return nil, fmt.Errorf("%s: %w; expected a private key of minisign", path, err)
	}
	public, ok := key.Public().(minisign.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%s: it has no public key", path)
	}
	return &Signer{Key: Keys{public}, Sign: func(document []byte) ([]byte, error) {
		// A Reader signs the document's hash, as minisign does by default.
		r := minisign.NewReader(bytes.NewReader(document))
		if _, err := io.Copy(io.Discard, r); err != nil {
			return nil, err
		}
		return r.Sign(key), nil
	}}, nil
}
