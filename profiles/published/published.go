// Package published embeds the measurements that the authors of KAIROS and RIBBON published with
// their papers, so that a clone or a binary alone can repeat what they show. README.md beside it
// says what each file holds and where it comes from; the LICENSE files (MIT) are the authors'.
package published

import (
	"embed"
	"fmt"
	"io/fs"

	"github.com/muster-serve/muster/profiles"
)

// Name stands for the published files where a command wants a file of its user's.
const Name = "published"

// Papers whose files are embedded.
const (
	KAIROS = "kairos"
	RIBBON = "ribbon"
)

//go:embed kairos ribbon
var files embed.FS

// Files are those of a paper, KAIROS or RIBBON; another one panics.
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

// Samples reads the latency samples of a paper, KAIROS or RIBBON, which takes some 100 ms.
func Samples(paper string) (*profiles.Samples, error) {
	f, err := Files(paper).Open("samples.csv.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return profiles.ReadSamples(Name+"/"+paper+"/samples.csv.gz", f)
}
