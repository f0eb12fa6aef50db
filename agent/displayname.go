package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-serve/muster/api/files"
)

// longestDisplayName bounds a display name, in bytes: names stand in columns of tables.
const longestDisplayName = 64

var errDisplayName = errors.New("want at most 64 bytes of printable text, without spaces")

// validateDisplayName returns why people could not tell or type a name; nil if they can.
func validateDisplayName(name string) error {
	unfit := func(r rune) bool { return r <= ' ' || r == '"' || r == ',' || r > '~' }
	if len(name) > longestDisplayName || strings.ContainsFunc(name, unfit) {
		return errDisplayName
	}
	return nil
}

// chooseDisplayName sets the name by which people know this agent: that of the settings, else the
// one that the state directory keeps, else the host's. It is kept there, so that it outlives a
// change of the host's name. Unlike the agent's name it stays the same when the agent starts anew,
// and two agents may have the same one.
func (a *Agent) chooseDisplayName() {
	file := filepath.Join(a.config.StateDir, "name")
	text, _ := os.ReadFile(file) // without the file the host's name serves
	kept := strings.TrimSpace(string(text))
	a.display = a.config.Name
	if a.display == "" && validateDisplayName(kept) == nil {
		a.display = kept
	}
	if a.display == "" {
		a.display = hostName()
	}
	if a.display == kept {
		return
	}
	if err := files.Replace(file, []byte(a.display+"\n"), 0o644); err != nil {
		a.log.Debug("cannot keep the agent's display name", "file", file, "error", err)
	}
}
