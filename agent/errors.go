package agent

import "github.com/muster-serve/muster/agent/outcome"

// classify is [outcome.Of], by the name that the half that leads has for it.
var classify = outcome.Of
