package lateness

import (
	"fmt"
	"time"
)

// A text is what people read of a cause.
type text struct {
	short    string // "vm-2 lacks CPU", with %s for the agent
	nobody   string // the same where no agent is known, or none matters
	evidence string // what was measured, with %s for the mean time that it took; "": nothing was
	remedy   string // with %s for the agent
}

// texts is the table of the sentences.
var texts = map[Cause]text{
	Lane: {
		nobody:   "waited for a lane",
		evidence: "all lanes were busy: the queries waited %s for one",
		remedy: "more arrives than the lanes can serve in time: add agents (`muster plan live` says " +
			"which), let clients send less, or let smaller variants answer",
	},
	CPU: {
		short: "%s lacks CPU", nobody: "an agent lacks CPU",
		evidence: "its process was ready to run and did not for %s: other processes had the CPUs",
		remedy: "stop what else runs on the machine of %s (`top`), or give it CPUs of its own; " +
			"`muster drain` takes it out of the fleet meanwhile",
	},
	Throttled: {
		short: "%s is throttled by its quota", nobody: "an agent is throttled by its quota",
		evidence: "its control group had used up its CPU time: the kernel stopped it for %s",
		remedy: "raise the CPU quota of %s (cpu.max, or limits.cpu of its container), or set --lanes " +
			"and --cores to what the quota allows",
	},
	Paging: {
		short:    "%s reads model data from disk",
		nobody:   "an agent reads model data from disk",
		evidence: "runs waited %s while pages of mapped files were read",
		remedy: "give %s more memory, or --model-data memory; let nothing beside it fill or drop the " +
			"page cache",
	},
	GPU: {
		short: "the card of %s is slowed or fails", nobody: "a card is slowed or fails",
		evidence: "runs took %s longer while the card reported it",
		remedy:   "look at the card of %s with `muster status` and nvidia-smi: heat, power, Xid errors",
	},
	Run: {
		short: "runs on %s are longer than their profile", nobody: "runs are longer than their profile",
		evidence: "they took %s longer, and the process lacked neither CPU nor memory",
		remedy: "look whether the machine of %s is shared (hypervisor, memory bandwidth, clocks), and " +
			"whether its inputs have changed; `muster profile` measures anew",
	},
	Target: {
		nobody:   "the target is shorter than a run",
		evidence: "the runs took %s, as their profile says",
		remedy: "raise qos_target_ms, lower largest_batch_size, let queries be split " +
			"(rows_independent), or add a faster type",
	},
	Way: {
		short: "the way to %s is slow", nobody: "the network is slow",
		evidence: "%s passed between the processes",
		remedy: "look at the network to %s: delay and loss (`ping`), proxies in between, or another " +
			"region",
	},
	Client: {
		nobody:   "arrived late: clients stood still, or were slow to send",
		evidence: "%s had passed at the client before the query was sent, or while its answer waited",
		remedy: "look at the clients: CPU, garbage collection, too few connections; without " +
			"that they were in time",
	},
	Limit: {
		nobody: "refused by a client's limit",
		remedy: "the client sends more than it may: raise its limits (queries, bytes) or let it send " +
			"less; `muster_refusals_total` and the agents' logs name it",
	},
	Memory: {
		short: "%s has no room for more queries", nobody: "an agent has no room for more queries",
		remedy: "raise --max-waiting-bytes of %s, or send smaller batches; clients that do not read " +
			"their answers hold bytes, too",
	},
	Rights: {
		nobody: "refused: the client may not do that",
		remedy: "give the client the right to query the model (docs/security.md), or correct its key",
	},
	Cold: {
		short: "%s still loads the model", nobody: "the model is not loaded yet",
		remedy: "wait for the load (`muster models list` shows it), or load models before they are " +
			"asked for; `--load-timeout` ends a load that hangs",
	},
	Cancelled: {
		nobody: "given up by clients",
		remedy: "clients go away before the target has passed: look at their timeouts",
	},
	Host: {
		short: "%s was lost, or takes no queries", nobody: "no agent could take it",
		evidence: "attempts that failed took %s",
		remedy: "look at `muster status` and `muster events --fleet`: agents that are gone, drain, or " +
			"cannot be reached",
	},
	Takeover: {
		nobody:   "there was no leader",
		evidence: "%s passed until there was a leader that decided, or none was waited for",
		remedy: "nothing, if it was once: `muster events --fleet` says why the leader changed; if it " +
			"goes on, see \"There is no leader\" in docs/troubleshooting.md",
	},
	Invalid: {
		nobody: "the query is wrong",
		remedy: "correct the client: the error that it gets says what was found and expected",
	},
	Internal: {
		nobody: "failed internally",
		remedy: "look at the agents' logs, and report the fault",
	},
	Several: {
		nobody: "several causes together, none enough alone",
		remedy: "take away the causes that are also named, the largest first",
	},
	Unknown: {
		short:    "not known: %s is of a version that does not measure",
		nobody:   "not known: an agent is of a version that does not measure",
		evidence: "%s passed there",
		remedy:   "upgrade the agents (`muster status` shows their versions)",
	},
}

// Short says the cause in a few words: "vm-2 lacks CPU". agent is the agent's name, "" if it is not
// known.
func (c Cause) Short(agent string) string {
	t, known := texts[c]
	switch {
	case !known:
		return string(c)
	case agent == "" || t.short == "":
		return t.nobody
	}
	return fmt.Sprintf(t.short, agent)
}

// Evidence says what was measured; "" if nothing was. mean is how long the cause took of a query.
func (c Cause) Evidence(mean time.Duration) string {
	t := texts[c]
	if t.evidence == "" || mean <= 0 {
		return ""
	}
	return fmt.Sprintf(t.evidence, roundMs(mean))
}

// Remedy says what to do. agent is the agent's name, "" if it is not known.
func (c Cause) Remedy(agent string) string {
	t := texts[c]
	if agent == "" {
		agent = "the agent"
	}
	if countVerbs(t.remedy) == 0 {
		return t.remedy
	}
	return fmt.Sprintf(t.remedy, agent)
}

func countVerbs(s string) (n int) {
	for i := range len(s) - 1 {
		if s[i] == '%' && s[i+1] == 's' {
			n++
		}
	}
	return n
}

// roundMs formats a time for people.
func roundMs(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
