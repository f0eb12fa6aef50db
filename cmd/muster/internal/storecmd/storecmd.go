// Package storecmd is the part of `muster models` that speaks to model stores: push, pull, and list
// with --store.
package storecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/remote"
)

// Commands are `muster models push`, `pull` and `revoke`.
func Commands() []*cobra.Command { return []*cobra.Command{newPush(), newPull(), newRevoke()} }

// A SigningOptions says with which key documents are signed, and for which fleet.
type SigningOptions struct {
	Key   string // the file of the private key; "": they are not
	fleet string
}

// Add adds --sign and --fleet-name to flags. what is signed.
func (s *SigningOptions) Add(flags *pflag.FlagSet, what string) {
	flags.StringVar(&s.Key, "sign", "",
		"`file` of a minisign private key, which signs "+what)
	flags.StringVar(&s.fleet, "fleet-name", "",
		"name of the fleets that the signature is for, their agents' --fleet-name (default: the "+
			"URL of --store, without parameters)")
}

// Fleet is the name of the fleets that follow the store at an address.
func (s *SigningOptions) Fleet(address string) string {
	return cmp.Or(s.fleet, store.FleetName(address))
}

// Signer reads the key, for which it may ask for a password; nil if none is named.
func (s *SigningOptions) Signer(cmd *cobra.Command) (*store.Signer, error) {
	if s.Key == "" {
		return nil, nil
	}
	signer, err := store.ReadSigner(s.Key, func() (string, error) {
		return askPassword(cmd.ErrOrStderr(), s.Key)
	})
	if err != nil {
		return nil, misuse.Errorf("sign: %w", err)
	}
	return signer, nil
}

// AddFlag adds --store to flags.
func AddFlag(flags *pflag.FlagSet, address *string, usage string) {
	flags.StringVar(address, "store", "", usage+": a URL with one of the schemes "+
		strings.Join(remote.Schemes(), ", ")+", such as s3://bucket/prefix")
}

// Open opens the store that --store names.
func Open(ctx context.Context, address string) (*store.Store, error) {
	if address == "" {
		return nil, misuse.Errorf("store: empty, want the URL of a model store, such as " +
			"s3://bucket/prefix or file:///srv/models")
	}
	if err := remote.Check(address); err != nil {
		return nil, misuse.Errorf("store: %w", err)
	}
	s, err := remote.Open(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return s, nil
}

// Self is who runs the program, as "user@host".
func Self() string {
	host, _ := os.Hostname() // "" if it has none
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return name + "@" + host
}

func newPush() *cobra.Command {
	var address, dir string
	var signing SigningOptions
	var version int64
	cmd := &cobra.Command{
		Use:   "push MODEL|FOLDER...",
		Short: "Put models into a store, for agents with --model-store",
		Long: `Put the newest version of models, or the one that --version names, into a store. An
argument is the path of a model's folder, or the name of a model in --dir.

A version never changes: pushing other files as a version that the store has is an
error, and pushing the same again does nothing. Versions with the same file share
it. A push that was cut off goes on when it is repeated.`,
		Example: `  muster models push ncf --store s3://acme-models/prod
  muster models push ./train/out/ncf --version 4 --store file:///srv/models --sign release.key`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := Open(cmd.Context(), address)
			if err != nil {
				return err
			}
			defer s.Close()
			options := store.PushOptions{By: Self()}
			signer, err := signing.Signer(cmd)
			if err != nil {
				return err
			}
			if signer != nil {
				options.Sign = signer.Sign
			}
			for _, arg := range args {
				if err := push(cmd, s, folderOf(dir, arg), version, options); err != nil {
					return err
				}
			}
			return nil
		},
	}
	AddFlag(cmd.Flags(), &address, "store to put the models into")
	cmd.Flags().StringVar(&dir, "dir", agent.DefaultConfig().ModelDir, "directory of the models")
	cmd.Flags().Int64Var(&version, "version", 0, "version to push; 0 means the newest")
	cmd.Flags().StringVar(&signing.Key, "sign", "",
		"file of a minisign private key, which signs the version's manifest")
	return cmd
}

// folderOf returns the folder that an argument of push names.
func folderOf(dir, arg string) string {
	if strings.ContainsRune(arg, filepath.Separator) {
		return filepath.Clean(arg)
	}
	return filepath.Join(dir, arg)
}

func push(cmd *cobra.Command, s *store.Store, folder string, version int64,
	options store.PushOptions) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	dir, name := filepath.Split(folder)
	v, err := models.ReadNewest(dir, name)
	if version != 0 {
		v, err = models.ReadVersion(dir, name, version)
	}
	if err != nil {
		return fmt.Errorf("push %s: %w", folder, err)
	}
	options.Progress = terminal.NewProgress(cmd.ErrOrStderr(), v.String())
	pushed, err := s.Push(cmd.Context(), folder, v.Number, options)
	if err != nil {
		return err
	}
	m := pushed.Manifest
	said := fmt.Sprintf("%s: pushed, %d files, %d bytes", v, len(m.Files), m.Bytes())
	if shared := m.Bytes() - pushed.Sent; pushed.New && shared > 0 {
		said += fmt.Sprintf(", of which %d were there", shared)
	}
	if !pushed.New {
		said = fmt.Sprintf("%s: already in the store, with the same files, pushed %s by %s", v,
			m.Created.Format(time.RFC3339), terminal.Plain(m.CreatedBy))
	}
	if pushed.Signed {
		said += "; signed"
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
	return err
}

func askPassword(w io.Writer, key string) (string, error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return "", fmt.Errorf("%s is encrypted, and there is no terminal to ask for its password",
			key)
	}
	fmt.Fprintf(w, "password of %s: ", key)
	word, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(w)
	return string(word), err
}

func newPull() *cobra.Command {
	var address, dir, keys, fleet string
	cmd := &cobra.Command{
		Use:   "pull MODEL[@VERSION]...",
		Short: "Fetch models from a store into a model directory",
		Long: `Fetch versions of models from a store into a model directory: by default the
newest. Each file is checked by its SHA-256. The
files are in the hidden folder .store there, to which the model's folder is a link.
A pull that was cut off goes on when it is repeated.`,
		Example: `  muster models pull ncf --store s3://acme-models/prod --dir ./model-repository
  muster models pull ncf@3 --store file:///srv/models --require-signature release.pub`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if _, _, err := parseVersion(arg); err != nil {
					return err
				}
			}
			s, err := Open(cmd.Context(), address)
			if err != nil {
				return err
			}
			defer s.Close()
			p := &puller{
				Fetcher: store.Fetcher{Store: s}, dir: dir, fleet: cmp.Or(fleet,
					store.FleetName(address)),
			}
			if keys != "" {
				if p.Keys, err = store.ReadKeys(keys); err != nil {
					return misuse.Errorf("require-signature: %w", err)
				}
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if p.Cache, err = store.OpenCache(dir, 0); err != nil {
				return err
			}
			defer p.Cache.Close()
			for _, arg := range args {
				if err := p.pullModel(cmd, arg); err != nil {
					return err
				}
			}
			return nil
		},
	}
	AddFlag(cmd.Flags(), &address, "store to fetch the models from")
	cmd.Flags().StringVar(&dir, "dir", agent.DefaultConfig().ModelDir,
		"directory to put the models into")
	cmd.Flags().StringVar(&keys, "require-signature", "",
		"file of minisign public keys, one of which must have signed each version")
	cmd.Flags().StringVar(&fleet, "fleet-name", "",
		"name of the fleets for which revocations must be signed (default: the URL of --store, "+
			"without parameters)")
	return cmd
}

// parseVersion parses MODEL or MODEL@VERSION. The number is 0 if there is none.
func parseVersion(arg string) (model string, number int64, err error) {
	model, digits, given := strings.Cut(arg, "@")
	if given {
		if number, err = strconv.ParseInt(digits, 10, 64); err != nil || number < 1 {
			return "", 0, misuse.Errorf("%q, want MODEL or MODEL@VERSION", arg)
		}
	}
	return model, number, nil
}

// A puller fetches versions into a model directory.
type puller struct {
	store.Fetcher
	dir, fleet string
}

// chooseVersion returns a version that is not revoked: number or, if that is 0, the newest.
func (p *puller) chooseVersion(ctx context.Context, name string, number int64) (int64, error) {
	entry, err := p.Store.Entry(ctx, name)
	if err != nil {
		return 0, err
	}
	for _, n := range slices.Backward(entry.Versions) {
		if number != 0 && n != number {
			continue
		}
		if !slices.Contains(entry.Revoked, n) {
			return n, nil
		}
		r, err := p.Store.Revoked(ctx, name, n, p.Keys, p.fleet)
		switch {
		case err == nil && number != 0:
			return 0, fmt.Errorf("%s version %d is revoked in %s, by %s: %s", name, n, p.Store,
				terminal.Plain(r.CreatedBy), terminal.Plain(r.Why))
		// it does not count
		case errors.Is(err, store.ErrSignature), errors.Is(err, store.ErrInvalid):
			return n, nil
		case err != nil:
			return 0, err
		}
	}
	if number != 0 {
		return number, nil // which is not there
	}
	return 0, fmt.Errorf("all versions of %s in %s are revoked", name, p.Store)
}

func (p *puller) pullModel(cmd *cobra.Command, arg string) error {
	ctx, f, dir := cmd.Context(), &p.Fetcher, p.dir
	name, number, err := parseVersion(arg)
	if err != nil {
		return err
	}
	if number, err = p.chooseVersion(ctx, name, number); err != nil {
		return err
	}
	m, err := f.Store.Trusted(ctx, name, number, f.Keys)
	if err != nil {
		return err
	}
	all := []*store.Manifest{m}
	for _, held := range f.Cache.Held()[name] {
		if held.Version != number {
			all = append(all, held)
		}
	}
	changed, err := f.Ensure(ctx, name, all, terminal.NewProgress(cmd.ErrOrStderr(), m.String()))
	if err != nil {
		return err
	}
	state := "pulled"
	if !changed {
		state = "there already"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s, %d bytes\n", m, state, dir, m.Bytes())
	return err
}

// A listedVersion is one version of a model in a store.
type listedVersion struct {
	Model     string    `json:"model"`
	Version   int64     `json:"version"`
	Bytes     int64     `json:"bytes"`
	Files     int       `json:"files"`
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
	Signed    bool      `json:"signed"`
	Revoked   bool      `json:"revoked"` // there is a revocation, which may not count
	// Problem is why the version cannot be read.
	Problem string `json:"problem,omitempty"`
}

// List prints what the store at an address has.
func List(cmd *cobra.Command, address string, asJSON bool) error {
	s, err := Open(cmd.Context(), address)
	if err != nil {
		return err
	}
	defer s.Close()
	list, err := list(cmd.Context(), s)
	if err != nil {
		return err
	}
	if asJSON {
		return terminal.PrintJSON(cmd.OutOrStdout(), list)
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MODEL\tVERSION\tBYTES\tCREATED\tBY\tSIGNED")
	for _, l := range list {
		if l.Problem != "" {
			fmt.Fprintf(table, "%s\t%d\tBROKEN: %s\n", l.Model, l.Version,
				terminal.Plain(l.Problem))
			continue
		}
		isSigned := "no"
		if l.Signed {
			isSigned = "yes"
		}
		if l.Revoked {
			isSigned += ", revoked"
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\n", l.Model, l.Version, l.Bytes,
			l.Created.Format("2006-01-02 15:04"), terminal.Plain(l.CreatedBy), isSigned)
	}
	return table.Flush()
}

// readers is how many manifests are read at a time.
const readers = 16

func list(ctx context.Context, s *store.Store) ([]listedVersion, error) {
	index, err := s.Index(ctx)
	if err != nil {
		return nil, err
	}
	all := []listedVersion{}
	for name, entry := range index {
		for _, version := range entry.Versions {
			all = append(all, listedVersion{
				Model: name, Version: version, Signed: slices.Contains(entry.Signed, version),
				Revoked: slices.Contains(entry.Revoked, version),
			})
		}
	}
	slices.SortFunc(all, func(a, b listedVersion) int {
		if c := strings.Compare(a.Model, b.Model); c != 0 {
			return c
		}
		return int(min(max(a.Version-b.Version, -1), 1))
	})
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for i := range all {
		group.Go(func() error {
			l := &all[i]
			m, _, err := s.Manifest(ctx, l.Model, l.Version)
			if err != nil {
				l.Problem = err.Error()
				return ctx.Err()
			}
			l.Bytes, l.Files, l.Created, l.CreatedBy = m.Bytes(), len(
				m.Files), m.Created, m.CreatedBy
			return nil
		})
	}
	return all, group.Wait()
}
