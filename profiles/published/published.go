// Package published embeds the measurements that the authors of KAIROS and RIBBON published with
// their papers, so that the binary can reproduce the papers' figures without other files. README.md
// in this folder describes each file and its source. The LICENSE files (MIT) are the authors'.
package published

import (
	"embed"
	"fmt"
	"io/fs"

	"github.com/muster-serve/muster/profiles"
)

// Name is what a user gives to a command, in place of a file, to use the published files.
const Name = "published"

// Papers whose files are embedded.
const (
	KAIROS = "kairos"
	RIBBON = "ribbon"
)

//go:embed kairos ribbon
var files embed.FS

// Files returns the published files of a paper, KAIROS or RIBBON. It panics for another name.
func Files(paper string) fs.FS {
	if paper != KAIROS && paper != RIBBON {
		panic(fmt.Sprintf("published: nothing of paper %q is embedded", paper))
	}
	sub, err := fs.Sub(files, paper)
	if err != nil {
		panic(err) // the names are valid
	}
	return sub
}

// Samples reads the latency samples of a paper, KAIROS or RIBBON. It takes some 100 ms.
func Samples(paper string) (*profiles.Samples, error) {
	f, err := Files(paper).Open("samples.csv.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return profiles.ReadSamples(Name+"/"+paper+"/samples.csv.gz", f)
}
