package lead

import (
	"cmp"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// shownMissed is the time of which a status and the dashboard say why queries were late. Chosen: as
// that of the share within the QoS target.
const shownMissed = leader.StatusSeconds * time.Second

// missedPump counts for a term why queries were late, as gateways say. The loop owns it.
type missedPump struct {
	term   *term
	window lateness.Window
	before map[leader.ModelID]uint64 // queries that had ended by the last call of countEnded
}

// count counts what a gateway says of queries that were missed.
func (p *missedPump) count(g *gateway, m *control.Missed) {
	t := p.term
	key := lateness.Key{
		Cause: lateness.Cause(m.GetCause()), Model: m.GetModel(), Agent: m.GetAgent(),
	}
	if !key.Cause.Known() {
		key.Cause = lateness.Unknown
	}
	if !p.knows(key.Model) || g.mayQuery != nil && g.mayQuery(key.Model) != nil {
		key.Model = ""
	}
	if t.described[names.AgentName(key.Agent)] == nil && !t.isMember(key.Agent) {
		key.Agent = ""
	}
	n := min(m.GetCount(), maxFailed)
	if n == 0 {
		return
	}
	took := min(control.Duration(m.GetTimeNs()/int64(n)), time.Hour) * time.Duration(n)
	p.window.Miss(t.now.Sub(t.start), key, lateness.Sum{Count: n, Time: took})
	if g.sdk {
		t.leader.config.Counts.CountMissed(key.Model, key.Cause, n)
	}
}

// countLate counts an answer that was late, if its gateway is of before and does not say why queries
// are missed: nobody knows then where the time went.
func (p *missedPump) countLate(c *control.Completed) {
	g := p.term.gateways[c.GetGateway()]
	if g == nil || g.knowsRoles || c.GetRefused() != "" || c.GetNoAnswer() {
		return
	}
	late := control.Duration(c.GetLatencyNs())
	for _, m := range p.term.viewed {
		for i := range m.Models {
			if held := &m.Models[i]; held.Name == c.GetModel() && held.Version == c.GetVersion() {
				if late > held.QoSTarget {
					p.countUnsaid(g, held.Name, lateness.Unknown, 1, late)
				}
				return
			}
		}
	}
}

// countUnsaid counts n queries for a model that were missed at a gateway of before.
func (p *missedPump) countUnsaid(g *gateway, model string, cause lateness.Cause, n uint64,
	took time.Duration) {
	key := lateness.Key{Model: cmp.Or(p.familyOf(model), model), Cause: cause}
	if cause == lateness.Unknown && p.term.isMember(g.agent) {
		key.Agent = g.agent
	}
	p.window.Miss(p.term.now.Sub(p.term.start), key, lateness.Sum{Count: n, Time: took})
}

// familyOf is the family of a model; "" if it has none.
func (p *missedPump) familyOf(model string) string {
	for _, m := range p.term.viewed {
		for i := range m.Models {
			if m.Models[i].Name == model && m.Models[i].Family != "" {
				return m.Models[i].Family
			}
		}
	}
	return ""
}

// isMember reports whether the view has an agent.
func (t *term) isMember(name string) bool {
	for m := range t.viewed {
		if m.GetName() == name {
			return true
		}
	}
	return false
}

// knows reports whether members hold the model, or a variant of the family.
func (p *missedPump) knows(model string) bool {
	for _, m := range p.term.viewed {
		for i := range m.Models {
			if m.Models[i].Name == model || m.Models[i].Family == model {
				return model != ""
			}
		}
	}
	return false
}

// countEnded counts the queries that have ended since the last call. One for a family's variant
// counts for the family.
func (p *missedPump) countEnded(g *leader.Glance) {
	families := map[string]string{}
	for _, m := range p.term.viewed {
		for i := range m.Models {
			if f := m.Models[i].Family; f != "" {
				families[m.Models[i].Name] = f
			}
		}
	}
	now := p.term.now.Sub(p.term.start)
	ended := make(map[leader.ModelID]uint64, len(g.Models))
	for i := range g.Models {
		m := &g.Models[i]
		all := m.Answered + m.Failed
		ended[m.ModelID] = all
		if n := all - min(all, p.before[m.ModelID]); n > 0 {
			p.window.End(now, cmp.Or(families[m.Name], m.Name), n)
		}
	}
	p.before = ended
}

// summary says why queries were late in the last time, shownMissed if that is 0.
func (p *missedPump) summary(last time.Duration) *control.MissedQueries {
	if last <= 0 {
		last = shownMissed
	}
	return control.ToMissed(p.window.Summary(p.term.now.Sub(p.term.start), last))
}
