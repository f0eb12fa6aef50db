package control

// sentences are what people read of events, in the log, in `muster events` and on the dashboard, by
// the event's kind and its fixed words, [Event.What]. {key} is the value of a detail, {agent@} the
// agent that saw the event, {who@} the client that asked, with its address. {key:form} writes a
// value for people, as [Event.writeAs] does: {lanes:count lane} is "1 lane" or "2 lanes". [...] is
// left out if a detail in it is absent, empty or 0; [key=value?...|...] is its first half if the
// detail has this value, else its second. An error that has no place in its sentence follows at the
// end.
var sentences = map[string]map[string]string{
	"started": {
		"muster agent": "{agent@} started: version {version}, HTTP at {http}, gRPC at {grpc}",
	},
	"ready":    {"ready": "{agent@} is ready[may_lead=false?, and never leads]"},
	"draining": {"draining": "{agent@} drains for at most {timeout_ms:ms}: {why}"},
	"drained":  {"drained": "{agent@} has drained in {took_ms:ms}"},
	"notice": {
		"this rented machine has found no fleet: draining": "{agent@} found no fleet at {join} in " +
			"{after_s:s}: this rented machine drains",
		"the CPU quota of this agent changed": "{agent@} may use {usable:count core} now, and its " +
			"lanes have {cores:count core}: {reason}",
		"the provider advises to leave this machine": "the provider advises {agent@} to leave its " +
			"machine: {reason}",
		"the provider has taken its notice back": "the provider lets {agent@} keep its machine",
		"the provider takes this machine back": "the provider takes the machine of {agent@} back " +
			"in {in_ms:ms}: {reason}",
	},
	"gpu": {
		"the GPU is slowed":         "GPU {gpu} of {agent@} is slowed[ ({reasons:list})] at {celsius} °C",
		"the GPU is slowed no more": "GPU {gpu} of {agent@} is no longer slowed[ ({reasons:list})]",
		"the driver tells of a fault of the GPU, which goes on": "GPU {gpu} of {agent@} had a " +
			"fault (Xid {xid}) and still works",
		"the GPU's memory has errors that were not corrected": "the memory of GPU {gpu} of " +
			"{agent@} has {new:count new uncorrected error}, {all} in all",
		"this agent leaves: its GPU has failed": "{agent@} leaves: its GPU {gpu} has failed: {error}",
	},
	"joined": {"agent joined": "{agent} joined the fleet at {address}"},
	"left":   {"agent left": "{agent} left the fleet"},
	"failed": {
		"agent failed: it is not heard any more": "{agent} at {address} failed: it no longer answers",
	},
	"replaced": {"agent started anew": "{agent} at {address} replaces {former}"},
	"silent": {
		"agent gossips but does not say what it serves; it gets no queries until it does, asking " +
			"again": "{agent} at {address} does not describe itself and gets no queries: {error}",
		"agent does not tell its events": "{agent@} does not report its events: {error}",
	},
	"answers": {"agent answers": "{agent} at {address} describes itself again"},
	"leader": {
		"leading the fleet":  "{agent@} leads the fleet in epoch {epoch}",
		"leading no more":    "{agent@} stopped leading the fleet in epoch {epoch}",
		"following a leader": "{agent@} follows {leader}, the leader of epoch {epoch}",
		"there is no leader": "the fleet has no leader[ after {former} of epoch {epoch}]: {why}",
		"cannot lead: keep the epoch, trying again": "{agent@} cannot lead: it cannot store epoch " +
			"{epoch} and tries again: {error}",
		"this agent serves but cannot lead: it cannot write its state directory; make the " +
			"directory writable and restart the agent": "{agent@} serves but cannot lead: it cannot " +
			"write its state directory {state_dir}; make it writable and restart the agent: {error}",
	},
	"loaded":   {"model ready": "{model}: version {version} was loaded in {took_ms:ms}"},
	"unloaded": {"model serves no more": "{model}: version {version} no longer serves[: {why}]"},
	"slow": {
		"model is still being loaded; others no longer wait for it": "{model}: version {version} " +
			"still loads after {after:duration}; other loads no longer wait for it",
		"load does not end when cancelled; it keeps a thread and its memory until it does": "{model}" +
			": the cancelled load of version {version} does not end and keeps its memory: {reason}",
		"what reads the model store does not end when told to: does a file system " +
			"not answer? It is left behind": "the reader of the model store does not end: " +
			"its file system may not answer",
	},
	"broken": {
		"cannot read the model directory; what is loaded goes on serving": "the model directory " +
			"cannot be read; loaded models keep serving: {error}",
		"model cannot be served": "{model} cannot be served: {reason}",
		"model has more versions than are followed; the newest are": "{model} has too many versions" +
			": the newest {followed} count, {passed_over} do not",
		"model not loaded": "{model}: version {version} could not be loaded" +
			"[older_load_serves=true?; its earlier load keeps serving]: {error}",
		"a release holds in this fleet only: the model store cannot be written": "{model}: the " +
			"release could not be written to the model store and holds in this fleet only: {error}",
		"a release that is not valid is left out": "an invalid release from {from} is ignored: {error}",
		"the model store is not followed; what is here serves on": "{model}: the model store cannot " +
			"be followed; loaded versions keep serving: {error}",
	},
	"returned": {
		"the model directory can be read again": "the model directory can be read again",
		"model can be served again":             "{model} can be served again",
		"the model store is followed again":     "{model}: the model store is followed again",
	},
	"lane": {
		"lanes are lost": "{agent} lost {lanes:count lane}[: {why}]",
		"lane does not answer, it gets no queries until it does": "lane {lane} of {agent} does not " +
			"answer {overdue_ms:ms} after it was due; it holds {holds:count query} and gets no more",
		"lane answers again": "lane {lane} of {agent} answers again",
		"an agent departs from its type": "{agent} takes {factor:number} times as long as its " +
			"instance type[own_profile=true? and has its own profile now]",
	},
	"target": {
		"a model can meet its QoS target again": "{model}: version {version} can meet its QoS " +
			"target again",
		"a model cannot meet its QoS target": "{model}: version {version} cannot meet its QoS " +
			"target for {share_of_queries:percent} of its queries: {why}",
	},
	"demand": {
		"demand has changed": "{model}: demand of version {version} changed ({kind}) from {before} " +
			"to {now}[: {plan}]",
	},
	"placement": {
		"placement":                     "{what}",
		"asked to pause the placement":  "{who@} asked to pause the placement",
		"asked to resume the placement": "{who@} asked to resume the placement",
		"asked to pin the placement":    "{who@} asked to pin {agent} to layout {layout}",
		"asked to unpin the placement":  "{who@} asked to unpin {agent}",
		"asked to rollback the placement": "{who@} asked to roll the placement back" +
			"[ to version {version}]",
		"asked to explain the placement": "{who@} asked to explain the placement",
		"asked to do something unknown with the placement": "{who@} asked for an unknown change of " +
			"the placement",
	},
	"release": {
		"asked to promote a version": "{who@} asked to release version {version} of {model}" +
			"[ to {share:percent} of its queries]",
		"asked to roll a model back": "{who@} asked to roll {model} back",
		"release":                    "{model}: {what:release}[, by {by}]",
	},
	"layout": {
		"bringing this agent to a layout":    "{agent@} changes to layout {layout} (version {version})",
		"this agent holds its layout":        "{agent@} holds layout {layout}",
		"this agent cannot reach its layout": "{agent@} cannot reach its layout: {why}",
		"lanes have moved":                   "lanes of {agent@} moved from {from} to {to}",
	},
	"lanes": {
		"lanes of an agent are to move": "lanes of {agent} are to move from {from} to {to}: {why}",
	},
	"families": {
		"a model is not served as its model.yaml says": "{model} is not served as its model.yaml " +
			"says: {why}",
	},
	"store": {
		"a model that is not from the store is loaded: nobody has signed it": "{model}: version " +
			"{version} is loaded unsigned, because it is not from the model store",
		"a version is revoked, and unloaded": "{model}: version {version} was revoked and unloaded",
		"a model of the store is no longer wanted here": "{model} of the model store is no longer " +
			"needed here",
		"a model is as the store has it": "{model}: the model store's versions are here " +
			"after {took_ms:ms}: {versions:list}",
	},
	"fleet": {
		"asked to change the fleet": "{who@} asked to change the fleet" +
			"[ (version {version})][: {why}]",
		"the fleet.yaml of before stays in force":   "the earlier fleet.yaml stays in force: {error}",
		"nothing can be rented":                     "nothing can be rented: {error}",
		"the provider does not do what it is asked": "the provider failed: {error}",
		"a price has changed": "the price of {kind} changed from {before:usd}/hr" +
			" to {now:usd}/hr",
		"an instance is gone": "{what}",
		"renting":             "a machine is being rented for {slot}: {why}",
		"rented": "instance {instance} was rented for {slot}" +
			"[ in {zone}]",
		"the provider refuses: nothing is rented for a while": "the provider refuses to rent " +
			"{slot}; nothing is rented for a while: {error}",
		"returning":                "instance {instance} of {agent} drains before it is returned: {why}",
		"returned":                 "instance {instance} was returned: {why}",
		"the agent does not drain": "{agent} on instance {instance} does not drain: {error}",
		"the fleet is to be another": "the fleet is to be {desired} (version {version})[: {why}]" +
			"[, by {by}]",
		"another fleet is proposed": "fleet {fleet} is proposed at {price:usd}/hr[: {why}]" +
			"[; it waits: {waits}]",
		"another load of the fleet counts as safe": "the fleet is planned to be loaded to " +
			"{share:percent} of what it is expected to serve[: {why}]",
	},
	"load": {"asked to load a model": "{who@} asked to load {model}[on=all? on all agents| on {on}]"},
	"unload": {
		"asked to unload a model": "{who@} asked to unload {model}[on=all? on all agents| on {on}]",
	},
	"drain": {
		"asked to drain":                    "{who@} asked {agent@} to drain",
		"asked to have another agent drain": "{who@} asked {agent} to drain",
	},
	"keys": {
		"gossip keys not changed": "{who@} asked for step {step} of a key rotation, which failed: " +
			"{error}",
		"gossip keys changed": "{who@} changed the gossip keys: key {in_use} encrypts, " +
			"{held} are held",
		"rotating the gossip key": "{who@} rotates the gossip key to {key}",
		"rotation of the gossip key stopped": "{who@} rotated the gossip key to {key}, which " +
			"stopped: {error}",
		"gossip key rotated": "{who@} rotated the gossip key to {key}",
	},
	"refused": {
		"calls and connections refused": "[refused=1?a call or connection was|" +
			"{refused} calls and connections were] refused[: {reasons}]",
	},
	"files": {
		"connections ended: their certificates are revoked": "connections of {of} were closed: " +
			"their certificates are revoked",
		"calls ended: their clients may make them no more": "calls of {of} were ended: these " +
			"clients may no longer make them",
		"the own certificate is amiss":     "the certificate {file} is not usable: {error}",
		"a revocation list is out of date": "the revocation list {file} is out of date: {error}",
		"files have changed and cannot be used; what they said before stays in force": "the changed " +
			"{what} cannot be used; the earlier ones stay in force: {error}",
		"files read again":                        "{what} were read again from {files}",
		"fetched the keys of an issuer of tokens": "the keys of the issuer {issuer} were fetched: {keys}",
		"cannot fetch the keys of an issuer of tokens; those fetched before stay in force": "the keys " +
			"of the issuer {issuer} cannot be fetched; the earlier ones stay in force: {error}",
		"the issuers of tokens in the access file cannot be used; those before stay in force": "the " +
			"issuers of tokens in the access file cannot be used; the earlier ones stay in force: {error}",
	},
}
