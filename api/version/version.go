// Package version says which version of Muster a program is.
package version

import (
	"regexp"
	"runtime/debug"
)

// next is the version that the code becomes when somebody tags it.
const next = "0.1.0"

// pseudoVersion is what Go makes of a commit without a tag: a time and the first twelve digits of
// the commit, with "+dirty" if files have changed since.
var pseudoVersion = regexp.MustCompile(`^v\d+\.\d+\.\d+-(?:[\w.]+\.)?\d{14}-([0-9a-f]{12})(\+dirty)?$`)

// Current is the version of this binary, as https://semver.org has it: the tag that it was built
// from without its "v", such as "0.1.0", else "0.1.0-dev+" and the commit, or "0.1.0-dev" for a
// build that does not know its commit.
func Current() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return versionOf("")
	}
	return versionOf(info.Main.Version)
}

// versionOf is Current for the version that Go's build information has.
func versionOf(built string) string {
	if built == "" || built == "(devel)" {
		return next + "-dev"
	}
	if m := pseudoVersion.FindStringSubmatch(built); m != nil {
		if m[2] != "" {
			return next + "-dev+" + m[1] + ".dirty"
		}
		return next + "-dev+" + m[1]
	}
	return built[1:]
}
