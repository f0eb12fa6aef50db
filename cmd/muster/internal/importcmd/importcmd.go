// Package importcmd is the part of `muster models` for model files that others have written: check
// and add.
package importcmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// Commands are `muster models check` and `add`.
func Commands() []*cobra.Command { return []*cobra.Command{newCheck(), newAdd()} }

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE|DIR...",
		Short: "Say how models would be served, and what keeps others from it",
		Long: `Say how models would be served: in batches or not, with which inputs and outputs,
which operators look rows of embedding tables up, and what is left out or read in
another way, each with the reason. A directory is a repository, or the folder of a
model or of a version. No model is loaded.

The status is 1 if one of them cannot be served, with what to do.`,
		Example: `  muster models check model.onnx
  muster models check model-repository`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			checked, failed := 0, 0
			for _, path := range args {
				all, err := findVersions(path)
				if err != nil {
					return err
				}
				for _, f := range all {
					if checked++; f.err != nil {
						failed++
					}
					printVersion(cmd.OutOrStdout(), f)
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d models cannot be served", failed, checked)
			}
			return nil
		},
	}
}

// A foundVersion is a version, or the reason why it cannot be served.
type foundVersion struct {
	name    string
	version *models.Version
	err     error
}

// findVersions returns what is at a path: a model file, or the versions below a folder.
func findVersions(path string) (all []foundVersion, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if file := filepath.Join(path, models.ModelFile); info.IsDir() && isThere(file) {
		path = file
	} else if info.IsDir() {
		return findFolders(path)
	}
	v, err := models.FileVersion(path)
	return []foundVersion{{path, v, err}}, nil
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// findFolders returns the versions in a repository, or in a model's folder.
func findFolders(dir string) (all []foundVersion, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	only := ""
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && n > 0 {
			dir, only = filepath.Split(dir)
			break
		}
	}
	repository, err := models.Open[io.Closer](dir, nil, models.Options{})
	if err != nil {
		return nil, err
	}
	for _, s := range repository.Index() {
		f := foundVersion{name: s.Model}
		switch {
		case only != "" && s.Model != only:
			continue
		case s.Version == 0:
			f.err = errors.New(s.Reason)
		default:
			f.name = fmt.Sprintf("%s version %d", s.Model, s.Version)
			f.version, f.err = models.ReadVersion(dir, s.Model, s.Version)
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no model", dir)
	}
	return all, nil
}

// printVersion prints how a version would be served.
func printVersion(w io.Writer, f foundVersion) {
	name := terminal.Plain(f.name)
	if f.err != nil {
		fmt.Fprintf(w, "%s: cannot be served\n  %s\n", name,
			strings.ReplaceAll(terminal.PlainLines(f.err.Error()), "\n", "\n  "))
		return
	}
	v := f.version
	fmt.Fprintf(w, "%s: can be served\n  batches: %s\n", name, v.Batches())
	printPorts(w, "input", v.Inputs)
	printPorts(w, "output", v.Outputs)
	switch kernels, err := runtime.DescribeKernels(v.Path); {
	case err != nil:
		fmt.Fprintf(w, "  kernels: not known: %s\n", terminal.Plain(err.Error()))
	case kernels != "":
		fmt.Fprintf(w, "  kernels: %s\n", terminal.Plain(kernels))
	}
	if whose := v.DescribeRoles(); whose != "" {
		fmt.Fprintf(w, "  note: %s\n", terminal.Plain(whose))
	}
	for _, note := range v.Config.Notes {
		fmt.Fprintf(w, "  note: %s\n", terminal.Plain(note))
	}
}

func printPorts(w io.Writer, role string, ports []models.TensorSpec) {
	for i := range ports {
		p := &ports[i]
		text := fmt.Sprintf("%s %v", p.DataType, p.Shape)
		if p.Shape == nil {
			text = fmt.Sprintf("%s of any shape", p.DataType)
		}
		if p.Optional {
			text += ", may be left out"
		}
		if p.Role != "" {
			text += fmt.Sprintf(", role %s", p.Role)
		}
		if b := p.Bounds(); len(b) > 0 {
			text += fmt.Sprintf(", ids below %v", b)
		}
		if len(p.Labels) > 0 {
			text += fmt.Sprintf(", columns %.100q", p.Labels)
		}
		fmt.Fprintf(w, "  %s %s: %s\n", role, terminal.Plain(p.Name), terminal.Plain(text))
	}
}

func newAdd() *cobra.Command {
	var dir, name string
	cmd := &cobra.Command{
		Use:   "add FILE",
		Short: "Put a model file into a repository",
		Long: `Put a copy of an ONNX file, with its external data, into a repository, as the next
version of the model. Agents that serve the repository load it.`,
		Example: `  muster models add exported.onnx --name clicks`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				name = strings.TrimSuffix(filepath.Base(args[0]), filepath.Ext(args[0]))
			}
			if name == "model" && !cmd.Flags().Changed("name") {
				return misuse.Errorf("name: %s does not say what the model is; give --name",
					args[0])
			}
			number, err := models.AddFile(dir, name, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s version %d: added to %s\n", name, number, dir)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "out", agent.DefaultConfig().ModelDir, "repository to add the model to")
	flags.StringVar(&name, "name", "", "name of the model (default that of the file)")
	return cmd
}
