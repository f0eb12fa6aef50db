package fleetview

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/profiles"
)

// Print writes a fleet's state to w as tables for people. The lines are at most 100 columns wide if
// names have at most some 30 characters. The texts in s must be plain (terminal.PlainMessage).
func Print(w io.Writer, s *control.FleetStatus) error {
	s = showNames(s)
	leadership := s.GetView().GetLeadership()
	switch leader := leadership.GetLeader(); {
	case leader == "":
		fmt.Fprintf(w, "no leader (last epoch %d): gateways decide alone\n", leadership.GetEpoch())
	default:
		fmt.Fprintf(w, "leader %s, epoch %d", leader, leadership.GetEpoch())
		if next := leadership.GetSuccessor(); next != "" {
			fmt.Fprintf(w, ", successor %s", next)
		}
		fmt.Fprintf(w, "\n%.1f queries/s", s.GetRate())
		if limit := s.GetFluidLimit(); limit > 0 {
			fmt.Fprintf(w, ", %.0f %% of the fluid limit of %.1f", 100*s.GetRate()/limit, limit)
		}
		fmt.Fprintf(w, "; %d waiting, %d of them late\n", s.GetWaiting(), s.GetWaitingLate())
		if why := whyLate(s); why != "" {
			fmt.Fprintln(w, why)
		}
	}
	for _, line := range planOf(s) {
		fmt.Fprintln(w, line)
	}
	if versions := versionsOf(s.GetView().GetMembers()); versions != "" {
		fmt.Fprintln(w, versions)
	}
	told := map[string]*control.AgentStatus{}
	for _, a := range s.GetAgents() {
		told[a.GetName()] = a
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nAGENT\tTYPE\tLANES\tFREE IN\tQUEUE\tBUSY\tFACTOR\tSTATE")
	for _, m := range s.GetView().GetMembers() {
		a := told[m.GetName()]
		free := make([]string, 0, len(a.GetRemainingNs()))
		for _, ns := range a.GetRemainingNs() {
			free = append(free, formatMs(ns))
		}
		const most = 4 // lanes
		if len(free) > most {
			free = append(free[:most], "...")
		}
		fmt.Fprintf(table, "%s\t%s\t%d x %d\t%s\t%d\t%s\t%s\t%s\n", m.GetName(),
			m.GetInstanceType(), m.GetLanes(), m.GetCores(),
			terminal.OrDash(strings.Join(free, " ")), a.GetWaiting(),
			formatPercent(a.GetBusy(), leadership.GetLeader() != ""), formatFactor(a.GetFactor()),
			terminal.OrDash(strings.Join(statesOf(s, m, a), ", ")))
	}
	if err := errors.Join(table.Flush(), printGPUs(w, s)); err != nil {
		return err
	}
	if err := printFamilies(w, s); err != nil {
		return err
	}
	if err := printPlacement(w, s); err != nil {
		return err
	}
	if len(s.GetModels()) == 0 {
		return nil
	}
	fmt.Fprintln(table, "\nMODEL\tVERSION\tQUERIES/S\tWITHIN QOS\tANSWERED\tLATE\tTIMED OUT\t"+
		"REFUSED")
	var why []string
	for _, m := range s.GetModels() {
		name, version := m.GetModel(), fmt.Sprint(m.GetVersion())
		if m.GetVersion() == 0 { // of no model, or a family, at none of its variants
			name, version = cmp.Or(m.GetModel(), noModel), "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%.1f\t%s\t%d\t%d\t%d\t%d\n", name, version, m.GetRate(),
			formatPercent(m.GetWithinQos(), m.WithinQos != nil), m.GetAnswered(), m.GetLate(),
			timedOutOf(m), m.GetRefused()-timedOutOf(m))
		if share := m.GetUnmetShare(); share > 0 {
			why = append(why,
				fmt.Sprintf("%s cannot meet its QoS target with %.3g %% of its queries: %s",
					nameOf(m), 100*share, m.GetWhyUnmet()))
		}
		if n := m.GetNonFinite(); n > 0 {
			why = append(why, fmt.Sprintf("%s gave answers with NaN or infinity: %s", nameOf(m),
				formatCount(n)))
		}
		if len(m.GetRefusals()) > 0 {
			why = append(why, fmt.Sprintf("failed queries of %s: %s", nameOf(m), reasonsOf(m)))
		}
	}
	if err := table.Flush(); err != nil || len(why) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(why, "\n"))
	return err
}

// whyLate says in a line why queries of the last minute were late; "" if none was, or nobody knows.
func whyLate(s *control.FleetStatus) string {
	summary := s.GetMissed().Summary()
	if summary == nil {
		return ""
	}
	return summary.Sentence(3)
}

// printGPUs writes a table of the agents with a GPU, if there are any.
func printGPUs(w io.Writer, s *control.FleetStatus) error {
	const gib = 1 << 30
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	title := "\nAGENT\tGPU\tNAME\tUSED GIB\tTROUBLE\n"
	for _, m := range s.GetView().GetMembers() {
		g := m.GetGpu()
		if g == nil {
			continue
		}
		fmt.Fprint(table, title)
		title = ""
		if g.GetName() == "" {
			fmt.Fprintf(table, "%s\t-\tnot watched\t-\t-\n", m.GetName())
			continue
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%.1f of %.1f\t%s\n", m.GetName(), g.GetIndex(), g.GetName(),
			float64(g.GetUsedBytes())/gib, float64(g.GetMemoryBytes())/gib,
			terminal.OrDash(strings.Join(troublesOf(g), ", ")))
	}
	return table.Flush()
}

// troublesOf returns what is wrong with a GPU, in words.
func troublesOf(g *control.GPU) (words []string) {
	if g.GetXid() > 0 {
		words = append(words, fmt.Sprintf("Xid %d", g.GetXid()))
	}
	if n := g.GetUncorrected(); n > 0 {
		words = append(words, fmt.Sprintf("%s uncorrected memory errors", formatCount(n)))
	}
	if len(g.GetSlowed()) > 0 {
		words = append(words, "slowed: "+strings.Join(g.GetSlowed(), " and "))
	}
	return words
}

// noModel stands for the model of queries that reached no version of any.
const noModel = "(none)"

// nameOf returns the model and version as one word.
func nameOf(m *control.ModelStatus) string {
	if m.GetVersion() == 0 {
		return cmp.Or(m.GetModel(), noModel)
	}
	return string(names.NewModelKey(m.GetModel(), m.GetVersion()))
}

// reasonsOf returns why queries failed, with the number of each reason, the most frequent first:
// "overloaded 3927, late 12".
func reasonsOf(m *control.ModelStatus) string {
	const most = 4
	var parts []string
	for i, r := range m.GetRefusals() {
		if i == most {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, fmt.Sprintf("%s %s", r.GetReason(), formatCount(r.GetCount())))
	}
	return strings.Join(parts, ", ")
}

// timedOutOf returns how many queries were given up at their deadlines. The others that failed were
// refused.
func timedOutOf(m *control.ModelStatus) (n uint64) {
	for _, r := range m.GetRefusals() {
		if r.GetReason() == "deadline" {
			n += r.GetCount()
		}
	}
	return min(n, m.GetRefused())
}

// planOf returns how the demand changed last, and the leader's plan, in lines. It returns nil where
// the demand has not changed and there is no plan.
func planOf(s *control.FleetStatus) (lines []string) {
	p, plan := s.GetProposal(), s.GetPlan()
	if p != nil {
		at := time.Unix(0, p.GetTimeUnixNs())
		when := at.Format("15:04")
		if time.Since(at) > 12*time.Hour {
			when = at.Format("2006-01-02 15:04")
		}
		lines = append(lines, fmt.Sprintf("demand of %s changed at %s: %s",
			names.NewModelKey(p.GetModel(), p.GetVersion()), when, changeOf(p)))
	}
	switch {
	case plan.GetState() != "" || p != nil && plan != nil:
		lines = append(lines, plan.Lines()...)
	case p != nil: // the leader knows no plans
		lines = append(lines, "  plan: "+p.GetReason())
	}
	return lines
}

// changeOf returns what has changed, the rate or the batch sizes of a model's queries, with the
// numbers before and after.
func changeOf(p *control.Proposal) string {
	before, now := p.GetBefore(), p.GetNow()
	var parts []string
	if strings.Contains(p.GetKind(), string(profiles.RateChanged)) {
		parts = append(
			parts,
			fmt.Sprintf("rate from %s/s to %s/s", perSecond(before.GetRate()),
				perSecond(now.GetRate())))
	}
	if strings.Contains(p.GetKind(), string(profiles.BatchSizesChanged)) {
		parts = append(parts,
			fmt.Sprintf("mean batch size from %.0f to %.0f, 95 %% quantile from %d to %d",
				before.GetMeanSize(), now.GetMeanSize(), before.GetLargeSize(),
				now.GetLargeSize()))
	}
	return strings.Join(parts, ", ")
}

// versionsOf returns a line with the number of agents by version of Muster, and the version of the
// protocol that they use; "" if all agents have the same version.
func versionsOf(members []*control.Member) string {
	count := map[string]int{}
	newest := uint32(0)
	for _, m := range members {
		if m.GetLanes() > 0 { // otherwise its description has not arrived yet
			count[m.GetSoftware()]++
			newest = max(newest, m.Versions().Newest)
		}
	}
	if len(count) < 2 {
		return ""
	}
	var parts []string
	for _, version := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d with %s", count[version], version))
	}
	text := "agents: " + strings.Join(parts, ", ")
	if agreed := control.Agreed(members); agreed < newest {
		text += fmt.Sprintf("; they use version %d of the protocol until all support %d", agreed,
			newest)
	}
	return text
}

// statesOf returns words for the states of an agent, problems first. m is nil if the agent is no
// member any more; a is nil if nothing is known of its lanes.
func statesOf(s *control.FleetStatus, m *control.Member, a *control.AgentStatus) []string {
	var words []string
	if a.GetOverdue() {
		words = append(words, "overdue")
	}
	switch {
	case m == nil:
		words = append(words, "gone")
	case m.GetDraining():
		words = append(words, "draining")
	case len(m.GetModels()) == 0:
		words = append(words, "no models")
	}
	if len(troublesOf(m.GetGpu())) > 0 {
		words = append(words, "GPU trouble")
	}
	if share := m.GetCpuWait(); share > 0 {
		words = append(words, fmt.Sprintf("lacks CPU (%.0f %%)", 100*share))
	}
	if m.GetExecutor() != "" && m.GetExecutor() != "onnx" {
		words = append(words, m.GetExecutor())
	}
	if leader := s.GetView().GetLeadership().GetLeader(); leader != "" &&
		leader == cmp.Or(a.GetName(), m.GetName()) {
		words = append(words, "leads")
	}
	if name := m.GetCertificateName(); name != "" && name != m.GetName() {
		words = append(words, "certificate "+name)
	}
	return words
}

// formatMs formats a duration that is given in nanoseconds.
func formatMs(ns int64) string {
	return fmt.Sprintf("%.1fms", float64(ns)/float64(time.Millisecond))
}

// formatPercent formats a share in [0, 1], or "-" if it is not known.
func formatPercent(share float64, known bool) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// formatFactor formats an agent's latency relative to the mean of its type; 0 is unknown.
func formatFactor(f float64) string {
	if f == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", f)
}
