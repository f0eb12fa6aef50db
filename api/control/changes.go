package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/muster-serve/muster/api/names"
)

// A HeardLoad is a load of an agent with the time At, by this machine's clock, when the agent sent
// it. The load must not change; two loads of an agent are different messages.
type HeardLoad struct {
	*LaneLoad
	At time.Time
}

// Now returns the load as a message with its age at the time now.
func (h HeardLoad) Now(now time.Time) *LaneLoad {
	return &LaneLoad{
		Agent: h.Agent, AgeNs: int64(max(0, now.Sub(h.At))), RemainingNs: h.RemainingNs,
		Waiting: h.Waiting,
	}
}

// Changes computes the messages for watchers of a view: what has changed since the last message. It
// keeps its arguments, and its results refer to them, so neither may be changed. The zero value is
// ready to use. It is not safe for concurrent use.
type Changes struct {
	view      *View // the last view given to Next
	revision  uint64
	members   map[string]*toldMember
	profiles  map[names.TableKey]*Profile
	models    map[string]*toldModel // those that members hold or may load, by their encoded content
	lastModel uint64
	loads     map[string]HeardLoad // the last load sent of each member
}

type toldMember struct {
	*Member
	holds, could []*toldModel // its models, and those that it may load
}

type toldModel struct {
	*Model  // a copy with its number set
	content string
	holders int
}

// Next returns the changes from the last view to v, or nil if there are none. v must have no loads,
// and a member that has not changed must be the same message as before. Both must not be changed
// afterwards.
func (c *Changes) Next(v *View) *View {
	if c.members == nil {
		*c = Changes{view: &View{}, revision: 1, members: map[string]*toldMember{},
			profiles: map[names.TableKey]*Profile{},
			models:   map[string]*toldModel{}, loads: map[string]HeardLoad{}}
	}
	before := c.view
	if v == before {
		return nil
	}
	c.view = v
	change := &View{AheadNs: v.AheadNs}
	if !proto.Equal(v.Leadership, before.Leadership) {
		change.Leadership = v.Leadership
	}
	if !slices.EqualFunc(v.Prices, before.Prices, func(a, b *TypePrice) bool {
		return a == b ||
			proto.Equal(a, b)
	}) {
		change.Prices, change.NoPrices = v.Prices, len(v.Prices) == 0
	}
	if !sameReleases(v.Releases, before.Releases) {
		change.Releases, change.NoReleases = v.Releases, len(v.Releases) == 0
	}
	c.nextMembers(v.Members, change)
	c.nextProfiles(v.Profiles, change)
	if v.AheadNs == before.AheadNs && !change.hasChanges() {
		return nil
	}
	return c.step(change)
}

// hasChanges reports whether a change, or a whole view, says anything but loads and times.
func (v *View) hasChanges() bool {
	return v.GetLeadership() != nil || v.GetNoPrices() || v.GetNoReleases() ||
		len(v.GetPrices())+len(v.GetMembers())+len(v.GetGone())+len(v.GetProfiles())+
			len(v.GetReleases()) > 0
}

// sameReleases reports whether two lists of releases say the same.
func sameReleases(a, b []*Release) bool {
	return slices.EqualFunc(a, b, func(a, b *Release) bool { return a == b || proto.Equal(a, b) })
}

// step numbers change as the step from the current revision to the next.
func (c *Changes) step(change *View) *View {
	change.Base = c.revision
	c.revision++
	change.Revision = c.revision
	return change
}

func (c *Changes) nextMembers(members []*Member, change *View) {
	for _, m := range members {
		told := c.members[m.GetName()]
		if told != nil && told.Member == m {
			continue
		}
		fresh := &toldMember{Member: m}
		fresh.holds = c.holdModels(m.GetModels(), change)
		fresh.could = c.holdModels(m.GetLoadable(), change)
		if told != nil {
			c.release(told) // released last, so that a model in both stays
		}
		c.members[m.GetName()] = fresh
		change.Members = append(change.Members, fresh.toMessage())
	}
	if len(c.members) == len(members) {
		return
	}
	there := make(map[string]bool, len(members))
	for _, m := range members {
		there[m.GetName()] = true
	}
	for name, told := range c.members {
		if !there[name] {
			c.release(told)
			delete(c.members, name)
			delete(c.loads, name)
			change.Gone = append(change.Gone, name)
		}
	}
}

// holdModels returns the entries of a member's models, and tells of those that are new.
func (c *Changes) holdModels(all []*Model, change *View) (told []*toldModel) {
	for _, model := range all {
		known := c.modelEntry(model)
		if known.holders++; known.holders == 1 {
			change.Models = append(change.Models, known.Model)
		}
		told = append(told, known)
	}
	return told
}

// modelEntry returns the entry for m's content: members with equal models share one entry, which is
// sent once.
func (c *Changes) modelEntry(m *Model) *toldModel {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // invalid UTF-8, which no message from the wire has; treat m as unique
		content = fmt.Appendf(nil, "%p", m)
	}
	known := c.models[string(content)]
	if known == nil {
		c.lastModel++
		told := shallowCopy(m)
		told.Number = c.lastModel
		known = &toldModel{Model: told, content: string(content)}
		c.models[known.content] = known
	}
	return known
}

func (c *Changes) release(m *toldMember) {
	for _, all := range [][]*toldModel{m.holds, m.could} {
		for _, model := range all {
			if model.holders--; model.holders == 0 {
				delete(c.models, model.content)
			}
		}
	}
}

// toMessage returns the member as it is sent: with the models' numbers in place of the models.
func (m *toldMember) toMessage() *Member {
	w := shallowCopy(m.Member)
	w.Models, w.Held = nil, modelNumbers(m.holds)
	w.Loadable, w.Could = nil, modelNumbers(m.could)
	return w
}

func modelNumbers(of []*toldModel) []uint64 {
	all := make([]uint64, len(of))
	for i, model := range of {
		all[i] = model.Number
	}
	return all
}

// shallowCopy returns a copy of a message that shares the values of its fields.
func shallowCopy[M proto.Message](m M) M {
	c := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		c.Set(field, value)
		return true
	})
	return c.Interface().(M)
}

func (c *Changes) nextProfiles(profiles []*Profile, change *View) {
	for _, p := range profiles {
		key := p.TableKey()
		if told := c.profiles[key]; told == nil ||
			told != p && !p.isLike(told) {
			c.profiles[key] = p
			change.Profiles = append(change.Profiles, p)
		}
	}
	if len(c.profiles) == len(profiles) {
		return
	}
	there := make(map[names.TableKey]bool, len(profiles))
	for _, p := range profiles {
		there[p.TableKey()] = true
	}
	for key := range c.profiles {
		if !there[key] {
			delete(c.profiles, key)
			change.Profiles = append(change.Profiles, &Profile{
				Model: string(key.Model), Type: string(key.Type),
			})
		}
	}
}

// NextLoads returns a change with the members' loads that are new since the last call. If none is,
// the change has only a revision, which shows watchers that the sender lives. Next must have been
// called before.
func (c *Changes) NextLoads(loads []HeardLoad, now time.Time) *View {
	change := &View{AheadNs: c.view.AheadNs}
	for _, l := range loads {
		if c.members[l.Agent] != nil && c.loads[l.Agent].LaneLoad != l.LaneLoad {
			c.loads[l.Agent] = l
			change.Loads = append(change.Loads, l.Now(now))
		}
	}
	return c.step(change)
}

// Whole returns the current state as one message, for a watcher that has no revision or one too
// old.
func (c *Changes) Whole(now time.Time) *View {
	v := &View{
		Leadership: c.view.Leadership, Prices: c.view.Prices, Profiles: c.view.Profiles,
		AheadNs: c.view.AheadNs, Revision: c.revision, Releases: c.view.Releases,
	}
	for _, m := range c.view.Members {
		v.Members = append(v.Members, c.members[m.GetName()].toMessage())
	}
	for _, model := range c.models {
		v.Models = append(v.Models, model.Model)
	}
	slices.SortFunc(v.Models, func(a, b *Model) int { return cmp.Compare(a.Number, b.Number) })
	for _, l := range c.loads {
		v.Loads = append(v.Loads, l.Now(now))
	}
	slices.SortFunc(v.Loads, func(a, b *LaneLoad) int { return cmp.Compare(a.Agent, b.Agent) })
	return v
}

// Revision returns the revision of the last step; 0 before the first.
func (c *Changes) Revision() uint64 { return c.revision }

// A ViewBuilder builds a view from the messages of a Watch stream. The zero value is ready for the
// first message. It is not safe for concurrent use.
type ViewBuilder struct {
	view     *View
	members  map[string]*Member
	models   map[uint64]*Model
	profiles map[names.TableKey]*Profile
}

// Take applies the next message of the stream, a change or a whole view, which belongs to the
// ViewBuilder afterwards. It reports whether the view has changed; loads are not a part of it.
// After an error the caller must open a new Watch stream.
func (w *ViewBuilder) Take(v *View) (changed bool, err error) {
	before := w.view
	whole := v.GetBase() == 0
	if whole {
		*w = ViewBuilder{
			members: map[string]*Member{}, models: map[uint64]*Model{},
			profiles: map[names.TableKey]*Profile{},
		}
		before = &View{}
	} else if v.GetBase() != before.GetRevision() {
		return false, fmt.Errorf("a change of the view %d of the fleet, found that of view %d",
			before.GetRevision(), v.GetBase())
	}
	now := &View{Leadership: before.Leadership, Prices: before.Prices, Members: before.Members,
		Profiles: before.Profiles, Releases: before.Releases,
		AheadNs: v.GetAheadNs(), Revision: v.GetRevision()}
	w.view = now
	if v.GetLeadership() != nil {
		now.Leadership = v.GetLeadership()
	}
	if len(v.GetPrices()) > 0 || v.GetNoPrices() {
		now.Prices = v.GetPrices()
	}
	if len(v.GetReleases()) > 0 || v.GetNoReleases() {
		now.Releases = v.GetReleases()
	}
	if err := w.takeMembers(v); err != nil {
		return false, err
	}
	for _, p := range v.GetProfiles() {
		key := p.TableKey()
		if !whole && len(p.GetTable()) == 0 {
			delete(w.profiles, key)
		} else {
			w.profiles[key] = p
		}
	}
	if len(v.GetMembers())+len(v.GetGone()) > 0 {
		now.Members = slices.SortedFunc(maps.Values(w.members),
			func(a, b *Member) int { return cmp.Compare(a.GetName(), b.GetName()) })
	}
	if len(v.GetProfiles()) > 0 {
		now.Profiles = slices.SortedFunc(maps.Values(w.profiles), func(a, b *Profile) int {
			return cmp.Or(cmp.Compare(a.GetModel(), b.GetModel()),
				cmp.Compare(a.GetType(), b.GetType()))
		})
	}
	return whole || v.GetAheadNs() != before.GetAheadNs() || v.hasChanges(), nil
}

func (w *ViewBuilder) takeMembers(v *View) error {
	for _, m := range v.GetModels() {
		w.models[m.GetNumber()] = m
	}
	for _, name := range v.GetGone() {
		delete(w.members, name)
	}
	for _, m := range v.GetMembers() {
		var err error
		if m.Models, err = w.addModels(m, m.GetHeld(), m.Models); err != nil {
			return err
		}
		if m.Loadable, err = w.addModels(m, m.GetCould(), m.Loadable); err != nil {
			return err
		}
		w.members[m.GetName()] = m
	}
	if len(v.GetMembers())+len(v.GetGone()) == 0 {
		return nil
	}
	held := map[uint64]bool{}
	for _, m := range w.members {
		for _, number := range slices.Concat(m.GetHeld(), m.GetCould()) {
			held[number] = true
		}
	}
	maps.DeleteFunc(w.models, func(number uint64, _ *Model) bool { return !held[number] })
	return nil
}

// addModels adds the models of the numbers, which are a member's, to all.
func (w *ViewBuilder) addModels(m *Member, numbers []uint64, all []*Model) ([]*Model, error) {
	for _, number := range numbers {
		model := w.models[number]
		if model == nil {
			return nil, fmt.Errorf("member %q holds model number %d, which was not told",
				m.GetName(), number)
		}
		all = append(all, model)
	}
	return all, nil
}

// View returns the current view, without loads; nil before the first message. It is never changed
// later, and the caller must not change it.
func (w *ViewBuilder) View() *View { return w.view }
