package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Revocation takes a version out of service, in all fleets that follow a store. It holds as long
// as its document is in the store.
type Revocation struct {
	Format int `json:"format"`
	// Fleet is the name of the fleets that the revocation is for; "" in one that is not signed.
	Fleet   string    `json:"fleet,omitempty"`
	Model   string    `json:"model"`
	Version int64     `json:"version"`
	Why     string    `json:"why,omitempty"`
	Created time.Time `json:"created"`
	// CreatedBy is who revoked the version, as "user@host"; it proves nothing.
	CreatedBy string `json:"created_by"`
}

func revocationKey(model string, version int64) string {
	return fmt.Sprintf("models/%s/revoked/%d.json", model, version)
}

// Revoke writes a revocation, and its signature if signer is not nil. A version that is revoked
// already stays so; a signature that its revocation lacks cannot be added, because it would be of
// another document: the error then wraps ErrExists.
func (s *Store) Revoke(ctx context.Context, r Revocation, signer *Signer) error {
	if err := CheckName(r.Model); err != nil {
		return err
	}
	r.Format, r.Created = format, r.Created.UTC().Truncate(time.Second)
	if signer == nil {
		r.Fleet = ""
	}
	key, document := revocationKey(r.Model, r.Version), write(r)
	var signature []byte
	if signer != nil {
		var err error
		if signature, err = signer.Sign(document); err != nil {
			return fmt.Errorf("sign %s: %w", key, err)
		}
	}
	err := s.createObject(ctx, key, document)
	if err == nil && signature != nil {
		err = s.createObject(ctx, key+signatureEnd, signature)
	}
	if errors.Is(err, ErrExists) {
		var keys Keys
		if signer != nil {
			keys = signer.Key
		}
		if _, found := s.Revoked(ctx, r.Model, r.Version, keys, r.Fleet); found != nil {
			return fmt.Errorf("%w: %s in %s, and it does not count: %w; remove it, and its signature", err,
				key, s.name, found)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke %s version %d in %s: %w", r.Model, r.Version, s.name, err)
	}
	return nil
}

// Revoked reads the revocation of a version. If keys is not nil, one of them must have signed it,
// for the fleet. The error wraps ErrNotFound if there is none, and ErrSignature or ErrInvalid if it
// does not count.
func (s *Store) Revoked(ctx context.Context, model string, version int64, keys Keys, fleet string) (
	*Revocation, error) {
	if err := CheckName(model); err != nil {
		return nil, err
	}
	key := revocationKey(model, version)
	what := fmt.Sprintf("revocation of %s version %d in %s", model, version, s.name)
	document, err := s.read(ctx, key, maxRelease)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if keys != nil {
		signature, err := s.read(ctx, key+signatureEnd, maxRelease)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if err == nil {
			err = keys.Verify(document, signature)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", what, ErrSignature, err)
		}
	}
	r := &Revocation{}
	err = parse(document, r)
	switch {
	case err != nil:
	case r.Format != format:
		err = fmt.Errorf("format is %d, this program reads %d", r.Format, format)
	case r.Model != model || r.Version != version:
		err = fmt.Errorf("it is of %.80q version %d", r.Model, r.Version)
	case keys != nil && r.Fleet != fleet:
		return nil, fmt.Errorf("%s: %w: it is for the fleet %.255q, this one is %q (--fleet-name)",
			what,
			ErrSignature, r.Fleet, fleet)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", what, ErrInvalid, err)
	}
	return r, nil
}
