package storecmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"aead.dev/minisign"
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/models/store"
)

func newRevoke() *cobra.Command {
	var address, why, key string
	var signing SigningOptions
	cmd := &cobra.Command{
		Use:   "revoke MODEL@VERSION...",
		Short: "Take versions out of service in all fleets that follow a store",
		Long: `Take versions out of service: agents that follow the store unload them at their next
poll, within --model-store-poll, even if no other version can serve, and never fetch
them again. Where agents have --require-signature, a revocation must be
signed by a key that they trust (--sign).

--key revokes all versions in the store that a key has signed, by its number as
minisign prints it. First remove the key from the files of --require-signature; this
prevents new loads but unloads no version.

A revocation holds as long as its document, models/MODEL/revoked/VERSION.json, is in the store.`,
		Example: `  muster models revoke ncf@3 --store s3://acme-models/prod --sign release.key
  muster models revoke --key 7D2E5C1A9B04F3E6 --store s3://acme-models/prod --sign new.key`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && key == "" {
				return misuse.Errorf("nothing to revoke, want MODEL@VERSION or --key")
			}
			var wanted []store.Revocation
			for _, arg := range args {
				model, number, err := parseVersion(arg)
				if err != nil || number == 0 {
					return misuse.Errorf("%q, want MODEL@VERSION", arg)
				}
				wanted = append(wanted, store.Revocation{Model: model, Version: number})
			}
			s, err := Open(cmd.Context(), address)
			if err != nil {
				return err
			}
			defer s.Close()
			signer, err := signing.Signer(cmd)
			if err != nil {
				return err
			}
			if key != "" {
				more, err := signedBy(cmd, s, key)
				if err != nil {
					return err
				}
				wanted = append(wanted, more...)
			}
			for _, r := range wanted {
				r.Fleet, r.Why = signing.Fleet(address), control.Cut(why, control.MaxWhyBytes)
				r.Created, r.CreatedBy = time.Now(), Self()
				if err := s.Revoke(cmd.Context(), r, signer); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s version %d: revoked\n", r.Model, r.Version)
			}
			return nil
		},
	}
	AddFlag(cmd.Flags(), &address, "store of the versions")
	signing.Add(cmd.Flags(), "the revocation")
	cmd.Flags().StringVar(&key, "key", "",
		"revoke all versions that this key has signed, by its number in hexadecimal")
	cmd.Flags().StringVar(&why, "why", "", "reason, for people")
	return cmd
}

// signedBy returns revocations of all versions in the store that a key has signed.
func signedBy(cmd *cobra.Command, s *store.Store, key string) (all []store.Revocation, err error) {
	id, err := strconv.ParseUint(key, 16, 64)
	if err != nil {
		return nil,
			misuse.Errorf("key %q, want 16 hexadecimal digits, as minisign prints a key's number",
				key)
	}
	index, err := s.Index(cmd.Context())
	if err != nil {
		return nil, err
	}
	for name, entry := range index {
		for _, version := range entry.Signed {
			text, err := s.Signature(cmd.Context(), name, version)
			if err != nil {
				return nil, err
			}
			var signature minisign.Signature
			if signature.UnmarshalText(text) == nil && signature.KeyID == id {
				all = append(all, store.Revocation{Model: name, Version: version})
			}
		}
	}
	slices.SortFunc(all, func(a, b store.Revocation) int {
		if c := strings.Compare(a.Model, b.Model); c != 0 {
			return c
		}
		return int(min(max(a.Version-b.Version, -1), 1))
	})
	if len(all) == 0 {
		return nil, fmt.Errorf("key %s has signed no version in %s", strings.ToUpper(key), s)
	}
	return all, nil
}
