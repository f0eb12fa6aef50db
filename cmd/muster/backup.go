package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/models/dirlock"
)

// keptFiles are the files of a state directory that a backup has. The others are of one process or
// one machine, or can be had again.
var keptFiles = []string{
	"epoch", "profiles.json", "releases.json", "layout", "placement.json", "desired.json", "name",
}

const (
	// epochMargin is added to an epoch that is restored, because the agent has claimed others since
	// the backup and must claim none twice. Chosen: no fleet elects so many leaders.
	epochMargin = 1_000_000
	// maxKeptBytes bounds a file of a backup. Chosen: the largest, profiles.json, has some MB.
	maxKeptBytes = 1 << 30
	// backupFolder is the folder in the archive.
	backupFolder = "muster-state"
)

func newBackupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "backup", Short: "Back up and restore an agent's state directory"}
	cmd.AddCommand(newBackupCreateCommand(), newBackupRestoreCommand())
	return cmd
}

func newBackupCreateCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "create FILE",
		Short: "Write what matters of a state directory to an archive",
		Long: `Write what matters of an agent's state directory to an archive, also while the agent
runs: its epoch, learned profiles, releases, layout, placement, what is to be rented and
its name. Models and keys are not in it. Its owner alone may read the archive.`,
		Example: `  muster backup create state.tar.gz --state-dir /var/lib/muster/state`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var kept []bundledFile
			for _, name := range keptFiles {
				text, err := os.ReadFile(filepath.Join(dir, name))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return fmt.Errorf("back up: %w", err)
				}
				kept = append(kept, bundledFile{name, text})
			}
			if len(kept) == 0 {
				return fmt.Errorf("back up: %s has none of %s", dir, strings.Join(keptFiles, ", "))
			}
			err := files.ReplaceBy(args[0], 0o600, func(w io.Writer) error {
				return writeArchive(w, backupFolder, kept)
			})
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files of %s\n", args[0], len(kept), dir)
			}
			return err
		},
	}
	addStateDir(cmd, &dir)
	return cmd
}

func newBackupRestoreCommand() *cobra.Command {
	var dir string
	var replace bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup into a state directory whose agent does not run",
		Long: `Put a backup into a state directory whose agent does not run. The agent's epoch is
restored ` + fmt.Sprint(epochMargin) + ` higher: it must claim none that it has claimed since the backup.`,
		Example: `  muster backup restore state.tar.gz --state-dir /var/lib/muster/state`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kept, err := readBackup(args[0])
			if err != nil {
				return fmt.Errorf("restore %s: %w", args[0], err)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			lock, err := dirlock.Lock(filepath.Join(dir, "lock"))
			if err != nil {
				return fmt.Errorf("restore: an agent runs in %s, stop it first: %w", dir, err)
			}
			defer lock.Close()
			for _, f := range kept {
				_, err := os.Stat(filepath.Join(dir, f.name))
				if err == nil && !replace {
					return misuse.Errorf("restore: %s has %s already; --replace replaces it", dir,
						f.name)
				}
			}
			for _, f := range kept {
				if err := files.Replace(filepath.Join(dir, f.name), f.text, 0o644); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, f.name))
			}
			return nil
		},
	}
	addStateDir(cmd, &dir)
	cmd.Flags().BoolVar(&replace, "replace", false, "replace files that are there")
	return cmd
}

func addStateDir(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "state-dir", agent.DefaultConfig().StateDir,
		"the agent's state directory")
}

// readBackup returns the files of a backup, with the epoch to restore. It takes no others, so that a
// forged archive writes nothing else.
func readBackup(file string) (kept []bundledFile, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("it is no backup: %w", err)
	}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("it is no backup: %w", err)
		}
		name := path.Base(header.Name)
		if header.Name != backupFolder+"/"+name || !slices.Contains(keptFiles, name) ||
			header.Size > maxKeptBytes {
			return nil, fmt.Errorf("it has %.80q, which no backup has", header.Name)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		if name == "epoch" {
			epoch, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 62)
			if err != nil {
				return nil, fmt.Errorf("its epoch is %.80q, want a number", text)
			}
			text = fmt.Appendf(nil, "%d\n", epoch+epochMargin)
		}
		kept = append(kept, bundledFile{name, text})
	}
	if len(kept) == 0 {
		return nil, errors.New("it has no files")
	}
	return kept, nil
}
