package scaling

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// The batching of Proteus's artifact, rule by rule, for rivals only. Queries are not dropped when
// they are late, but when they have waited for twice their target; a run takes as long as a run of
// the size for which it was planned; and a lane whose agent gets another variant goes on with the
// queries that it has.
const (
	// ArtifactProteus waits until the most urgent query would be late.
	ArtifactProteus names.MergePolicy = "artifact-proteus"
	// ArtifactAIMD waits for a run of a size that grows step by step, and shrinks after a late one.
	ArtifactAIMD names.MergePolicy = "artifact-aimd"
	// ArtifactNexus waits for the largest run, or until the oldest query has to start.
	ArtifactNexus names.MergePolicy = "artifact-nexus"
	// ArtifactINFaaS waits for a run of the size that its placement says.
	ArtifactINFaaS names.MergePolicy = "artifact-infaas"
	// ArtifactSommelier is ArtifactProteus that never drops a query for its age.
	ArtifactSommelier names.MergePolicy = "artifact-sommelier"
	// ArtifactSingle runs each query alone.
	ArtifactSingle names.MergePolicy = "artifact-single"
)

var artifactPolicies = []names.MergePolicy{
	ArtifactProteus, ArtifactAIMD, ArtifactNexus, ArtifactINFaaS, ArtifactSommelier, ArtifactSingle,
}

// A routed system has a queue at each lane.
type routed struct {
	*run
	lanes []*artifactLane // by agent; nil: it holds nothing
}

// An artifactLane is an agent with one variant.
type artifactLane struct {
	*routed
	agent, typ, variant int
	most                int // index of the largest run; -1: it can run none
	queue               []int
	busy                bool
	overdue             bool // the most urgent query had to start while the lane was busy
	timed               bool // a batchExpires is set (nexus and others)
	aimd                int  // index of the size
	size                int  // index of the size that the placement says
}

// What happens at a lane.
type (
	laneFree    struct{ lane *artifactLane }
	headExpires struct {
		lane *artifactLane
		id   int
	}
	batchExpires struct{ lane *artifactLane }
	runEnds      struct {
		lane *artifactLane
		ids  []int
	}
)

func (r *routed) placed(agent int) {
	a := &r.state.Agents[agent]
	r.lanes[agent] = nil
	if a.Variant >= 0 {
		r.lanes[agent] = &artifactLane{
			routed: r, agent: agent, typ: a.Type, variant: a.Variant,
			most: r.Fleet.Largest(a.Type, a.Variant), size: a.Size,
		}
		if r.Batching == ArtifactSingle {
			r.lanes[agent].most = min(0, r.lanes[agent].most)
		}
	}
}

func (r *routed) arrived(id int) {
	agent := r.Rival.Route(r.state, r.queries[id].family, r.rng)
	r.sync()
	if agent < 0 || r.lanes[agent] == nil {
		r.finish(id, -1, false)
		return
	}
	r.state.Agents[agent].Holds++
	r.lanes[agent].enqueue(id)
}

func (r *routed) handle(e event) {
	switch x := e.what.(type) {
	case runEnds:
		for _, id := range x.ids {
			r.finish(id, x.lane.variant, false)
		}
		if r.lanes[x.lane.agent] == x.lane {
			r.state.Agents[x.lane.agent].Holds -= len(x.ids)
		}
	case laneFree:
		x.lane.freed()
	case headExpires:
		x.lane.headExpired(x.id, e.at)
	case batchExpires:
		x.lane.batchExpired()
	}
}

// adaptive says that the lane waits as Proteus does.
func (l *artifactLane) adaptive() bool {
	return l.Batching == ArtifactProteus || l.Batching == ArtifactSommelier ||
		l.Batching == ArtifactSingle
}

// fills is the index of the largest size that n queries fill.
func (l *artifactLane) fills(n int) int {
	if n == 0 { // as the artifact has it: the last size
		return len(l.Fleet.Sizes) - 1
	}
	k := 0
	for k < l.most && n >= l.Fleet.Sizes[k+1] {
		k++
	}
	return k
}

func (l *artifactLane) takes(size int) time.Duration {
	return l.latency(l.typ, l.variant, max(0, min(size, max(l.most, 0))))
}

// waitsFor is the size for which a lane that is not adaptive waits.
func (l *artifactLane) waitsFor() int {
	switch l.Batching {
	case ArtifactAIMD:
		return l.aimd
	case ArtifactINFaaS:
		if l.lanes[l.agent] == l {
			l.size = l.state.Agents[l.agent].Size
		}
		return l.size
	}
	return l.most
}

func (l *artifactLane) enqueue(id int) {
	l.queue = append(l.queue, id)
	if l.most < 0 { // it cannot run even one in time
		l.finish(id, -1, false)
		return
	}
	switch {
	case l.adaptive() && l.busy:
		l.setHead()
	case l.adaptive():
		l.dropHopeless()
		if len(l.queue) == 0 {
			return
		}
		if until := l.headUntil(); l.now < until {
			l.setHead()
			return
		}
		l.process(l.fills(len(l.queue) - 1))
	case l.busy:
		if !l.timed && l.Batching != ArtifactAIMD {
			l.setBatch(id)
		}
	case len(l.queue) >= l.Fleet.Sizes[max(0, l.waitsFor())]:
		l.process(l.waitsFor())
	}
}

// setBatch sets when the lane looks at its queue because of a query.
func (l *artifactLane) setBatch(id int) {
	l.timed = true
	target := l.queries[id].due - l.queries[id].at
	l.push(l.now+target-l.takes(l.waitsFor()), batchExpires{l})
}

// headUntil is when the most urgent query has to start, together with those that fill its run.
func (l *artifactLane) headUntil() time.Duration {
	return l.queries[l.queue[0]].due - l.takes(l.fills(len(l.queue)))
}

func (l *artifactLane) setHead() {
	if len(l.queue) == 0 {
		return
	}
	q := &l.queries[l.queue[0]]
	if until := l.headUntil(); q.expires != until {
		q.expires = until
		l.push(until, headExpires{l, l.queue[0]})
	}
}

// dropHopeless drops the queries that would be late in a run that starts now.
func (l *artifactLane) dropHopeless() {
	for len(l.queue) > 0 && l.now > l.headUntil() {
		l.finish(l.queue[0], -1, false)
		l.queue = l.queue[1:]
	}
	l.setHead()
}

func (l *artifactLane) headExpired(id int, at time.Duration) {
	switch {
	case l.busy:
		l.overdue = true
	case !l.adaptive() || l.queries[id].expires > at || len(l.queue) == 0 || l.queue[0] != id:
	default:
		l.process(l.fills(len(l.queue)))
	}
}

func (l *artifactLane) batchExpired() {
	if l.busy || len(l.queue) == 0 {
		return
	}
	if l.Batching == ArtifactINFaaS {
		l.process(min(l.waitsFor(), l.fills(len(l.queue))))
		return
	}
	l.dropHopeless()
	if len(l.queue) > 0 {
		l.process(l.fills(len(l.queue)))
	}
}

func (l *artifactLane) freed() {
	l.busy = false
	if len(l.queue) == 0 {
		return
	}
	switch {
	case l.adaptive() && l.overdue:
		l.overdue = false
		l.process(l.fills(len(l.queue)))
	case l.adaptive():
		if len(l.queue) > l.Fleet.Sizes[l.most] {
			l.process(l.most)
		}
	case len(l.queue) >= l.Fleet.Sizes[max(0, l.waitsFor())]:
		l.timed = l.timed && l.Batching == ArtifactINFaaS
		l.process(l.waitsFor())
	case l.Batching == ArtifactNexus:
		l.setBatch(l.queue[0])
	}
}

// process starts a run of up to Sizes[size] queries.
func (l *artifactLane) process(size int) {
	size = max(0, min(size, l.most))
	if l.Batching != ArtifactSommelier {
		l.queue = slices.DeleteFunc(l.queue, func(id int) bool {
			q := &l.queries[id]
			old := l.now > q.at+2*(q.due-q.at)
			if old {
				l.finish(id, -1, false)
			}
			return old
		})
	}
	n := min(l.Fleet.Sizes[size], len(l.queue))
	if n == 0 {
		return
	}
	ids := l.queue[:n:n]
	l.queue = l.queue[n:]
	if l.adaptive() {
		l.setHead()
	}
	end := l.now + l.takes(size)
	late := slices.ContainsFunc(ids, func(id int) bool { return end > l.queries[id].due })
	if late {
		l.aimd = max(0, l.aimd-1)
	} else {
		l.aimd = min(len(l.Fleet.Sizes)-1, l.aimd+1)
	}
	l.busy = true
	l.push(end, runEnds{l, ids})
	l.push(end, laneFree{l})
}
