//go:build pages

// With the build tag pages this program only writes man pages (DIR/man1) and shell completions
// (DIR/completions) for the packages. They are generated from the commands. Released binaries do
// not hold this file. The pages are dated by the month of SOURCE_DATE_EPOCH.
//
//	go run -tags pages ./cmd/muster DIR

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra/doc"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "pages: want one argument, the directory to write into")
		os.Exit(2)
	}
	if err := writePages(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

// writePages writes man pages and completions below dir, which it makes if needed.
func writePages(dir string) error {
	man, completions := filepath.Join(dir, "man1"), filepath.Join(dir, "completions")
	for _, folder := range []string{man, completions} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	root := newRoot()
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	header := &doc.GenManHeader{Section: "1", Source: "Muster", Manual: "Muster"}
	return errors.Join(
		doc.GenManTree(root, header, man),
		root.GenBashCompletionFileV2(filepath.Join(completions, "muster"), true),
		root.GenZshCompletionFile(filepath.Join(completions, "_muster")),
		root.GenFishCompletionFile(filepath.Join(completions, "muster.fish"), true),
	)
}
