package agent

import "runtime/debug"

// Version is the version of this binary in Go's build information: a tag, a pseudo-version of the
// commit, or "devel" for a build without either.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
