// Package fleetview shows the state of a fleet to people. Print writes it once as plain tables.
// Draw lays it out for a screen of a given size. Watch draws it again each interval, with the state
// that a Source asks agents for.
package fleetview

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/match"
)

// No information is in colours alone: lipgloss leaves them out if NO_COLOR is set or the output is
// no terminal.
var (
	bold   = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	red    = lipgloss.NewStyle().Foreground(lipgloss.Red)
	yellow = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
)

// Draw returns the fleet as text of width columns and at most height lines, without a newline
// at the end. Rows that do not fit are summed up in the last line of their table. A height of
// 0 means no limit.
func Draw(s *control.FleetStatus, width, height int) string {
	s = showNames(s)
	tables := slices.DeleteFunc([]table{
		modelTable(s, width), familyTable(s, width), agentTable(s, width),
		placementTable(s, width), decisionTable(s, width),
	},
		func(t table) bool { return len(t.rows) == 0 })
	lines := fleetHeader(s)
	lines = append(lines, planOf(s)...)
	if placement := placementOf(s); placement != "" {
		lines = append(lines, placement)
	}
	for i := range lines {
		lines[i] = bold.Render(cutText(lines[i], width))
	}
	rows := math.MaxInt
	for height > 0 {
		rows = height - len(lines) - 2*len(tables) // each has an empty line and a title
		least := 0
		for _, t := range tables {
			least += t.atLeast()
		}
		if rows >= least || len(tables) <= 1 {
			break
		}
		tables = tables[:len(tables)-1] // what matters most comes first
	}
	for i, given := range divideLines(rows, tables) {
		lines = append(lines, "", bold.Render(cutText(tables[i].title, width)))
		lines = append(lines, tables[i].draw(given, width)...)
	}
	if height > 0 {
		lines = lines[:min(len(lines), height)]
	}
	return strings.Join(lines, "\n")
}

// A table is a title and rows, the most important ones first.
type table struct {
	title  string
	weight float64 // share of the lines that it gets, relative to the other tables
	least  int     // lines that it gets, if it has so many rows, before others get more than theirs
	rows   []row
	// rest returns a line that sums up the rows from index from on.
	rest func(from int) string
}

type row struct {
	text  string
	style lipgloss.Style
}

func (t *table) atLeast() int { return min(t.least, len(t.rows)) }

// draw returns the rows as at most the given number of lines.
func (t *table) draw(lines, width int) []string {
	shown := len(t.rows)
	if lines < shown {
		shown = max(0, lines-1)
	}
	var drawn []string
	for _, r := range t.rows[:shown] {
		drawn = append(drawn, r.style.Render(cutText(r.text, width)))
	}
	if lines > 0 && shown < len(t.rows) {
		drawn = append(drawn, faint.Render(cutText(t.rest(shown), width)))
	}
	return drawn
}

// divideLines divides the lines among the tables: first each gets its least, then they get the rest
// in proportion to their weights. No table gets more lines than it has rows.
func divideLines(lines int, tables []table) []int {
	given := make([]int, len(tables))
	for i := range tables {
		given[i] = max(0, min(tables[i].atLeast(), lines))
		lines -= given[i]
	}
	for ; lines > 0; lines-- {
		best := -1
		for i, t := range tables {
			if given[i] < len(t.rows) && (best < 0 ||
				float64(given[i])/t.weight < float64(given[best])/tables[best].weight) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		given[best]++
	}
	return given
}

// fleetHeader returns lines: the fleet's size and its leader; its rate, fluid limit and waiting
// queries; and if queries are late, why.
func fleetHeader(s *control.FleetStatus) []string {
	var lanes, emulated int
	var price float64
	for _, m := range s.GetView().GetMembers() {
		lanes += int(m.GetLanes())
		price += m.GetPriceUsdPerHour()
		if m.GetExecutor() == "emulated" {
			emulated++
		}
	}
	agents := len(s.GetView().GetMembers())
	size := terminal.CountNoun(agents, "agent")
	switch {
	case emulated == agents && agents > 0:
		size = terminal.CountNoun(agents, "emulated agent")
	case emulated > 0:
		size += fmt.Sprintf(" (%d emulated)", emulated)
	}
	size += ", " + terminal.CountNoun(lanes, "lane")
	if price > 0 {
		size += fmt.Sprintf(", $%.2f/hr", price)
	}
	l := s.GetView().GetLeadership()
	if l.GetLeader() == "" {
		return []string{
			size,
			fmt.Sprintf(
				"NO LEADER (the last epoch was %d): gateways decide alone, and rates are not known",
				l.GetEpoch()),
		}
	}
	leader := fmt.Sprintf("; leader %s, epoch %d", l.GetLeader(), l.GetEpoch())
	if l.GetSuccessor() != "" {
		leader += ", next " + l.GetSuccessor()
	}
	load := fmt.Sprintf("rate %s/s", perSecond(s.GetRate()))
	if limit := s.GetFluidLimit(); limit > 0 {
		load += fmt.Sprintf(" %s %.0f %% of the fluid limit %s/s", drawBar(s.GetRate()/limit, 10),
			100*s.GetRate()/limit, perSecond(limit))
	} else {
		load += ", fluid limit unknown"
	}
	lines := []string{
		size + leader,
		fmt.Sprintf("%s, %d waiting (%d late)", load, s.GetWaiting(), s.GetWaitingLate()),
	}
	if why := whyLate(s); why != "" {
		lines = append(lines, why)
	}
	return lines
}

// modelTable lists the model versions that members hold and those for which the leader has counts.
func modelTable(s *control.FleetStatus, width int) table {
	type entry struct {
		held   *control.Model
		agents int
		*control.ModelStatus
	}
	models := map[names.ModelKey]*entry{}
	at := func(name string, version int64) *entry {
		key := names.NewModelKey(name, version)
		if models[key] == nil {
			models[key] = &entry{}
		}
		return models[key]
	}
	for _, m := range s.GetView().GetMembers() {
		for _, held := range m.GetModels() {
			e := at(held.GetName(), held.GetVersion())
			e.held = held
			e.agents++
		}
	}
	for _, m := range s.GetModels() {
		at(m.GetModel(), m.GetVersion()).ModelStatus = m
	}
	keys := slices.SortedFunc(maps.Keys(models), func(a, b names.ModelKey) int {
		lost := func(k names.ModelKey) int { // of queries that reached no version: last
			if models[k].held == nil && models[k].GetVersion() == 0 {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(lost(a), lost(b)), cmp.Compare(a, b))
	})
	name := min(maxWidth(names.Strings(keys), len("MODEL")), max(12, width/4))
	form := "%s %6s %10s %8s %8s %10s %9s %9s %9s  %s"
	const others = 79 // columns of form that are not the name's
	switch {
	case width < 60: // the rate, and what is late and refused, come first
		form = "%[1]s %8[4]s %8[5]s %8[9]s"
	case width < name+others:
		form = "%[1]s %10[3]s %8[4]s %8[5]s %10[6]s %9[7]s %9[8]s %9[9]s"
	}
	title, reasons := "", width >= name+others+len("overloaded 12345")
	if reasons && slices.ContainsFunc(s.GetModels(),
		func(m *control.ModelStatus) bool { return len(m.GetRefusals()) > 0 }) {
		title = "WHY"
	}
	t := table{
		title: fmt.Sprintf(form, fitText("MODEL", name), "AGENTS", "TARGET", "RATE/S", "LATE 60S",
			"ANSWERED", "LATE", "TIMED OUT", "REFUSED", title),
		weight: 3, least: 4,
		rest: func(from int) string { return "... " + terminal.CountNoun(len(keys)-from, "more model") },
	}
	for _, key := range keys {
		e := models[key]
		target, rate, late, answered := "-", "-", "-", "-"
		lateQueries, timedOut, refused := "-", "-", "-"
		r, shown, why := row{}, string(key), ""
		if e.held == nil && e.GetVersion() == 0 {
			shown = cmp.Or(e.GetModel(), noModel)
		}
		if e.held.GetQosTargetNs() > 0 {
			target = fmt.Sprintf("p%g %s", 100*e.held.GetQosPercentile(),
				formatBrief(e.held.GetQosTargetNs()))
		}
		if e.ModelStatus != nil {
			rate = perSecond(e.GetRate())
			answered, lateQueries = formatCount(e.GetAnswered()), formatCount(e.GetLate())
			timedOut = formatCount(timedOutOf(e.ModelStatus))
			refused = formatCount(e.GetRefused() - timedOutOf(e.ModelStatus))
			if reasons {
				why = reasonsOf(e.ModelStatus)
			}
			if e.WithinQos != nil {
				within := e.GetWithinQos()
				late = fmt.Sprintf("%.1f %%", 100*(1-within))
				// The tolerance is for rounding: in floating point 1 - 0.99 is not 0.01.
				if e.held != nil && 1-within > 1-e.held.GetQosPercentile()+1e-9 {
					late, r.style = "! "+late, red
				}
			}
		}
		r.text = fmt.Sprintf(form, fitText(shown, name), fmt.Sprint(e.agents), target, rate, late,
			answered, lateQueries, timedOut, refused, why)
		t.rows = append(t.rows, r)
	}
	return t
}

// An agentEntry is what the table of agents shows of one.
type agentEntry struct {
	name   string
	member *control.Member // nil: it has left
	*control.AgentStatus
}

// troubleRank orders agents: those that need somebody's attention come first.
func (e *agentEntry) troubleRank() int {
	switch {
	case e.GetOverdue():
		return 0
	case e.member == nil:
		return 1
	case e.member.GetDraining():
		return 2
	}
	return 3
}

// agentEntries are the agents that are members, or of which the leader knows, by trouble and name.
func agentEntries(s *control.FleetStatus) (agents []*agentEntry) {
	byName := map[string]*agentEntry{}
	for _, m := range s.GetView().GetMembers() {
		byName[m.GetName()] = &agentEntry{name: m.GetName(), member: m}
	}
	for _, a := range s.GetAgents() {
		if byName[a.GetName()] == nil {
			byName[a.GetName()] = &agentEntry{name: a.GetName()}
		}
		byName[a.GetName()].AgentStatus = a
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		agents = append(agents, byName[name])
	}
	slices.SortStableFunc(agents,
		func(a, b *agentEntry) int { return cmp.Compare(a.troubleRank(), b.troubleRank()) })
	return agents
}

// agentTable lists the members, and agents that have left but that the leader still knows. Agents
// with problems come first.
func agentTable(s *control.FleetStatus, width int) table {
	agents := agentEntries(s)
	var names, types, notes []string
	for _, e := range agents {
		names, types = append(names, e.name), append(types, e.member.GetInstanceType())
		notes = append(notes, strings.Join(statesOf(s, e.member, e.AgentStatus), ", "))
	}
	led := s.GetView().GetLeadership().GetLeader() != "" // only a leader knows how busy lanes are
	full := fullBar(s)
	lanesTitle := "LANES full=" + formatBrief(full)
	factor := width >= 100 // there is room for the column
	// If there is too little room, the bars shrink first, then the names; the states never do.
	typ := min(maxWidth(types, len("TYPE")), 3*width/20)
	room := width - typ - len("   123ms 1234  99%   ")
	if factor {
		room -= len("   1.00")
	}
	room -= min(maxWidth(notes, 0), len("overdue, draining, emulated"))
	name := min(maxWidth(names, len("AGENT")), max(room-len(lanesTitle), 12))
	lanes := max(8, min(room-name, 60))
	line := func(agent, instanceType, lane, free, waiting, busy, factorText, note string) string {
		text := fmt.Sprintf("%s %s %s %6s %4s %4s", fitName(agent, name), fitText(instanceType,
			typ),
			fitText(lane, lanes), free, waiting, busy)
		if factor {
			text += fmt.Sprintf(" %6s", factorText)
		}
		return text + "  " + note
	}
	t := table{
		title: line("AGENT", "TYPE", lanesTitle, "FREE", "WAIT", "BUSY", "FACTOR", ""), weight: 4,
		least: 1,
	}
	for i, e := range agents {
		r := row{}
		switch e.troubleRank() {
		case 0:
			r.style = red
		case 1, 2:
			r.style = yellow
		}
		lane, free, waiting, busy, factorText := "?", "-", "-", "-", "-"
		if e.AgentStatus != nil {
			waiting = fmt.Sprint(e.GetWaiting())
			if led {
				busy = fmt.Sprintf("%.0f%%", 100*e.GetBusy())
			}
			if len(e.GetRemainingNs()) > 0 {
				lane = drawLaneBars(e.GetRemainingNs(), full, lanes)
				free = formatBrief(slices.Min(e.GetRemainingNs()))
			}
			if e.GetFactor() > 0 {
				factorText = fmt.Sprintf("%.2f", e.GetFactor())
			}
		}
		r.text = line(e.name, e.member.GetInstanceType(), lane, free, waiting, busy, factorText,
			notes[i])
		t.rows = append(t.rows, r)
	}
	t.rest = func(from int) string {
		var busy float64
		var lanes, waiting int
		states := map[string]int{}
		for _, e := range agents[from:] {
			lanes += int(e.member.GetLanes())
			busy += e.GetBusy() * float64(e.member.GetLanes())
			waiting += int(e.GetWaiting())
			for _, state := range statesOf(s, e.member, e.AgentStatus) {
				states[state]++
			}
		}
		text := fmt.Sprintf("... %s, %s: %d waiting", terminal.CountNoun(len(agents)-from, "more agent"),
			terminal.CountNoun(lanes, "lane"), waiting)
		if led {
			text += fmt.Sprintf(", %.0f %% busy", 100*busy/max(1, float64(lanes)))
		}
		for _, state := range slices.Sorted(maps.Keys(states)) {
			if state != "leads" { // the header names the leader
				text += fmt.Sprintf(", %d %s", states[state], state)
			}
		}
		return text
	}
	return t
}

// decisionTable lists the leader's last decisions, newest first.
func decisionTable(s *control.FleetStatus, width int) table {
	t := table{title: "LAST DECISIONS", weight: 2, least: 1, rest: func(from int) string {
		return "... " + terminal.CountNoun(len(s.GetDecisions())-from, "more decision")
	}}
	for _, d := range s.GetDecisions() {
		words := strings.Fields(d)
		if last := len(words) - 1; last >= 0 && strings.HasPrefix(words[last], "agent=") {
			if i := slices.IndexFunc(words,
				func(w string) bool { return strings.HasPrefix(w, "lane=") }); i >= 0 {
				words[i], words = words[last], words[:last]
			}
		}
		// Nearly every attempt is the first one, so attempt=1 is left out. On a narrow screen the
		// slack stands for the numbers that it is computed from.
		words = slices.DeleteFunc(words, func(w string) bool {
			name, _, _ := strings.Cut(w, "=")
			return w == "attempt=1" ||
				width < 100 && slices.Contains([]string{"cost", "latency", "waited", "wait"}, name)
		})
		for i := range words {
			words[i] = partOf(words[i])
		}
		t.rows = append(t.rows, row{text: strings.Join(words, " ")})
	}
	return t
}

// partOf returns a word of a decision, with the query and the number of the part if it names a part
// of a query: "query=1/402" becomes "query=1/400 part=2".
func partOf(word string) string {
	name, ok := strings.CutPrefix(word, "query=")
	gateway, number, found := strings.Cut(name, "/")
	sequence, err := strconv.ParseUint(number, 10, 64)
	id := match.QueryID{Sequence: sequence}
	if !ok || !found || err != nil || !id.IsPart() {
		return word
	}
	whole := id.Whole().Sequence
	return fmt.Sprintf("query=%s/%d part=%d", gateway, whole, sequence-whole)
}

// fullBar returns the remaining time, in nanoseconds, for which a lane's bar is full. It is the
// largest QoS target, since a lane with more work cannot start a query in time. If no model has a
// target, it is the longest remaining time.
func fullBar(s *control.FleetStatus) int64 {
	var target, remaining int64
	for _, m := range s.GetView().GetMembers() {
		for _, held := range m.GetModels() {
			target = max(target, held.GetQosTargetNs())
		}
	}
	for _, a := range s.GetAgents() {
		for _, r := range a.GetRemainingNs() {
			remaining = max(remaining, r)
		}
	}
	if target > 0 {
		return target
	}
	return remaining
}

// drawLaneBars draws one bar for each lane, width columns for all of them. Lanes that do not fit
// are counted at the end.
func drawLaneBars(remaining []int64, full int64, width int) string {
	const least = len("[##]")
	shown := min(len(remaining), width/least)
	if shown < len(remaining) {
		shown = max(0, (width-len(" +99"))/least)
	}
	var b strings.Builder
	for i, r := range remaining[:shown] {
		room := width
		if shown < len(remaining) {
			room -= len(" +99")
		}
		cells := room*(i+1)/shown - room*i/shown - 2
		b.WriteString(drawBar(float64(r)/float64(max(1, full)), cells))
	}
	if shown < len(remaining) {
		fmt.Fprintf(&b, " +%d", len(remaining)-shown)
	}
	return b.String()
}

// drawBar draws a bar of which share, in [0, 1], is filled. A share above 0 fills at least one
// cell; NaN fills none.
func drawBar(share float64, cells int) string {
	filled := 0
	if share > 0 {
		filled = int(math.Ceil(min(1, share) * float64(cells)))
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat("-", cells-filled) + "]"
}

// formatBrief formats a duration, given in nanoseconds, in at most six characters.
func formatBrief(ns int64) string {
	switch d := time.Duration(ns); {
	case d <= 0:
		return "0"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.3gms", math.Round(float64(d)/1e5)/10)
	case d < 10*time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	case d < 10000*time.Second:
		return fmt.Sprintf("%.0fs", d.Seconds())
	default:
		return fmt.Sprintf("%.0fh", d.Hours())
	}
}

// perSecond formats a rate, with one decimal below 1,000.
func perSecond(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// formatCount formats n in at most eight characters.
func formatCount(n uint64) string {
	switch {
	case n < 1e8:
		return fmt.Sprint(n)
	case n < 1e11:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	default:
		return fmt.Sprintf("%.0fG", float64(n)/1e9)
	}
}

// cutText shortens text to at most width columns. A ~ at the end marks that something is cut off.
func cutText(text string, width int) string {
	return ansi.Truncate(strings.TrimRight(toPrintable(text), " "), width, "~")
}

// fitText makes text exactly width columns wide: it cuts it or adds spaces.
func fitText(text string, width int) string {
	text = cutText(text, width)
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// fitName is fit for an agent's name. It cuts in the middle and keeps the end, because names often
// begin alike.
func fitName(name string, width int) string {
	name = toPrintable(name)
	if over := ansi.StringWidth(name) - width; over > 0 && width > 1 {
		head := (width - 1) / 2
		return ansi.Truncate(name, head, "") + "~" + ansi.TruncateLeft(name, over+head+1, "")
	}
	return fitText(name, width)
}

// toPrintable replaces each unprintable character by a "?", so that text from other machines cannot
// control the terminal and keeps its width.
func toPrintable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// maxWidth returns the width of the widest text, or least if that is larger.
func maxWidth(texts []string, least int) int {
	for _, t := range texts {
		least = max(least, ansi.StringWidth(t))
	}
	return least
}
