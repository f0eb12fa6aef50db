package leader

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/accuracy"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/work"
)

// A heldModel is a version of a model that at least one member holds or could load.
type heldModel struct {
	ModelID
	key names.ModelKey
	settings
	told string // the family that the matcher knows it in

	perSecond [StatusSeconds]tally
	total     tally
	refusals  map[string]uint64   // those of total that failed, by reason
	nonFinite uint64              // answers with NaN or infinity, since the term began
	trial     *canary.TrialCounts // since the canary of its model came; nil: there is none

	held, serving int      // how many members hold it, and how many of them do not drain
	law           work.Law // of its profiles
}

func byKey(a, b *heldModel) int { return cmp.Compare(a.key, b.key) }

// keys are the keys of the given models.
func keys(of []*heldModel) []names.ModelKey {
	all := make([]names.ModelKey, len(of))
	for i, m := range of {
		all[i] = m.key
	}
	return all
}

// settings are the part of a model's model.yaml that a leader needs.
type settings struct {
	target  time.Duration
	share   float64 // of the queries that should meet the target
	largest int
	late    bool        // reject late queries
	splits  bool        // queries may be split
	merge   match.Merge // "" if queries are not merged
	// family is "" if queries may not ask for one; accuracy is 0 if it is unknown. floor and aim
	// are what is stated for the family, 0 if nothing is.
	family     string
	accuracy   float64
	floor, aim float64
}

func settingsOf(m *HeldModel) settings {
	s := settings{
		target: max(m.QoSTarget, 1), share: m.Share,
		largest: min(max(m.Largest, 1), match.MaxBatchSize), late: m.RejectLate, splits: m.Splits,
		merge: match.ParseMerge(m.Merge), family: m.Family, accuracy: m.Accuracy,
		floor: m.MinAccuracy, aim: m.TargetAccuracy,
	}
	if s.family == m.Name {
		s.family = "" // queries may ask for that name anyway
	}
	if !(s.accuracy > 0 && s.accuracy <= 1) {
		s.accuracy = 0
	}
	return s
}

// combineWith combines the settings s and o of a model whose model.yaml is being changed on one
// member after the other, so that some serve by s and others by o. What either allows is allowed,
// as at a gateway, so the order of the members does not matter. Only splitting must be allowed by
// both, and queries are merged only if both do so alike. A model that is in different families is
// in none, and its accuracy is the lower of two.
func (s settings) combineWith(o settings) settings {
	if s.merge != o.merge {
		s.merge = ""
	}
	if s.family != o.family {
		s.family = ""
	}
	return settings{
		max(s.target, o.target), min(s.share, o.share), max(s.largest, o.largest), s.late && o.late,
		s.splits && o.splits, s.merge, s.family, min(s.accuracy, o.accuracy),
		max(s.floor, o.floor), max(s.aim, o.aim),
	}
}

// viewChanged takes from the fleet's view what links do not say: which members have left, and which
// models there are.
func (s *State) viewChanged(members []*Member) {
	s.view = make(map[names.AgentName]*Member, len(members))
	said, could := map[ModelID]settings{}, map[ModelID]settings{}
	learn := func(to map[ModelID]settings, m *HeldModel) {
		settings := settingsOf(m)
		if others, ok := to[m.ModelID]; ok {
			settings = settings.combineWith(others)
		}
		to[m.ModelID] = settings
	}
	loadableBest, serving := accuracy.Best{}, []*HeldModel{}
	loaders := map[ModelID][]names.AgentName{}
	for _, described := range members {
		s.view[described.Name] = described
		if m := s.members[described.Name]; m != nil && m.Revision > described.Revision {
			described = m.Member // the description sent over its link is newer than the view
		}
		for i := range described.Models {
			m := &described.Models[i]
			learn(said, m)
			if !described.Draining {
				serving = append(serving, m)
			}
		}
		for i := range described.Loadable {
			if m := &described.Loadable[i]; !described.Draining {
				learn(could, m)
				loaders[m.ModelID] = append(loaders[m.ModelID], described.Name)
				loadableBest.Add(m.Family, m.Accuracy)
				loadableBest.Require(m.Family, m.MinAccuracy)
			}
		}
	}
	if !maps.Equal(loadableBest, s.loadableBest) {
		s.loadableBest, s.modelsStale = loadableBest, true
		s.poolChanged()
	}
	for _, settings := range said { // before a query can go to one that is too inaccurate
		s.best.Add(settings.family, settings.accuracy)
		s.best.Require(settings.family, settings.floor)
	}
	serves := map[string]bool{} // families and models that members hold that do not drain
	for _, m := range serving {
		serves[m.Name] = true
		if !s.best.Excludes(m.Family, m.Accuracy) {
			serves[m.Family] = true
		}
	}
	// What no member holds, and one may load, stays in the catalogue: a family's demand is demand
	// for its best variant on any disk, or nobody would make room for that one again. Queries for
	// what no member serves wait for a load.
	before := s.onDisk
	s.loadable, s.onDisk = map[ModelID]bool{}, map[ModelID]bool{}
	s.loaders = loaders
	for id, settings := range could {
		if _, held := said[id]; held {
			continue
		}
		s.onDisk[id], said[id] = true, settings
		if !serves[cmp.Or(settings.family, id.Name)] {
			s.loadable[id] = true
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(said), ModelID.compareTo) {
		s.modelIs(id, said[id])
	}
	if !maps.Equal(before, s.onDisk) {
		s.modelsStale = true
		s.poolChanged()
	}
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		if s.view[name] == nil && name != s.cfg.Self {
			s.loseMember(s.members[name], "it is no member any more")
		}
	}
	maps.DeleteFunc(s.gone, func(name names.AgentName, _ bool) bool { return s.view[name] == nil })
	s.submitParkedFor(func(agent names.AgentName) bool { return s.view[agent] == nil })
}

// learnModel takes a member's description of a model. Settings that no member has any more are
// dropped only when the view changes.
func (s *State) learnModel(m HeldModel) *heldModel {
	settings := settingsOf(&m)
	if k := s.models[m.ModelID]; k != nil {
		settings = settings.combineWith(k.settings)
	}
	return s.modelIs(m.ModelID, settings)
}

// modelIs tells the matcher of a model that is new or whose settings have changed.
func (s *State) modelIs(id ModelID, settings settings) *heldModel {
	k := s.models[id]
	switch {
	case k == nil:
		k = &heldModel{ModelID: id, key: id.Key()}
		s.models[id] = k
		i, _ := slices.BinarySearchFunc(s.sortedModels, k, byKey)
		s.sortedModels = slices.Insert(s.sortedModels, i, k)
		if r := s.releases[id.Name]; r.OnTrial() && slices.Contains(r.Versions(), id.Version) {
			k.trial = &canary.TrialCounts{}
		}
	case k.settings == settings:
		return k
	case k.largest < settings.largest:
		s.lengthenTables(k.key, settings.largest)
	}
	k.settings, s.modelsStale = settings, true
	s.best.Add(k.family, k.accuracy)
	s.best.Require(k.family, k.floor)
	s.describeModel(k)
	s.poolChanged()
	return k
}

// describeModel tells the matcher of a model. Of each model of a family only one version answers
// for it: the one that was released, else the newest.
func (s *State) describeModel(k *heldModel) {
	k.told = s.familyOf(k)
	s.step(match.Event{
		Kind: match.ModelChanged, Model: k.key, QoSTarget: k.target, BatchSize: k.largest,
		RejectLate: k.late, Splits: k.splits, Merge: k.merge,
		Family: names.ModelKey(k.told), Accuracy: k.accuracy,
	})
}

// familyOf is the family for which a version answers, "" if it does not for any. Members leave
// variants out that are too inaccurate beside those that they know of; older members do not.
func (s *State) familyOf(k *heldModel) string {
	if k.family == "" || k.Version != s.newestOf(k.Name) ||
		s.best.Excludes(k.family, k.accuracy) {
		return ""
	}
	return k.family
}

// arrangeFamilies notes which versions answer for which family, the most accurate first. A family
// that has the name of a model cannot be asked for.
func (s *State) arrangeFamilies() {
	clear(s.families)
	for _, k := range s.sortedModels {
		if k.told != s.familyOf(k) {
			s.describeModel(k)
		}
		if k.told != "" {
			s.families[k.told] = append(s.families[k.told], k)
		}
	}
	for _, k := range s.models {
		delete(s.families, k.Name)
	}
	maps.DeleteFunc(s.unbound, func(family string, _ *heldModel) bool {
		return s.families[family] == nil
	})
	for _, all := range s.families {
		slices.SortStableFunc(all, func(a, b *heldModel) int {
			return cmp.Compare(b.accuracyOrBest(), a.accuracyOrBest())
		})
	}
}

// accuracyOrBest is the model's accuracy, 1 if it is unknown.
func (m *heldModel) accuracyOrBest() float64 { return accuracy.Known(m.accuracy) }

// lengthenTables extends the matcher's tables of a model to a larger batch size, which is about to
// become the model's largest. The matcher forgets a table that ends before the largest batch size.
func (s *State) lengthenTables(model names.ModelKey, largest int) {
	for _, known := range s.Latencies() {
		if known.Model != model || known.Table.Largest() >= largest || known.Profile == nil {
			continue
		}
		table, err := match.NewTable(known.Profile, largest)
		if err != nil {
			continue // keep the shorter table: the learning loop will send a longer one
		}
		longer := *known
		longer.Table = table
		s.latencies[known.TableKey] = &longer
		s.step(match.Event{
			Kind: match.ProfileChanged, Model: model, Type: known.Type, Table: table,
			Doubtful: known.Doubtful,
		})
	}
}

// poolChanged recomputes what depends on which lanes there are: the newest versions, the models
// served, and the pool that the learning loop knows. Its cost is that of the members that have
// changed, beside a copy of the list of members, unless the models that are held or served have
// changed or the releases.
func (s *State) poolChanged() {
	s.countMembers()
	stale := s.modelsStale
	var served map[ModelID]bool
	if s.modelsStale = false; stale {
		served = s.countModels()
	}
	s.addAction(PoolChanged).Pool = &Pool{
		Members: s.poolMembers, Models: s.poolModels, Loadable: s.onDisk,
	}
	if !stale {
		return
	}
	s.arrangeFamilies()
	before := s.served
	if s.served = served; s.servedVersionsChanged(before) {
		// Queries may wait for a version that no lane serves any more.
		s.rebindQueries(func(q *query, _ ModelID) bool { return !s.served[q.model.ModelID] })
	}
}

// servedVersionsChanged reports whether other versions of a model are served than before, and there
// are several.
func (s *State) servedVersionsChanged(before map[ModelID]bool) bool {
	for i, m := range s.sortedModels {
		several := i > 0 && s.sortedModels[i-1].Name == m.Name ||
			i+1 < len(s.sortedModels) && s.sortedModels[i+1].Name == m.Name
		if several && before[m.ModelID] != s.served[m.ModelID] {
			return true
		}
	}
	return false
}

// countMembers counts the members that have changed by the models that they hold, and lists them.
func (s *State) countMembers() {
	if len(s.changedMembers) == 0 {
		return
	}
	s.poolMembers = slices.Clone(s.poolMembers) // the learning loop has the former
	for _, m := range s.changedMembers {
		there := s.members[m.Name] == m
		s.countMember(m, -1)
		if m.counted, m.serves = nil, false; there {
			m.counted, m.serves = m.holds, !m.Draining
		}
		s.countMember(m, 1)
		i, listed := slices.BinarySearchFunc(s.poolMembers, m.Name,
			func(p PoolMember, name names.AgentName) int { return cmp.Compare(p.Name, name) })
		switch {
		case there:
			holds := make([]ModelID, len(m.holds))
			for k, held := range m.holds {
				holds[k] = held.ModelID
			}
			if !listed {
				s.poolMembers = slices.Insert(s.poolMembers, i, PoolMember{})
			}
			s.poolMembers[i] = PoolMember{m.Member, holds}
		case listed && s.members[m.Name] == nil:
			s.poolMembers = slices.Delete(s.poolMembers, i, i+1)
		}
	}
	clear(s.changedMembers)
	s.changedMembers = s.changedMembers[:0]
}

// countMember adds n to the counts of the models for which m is counted.
func (s *State) countMember(m *member, n int) {
	for _, held := range m.counted {
		if held.held += n; held.held == 0 || held.held == n {
			s.modelsStale = true
		}
		if !m.serves {
			continue
		}
		if held.serving += n; held.serving == 0 || held.serving == n {
			s.modelsStale = true
		}
	}
}

// countModels recomputes what depends on the models, and returns those that are served.
func (s *State) countModels() (served map[ModelID]bool) {
	clear(s.newest)
	s.best = maps.Clone(s.loadableBest)
	// The learned way to a lane is at most a quarter of the shortest QoS target of the models that
	// lanes hold. A longer way, whether real or due to starved processes, is not compensated for:
	// deciding that early would leave no query in time.
	s.aheadMost = time.Duration(math.MaxInt64)
	served = map[ModelID]bool{}
	for _, m := range s.sortedModels {
		s.best.Add(m.family, m.accuracy)
		s.best.Require(m.family, m.floor)
		if m.held > 0 {
			s.aheadMost = min(s.aheadMost, m.target/4)
		}
		if m.serving > 0 {
			s.newest[m.Name] = s.releases[m.Name].Prefer(s.newest[m.Name], m.Version)
			served[m.ModelID] = true
		}
	}
	s.poolModels = nil // the learning loop has the former
	for _, m := range s.sortedModels {
		s.poolModels = append(s.poolModels, HeldModel{
			ModelID: m.ModelID, QoSTarget: m.target, Share: m.share, Largest: m.largest,
			RejectLate: m.late, Splits: m.splits, Family: s.familyOf(m), Accuracy: m.accuracy,
			MinAccuracy: m.floor, TargetAccuracy: m.aim,
		})
	}
	return served
}

// newestOf is the version of a model for queries that name no version and are not a canary's. Of
// the versions on lanes that do not drain it is the released one, else the newest. If there is none
// on such lanes, the same rule holds for the versions that any member has.
func (s *State) newestOf(name string) int64 {
	if v, ok := s.newest[name]; ok {
		return v
	}
	newest, prefix := int64(0), name+"/"
	from, _ := slices.BinarySearchFunc(s.sortedModels, prefix,
		func(m *heldModel, prefix string) int { return cmp.Compare(string(m.key), prefix) })
	for _, m := range s.sortedModels[from:] {
		if !strings.HasPrefix(string(m.key), prefix) {
			break
		}
		if m.Name == name {
			newest = s.releases[name].Prefer(newest, m.Version)
		}
	}
	return newest
}

// Newest returns id, with the version that serves a query that names none and is not a canary's.
func (s *State) Newest(id ModelID) ModelID {
	if id.Version == 0 {
		id.Version = s.newestOf(id.Name)
	}
	return id
}

// Knows reports whether a member holds, lately held or could load the version, or a variant of the
// family.
func (s *State) Knows(id ModelID) bool {
	return s.models[id] != nil || id.Version == 0 && s.families[id.Name] != nil
}

// forgetGone forgets the models and tables that the learning loop reports as gone, except those
// that have come back.
func (s *State) forgetGone(e *Event) {
	for _, key := range e.Tables {
		if s.latencies[key] != nil {
			delete(s.latencies, key)
			s.step(match.Event{Kind: match.ProfileChanged, Model: key.Model, Type: key.Type})
		}
	}
	asked := s.heldVersions()
	maps.Copy(asked, s.onDisk)
	for _, g := range s.gateways {
		for _, q := range g.queries {
			if q.model != nil {
				asked[q.model.ModelID] = true
			}
		}
	}
	for _, id := range e.Models {
		m := s.models[id]
		if m == nil || asked[id] {
			continue
		}
		delete(s.models, id)
		s.sortedModels = slices.DeleteFunc(s.sortedModels,
			func(o *heldModel) bool { return o == m })
		s.modelsStale = true
		maps.DeleteFunc(s.latencies,
			func(k names.TableKey, _ *Latency) bool { return k.Model == m.key })
		s.step(match.Event{Kind: match.ModelGone, Model: m.key})
	}
	there := map[string]bool{}
	for _, m := range s.models {
		there[m.familyName()] = true
	}
	maps.DeleteFunc(s.counts, func(name string, _ *FamilyCount) bool { return !there[name] })
	s.poolChanged()
}

// applyAdvice takes the learning loop's advice.
func (s *State) applyAdvice(a *Advice) {
	current := make([]*Latency, 0, len(a.Latencies))
	for _, l := range a.Latencies {
		if m := s.modelOf(l.Model); m != nil && l.Table.Largest() >= m.largest {
			current = append(current, l) // the others were made before the model changed
		}
	}
	for i, l := range current {
		s.latencies[l.TableKey], s.modelOf(l.Model).law = l, l.Law
		s.step(match.Event{
			Kind: match.ProfileChanged, Model: l.Model, Type: l.Type, Table: l.Table,
			Doubtful: l.Doubtful, More: i+1 < len(current),
		})
	}
	if a.Factors != nil {
		s.factors, s.slow = a.Factors, a.Slow
		for _, name := range slices.Sorted(maps.Keys(s.members)) {
			m := s.members[name]
			typ := s.typeOf(m.Member)
			if typ == m.typ {
				continue
			}
			note := s.addAction(Departs)
			note.Agent, note.Factor, note.Known = name, s.factors[name], typ != m.Type
			m.typ = typ
			s.arrangeLanes(m, nil)
			s.poolChanged()
		}
	}
	if a.Priced {
		s.limit = a.Limit
		s.setUnmet(a.Unmet)
	}
	if a.Prices != nil {
		s.prices = a.Prices
		s.step(match.Event{Kind: match.PricesChanged, Prices: a.Prices})
		s.addAction(TellPrices).Prices = a.Prices
	}
	if len(a.Latencies) > 0 {
		s.addAction(TellLatencies).Latencies = a.Latencies
	}
}

// setUnmet notes which models miss their QoS targets, and says which do so anew or no more.
func (s *State) setUnmet(unmet []Unmet) {
	before := s.unmet
	s.unmet = make(map[ModelID]float64, len(unmet))
	for _, u := range unmet {
		s.unmet[u.Model] = u.Share
		if before[u.Model] == 0 {
			note := s.addAction(TargetUnmet)
			note.Model, note.Share, note.Message = u.Model, u.Share, s.whyUnmet(u.Model)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(before), ModelID.compareTo) {
		if s.unmet[id] == 0 {
			s.addAction(TargetUnmet).Model = id
		}
	}
}

// whyUnmet says why a model misses its QoS target.
func (s *State) whyUnmet(id ModelID) string {
	served := s.served[id]
	if m := s.models[id]; m != nil { // a family's queries count for its best variant, held or not
		served = served || slices.ContainsFunc(s.families[m.told],
			func(v *heldModel) bool { return s.served[v.ModelID] })
	}
	if !served {
		return "no agent that takes queries holds the model"
	}
	return "no lane answers these queries within the QoS target, however idle"
}

// modelOf is the model with a key, nil if there is none.
func (s *State) modelOf(key names.ModelKey) *heldModel {
	i, ok := slices.BinarySearchFunc(s.sortedModels, key,
		func(m *heldModel, key names.ModelKey) int { return cmp.Compare(m.key, key) })
	if !ok {
		return nil
	}
	return s.sortedModels[i]
}
