package lateness

// A Cause is why queries are late, refused or failed. Causes are values of a metric's label.
type Cause string

// The causes.
const (
	Lane      Cause = "lane"      // it waited for a lane, or was refused because it would have
	CPU       Cause = "cpu"       // an agent lacks CPU time: other processes take it
	Throttled Cause = "throttled" // an agent has used its quota of CPU time
	Paging    Cause = "paging"    // a model's data were read from disk
	GPU       Cause = "gpu"       // a card is slowed, or fails
	Run       Cause = "run"       // runs take longer than the profile, and nobody knows why
	Target    Cause = "target"    // the target is shorter than a run
	Way       Cause = "way"       // the network
	Client    Cause = "client"    // clients sent it late, or stood still
	Limit     Cause = "limit"     // its client is beyond its limits
	Memory    Cause = "memory"    // an agent holds as many bytes as it may
	Rights    Cause = "rights"    // its client may not make it
	Cold      Cause = "cold"      // its model is not loaded yet
	Cancelled Cause = "cancelled" // its client went away
	Host      Cause = "host"      // no agent could serve it, or the one that was to is lost
	Takeover  Cause = "takeover"  // there was no leader, or another one took over
	Invalid   Cause = "invalid"   // the query is wrong
	Internal  Cause = "internal"  // a fault of Muster, or of the model
	Several   Cause = "several"   // none of the components alone
	Unknown   Cause = "unknown"   // an agent that took part does not measure
)

// All lists the causes, in the order in which equals are shown.
var All = []Cause{
	Lane, CPU, Throttled, Paging, GPU, Run, Target, Way, Client, Limit, Memory, Rights, Cold,
	Cancelled, Host, Takeover, Invalid, Internal, Several, Unknown,
}

// IsOfAgent reports whether the cause is some agent's doing, so that its name says more.
func (c Cause) IsOfAgent() bool {
	switch c {
	case CPU, Throttled, Paging, GPU, Run, Way, Cold, Host, Memory, Unknown:
		return true
	}
	return false
}

// Known reports whether c is a cause of this version.
func (c Cause) Known() bool {
	_, known := texts[c]
	return known
}

// ofReasons are the causes of failures by reason, as docs/metrics.md lists reasons. Those that are
// not here depend on where the query's time went.
var ofReasons = map[string]Cause{
	"limit": Limit, "not_ready": Cold, "not_found": Invalid, "cancelled": Cancelled,
	"draining": Host, "unavailable": Host, "refused": Host, "gpu": GPU, "invalid": Invalid,
	"too_large": Invalid, "slow": Client, "internal": Internal, "load": Cold,
	"overloaded": Lane, "late": Lane,
}

// OfReason is the cause of a query that failed for a reason; "" if the reason does not say it: its
// time was over, and its Record says where that went.
func OfReason(reason string) Cause {
	if reason == "deadline" {
		return ""
	}
	if c, ok := ofReasons[reason]; ok {
		return c
	}
	return Internal
}

// CauseOfFailure is the cause of a query that failed for a reason and has the record r, which may
// be nil. A query whose time was over, or that was refused because it would be late, has the cause
// that its components say, if they are of a late query.
func CauseOfFailure(reason string, r *Record) Cause {
	c := OfReason(reason)
	if r == nil {
		if c == "" {
			return Unknown
		}
		return c
	}
	if c == "" || c == Lane {
		of := *r
		of.Failed = ""
		if by := of.Cause(); by != "" {
			return by
		}
	}
	if c == "" {
		return Several
	}
	return c
}
