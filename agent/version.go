package agent

import "runtime/debug"

// Version is the version of this binary, as Go's build information has it: a
// tag, or a pseudo-version of the commit.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
