package dashboard

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/profiles"
)

type profilesJSON struct {
	Models []modelProfilesJSON `json:"models"`
}

type modelProfilesJSON struct {
	Model    int               `json:"model"`
	Name     string            `json:"name"`
	Version  int64             `json:"version"`
	TargetMs number            `json:"target_ms"`
	Types    []typeProfileJSON `json:"types"`
}

type typeProfileJSON struct {
	Type     string     `json:"type"`
	Provider string     `json:"provider"`
	Cores    uint32     `json:"cores"`
	Agent    string     `json:"agent"`
	Learned  *tableJSON `json:"learned"`
	Shipped  *tableJSON `json:"shipped"`
}

type tableJSON struct {
	Source        string  `json:"source"`
	Batch         []int   `json:"batch"`
	MeanMs        numbers `json:"mean_ms"`
	P99Ms         numbers `json:"p99_ms"`
	LargestInTime int     `json:"largest_in_time"`
}

// drawnSizes are the batch sizes at which a profile is drawn: by the same ratio, all up to 8.
var drawnSizes = func() (sizes []int) {
	for b := 1.0; b < profiles.MaxBatchSize; b = max(b+1, b*1.12) {
		sizes = append(sizes, int(b))
	}
	return append(sizes, profiles.MaxBatchSize)
}()

// tableOf returns a profile up to the largest batch size.
func tableOf(t *profiles.Table, target int64, largest int) *tableJSON {
	out := &tableJSON{Source: t.Source(), Batch: []int{}}
	for _, b := range drawnSizes {
		if b = min(b, largest); len(out.Batch) > 0 && out.Batch[len(out.Batch)-1] == b {
			break
		}
		out.Batch = append(out.Batch, b)
		out.MeanMs = append(out.MeanMs, float64(t.Mean(b))/1e6)
		out.P99Ms = append(out.P99Ms, float64(t.Quantile(0.99, b))/1e6)
	}
	out.LargestInTime = t.LargestBatchSize(control.Duration(target), largest)
	return out
}

// serveProfiles serves GET /dashboard/api/profiles.
func (d *Dashboard) serveProfiles(w http.ResponseWriter, req *http.Request) {
	model, text := req.URL.Query().Get("model"), req.URL.Query().Get("version")
	version, err := strconv.ParseInt(cmp.Or(text, "0"), 10, 64)
	if err != nil || version < 0 {
		writeError(w, http.StatusBadRequest, "version: want a number, or none for all")
		return
	}
	view, sees := d.config.View(), d.visibilityOf(req.Context())
	if model != "" && !sees(model) {
		writeError(w, http.StatusForbidden, "this client may not query the model")
		return
	}
	fleet := control.NewFleet(view, nil, nil)
	out := profilesJSON{Models: []modelProfilesJSON{}}
	shown := 0
	for _, m := range fleet.GetModels() {
		if !sees(m.GetName()) {
			continue
		}
		at := shown
		shown++
		if model != "" && (m.GetName() != model || version != 0 && m.GetVersion() != version) {
			continue
		}
		out.Models = append(out.Models, modelProfilesJSON{
			Model: at, Name: m.GetName(), Version: m.GetVersion(),
			TargetMs: toMs(float64(m.GetQosTargetNs())),
			Types:    d.profilesOf(view, m),
		})
	}
	if model != "" && len(out.Models) == 0 {
		writeError(w, http.StatusNotFound, "no agent holds the model")
		return
	}
	writeJSON(w, out)
}

// profilesOf returns the profiles of a model on each type of lanes that holds it, and on single
// agents that depart from their type.
func (d *Dashboard) profilesOf(view *control.View, m *control.FleetModel) (
	all []typeProfileJSON) {
	key := names.NewModelKey(m.GetName(), m.GetVersion())
	learned := map[names.LaneType]*profiles.Table{}
	for _, p := range view.GetProfiles() {
		var t profiles.Table
		if p.TableKey().Model == key && json.Unmarshal(p.GetTable(), &t) == nil &&
			t.Origin() == profiles.Learned {
			learned[p.TableKey().Type] = &t
		}
	}
	largest := int(min(max(1, m.GetLargestBatchSize()), profiles.MaxBatchSize))
	add := func(member *control.Member, typ names.LaneType, agent string) {
		one := typeProfileJSON{
			Type: member.GetInstanceType(), Provider: member.GetProvider(),
			Cores: member.CoresOf(member.PartOf(m.GetName())), Agent: agent,
		}
		if t := learned[typ]; t != nil {
			one.Learned = tableOf(t, m.GetQosTargetNs(), largest)
		}
		t, err := d.config.Library.Table(m.GetName(),
			profiles.InstanceType(member.GetInstanceType()))
		if err == nil {
			one.Shipped = tableOf(t, m.GetQosTargetNs(), largest)
		}
		all = append(all, one)
	}
	seen := map[names.LaneType]bool{}
	for _, member := range view.GetMembers() {
		holds := slices.ContainsFunc(member.GetModels(),
			func(held *control.Model) bool { return held.Key() == key })
		if !holds {
			continue
		}
		typ := member.LaneTypeOf(m.GetName())
		if !seen[typ] {
			seen[typ] = true
			add(member, typ, "")
		}
		if own := typ.Own(member.AgentName()); learned[own] != nil {
			add(member, own, member.GetName())
		}
	}
	slices.SortFunc(all, func(a, b typeProfileJSON) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Provider, b.Provider),
			cmp.Compare(a.Cores, b.Cores), cmp.Compare(a.Agent, b.Agent))
	})
	return all
}

// serveWhy serves GET /dashboard/api/why: why queries of the last minute were late, of one model or of
// all that the caller may query. It is of the last beat, which an agent has while a page is open.
func (d *Dashboard) serveWhy(w http.ResponseWriter, req *http.Request) {
	model, sees := req.URL.Query().Get("model"), d.visibilityOf(req.Context())
	if model != "" && !sees(model) {
		writeError(w, http.StatusForbidden, "this client may not query the model")
		return
	}
	missed, fleet := d.hub.missedQueries()
	of := visibleMissed(missed, fleet, classOf(fleet, sees, false)).Of(model)
	writeJSON(w, of.Report())
}

type planJSON struct {
	Number      uint64      `json:"number"`
	State       string      `json:"state"` // "": there is no plan, or it is an older leader's
	AgeMs       number      `json:"age_ms"`
	Trigger     string      `json:"trigger"`
	Priced      bool        `json:"priced"`
	Rate        number      `json:"rate"`
	Change      bool        `json:"change"`
	Gain        number      `json:"gain"`
	Reason      string      `json:"reason"`
	Notes       []string    `json:"notes"`
	Now         *choiceJSON `json:"now"`
	Proposed    *choiceJSON `json:"proposed"`
	Approximate bool        `json:"approximate"`
	More        []gainJSON  `json:"more"`
}

type choiceJSON struct {
	Instances []countJSON `json:"instances"`
	Price     number      `json:"price"`
	Limit     number      `json:"limit"`
	Allowable number      `json:"allowable"`
	Binding   string      `json:"binding"`
}

type countJSON struct {
	Type  string `json:"type"`
	Count uint32 `json:"count"`
	Price number `json:"price"`
}

type gainJSON struct {
	Type  string `json:"type"`
	Rate  number `json:"rate"`
	Price number `json:"price"`
}

func choiceOf(c *control.Plan_Choice) *choiceJSON {
	if c == nil {
		return nil
	}
	out := &choiceJSON{
		Instances: []countJSON{}, Price: unknownIfZero(c.GetPrice()),
		Limit:     unknownIfZero(c.GetLimit()),
		Allowable: unknownIfZero(c.GetAllowable()), Binding: c.GetBinding(),
	}
	for _, i := range c.GetInstances() {
		out.Instances = append(out.Instances, countJSON{
			i.GetType(), i.GetCount(), unknownIfZero(i.GetPrice()),
		})
	}
	return out
}

// servePlan serves GET /dashboard/api/plan.
func (d *Dashboard) servePlan(w http.ResponseWriter, req *http.Request) {
	if d.refuseWithout(w, req, secure.Plan) {
		return
	}
	p := d.hub.Planned()
	out := planJSON{
		Number: p.GetNumber(), State: p.GetState(), AgeMs: toMs(float64(p.GetAgeNs())),
		Trigger: p.GetTrigger(),
		Priced:  p.GetPriced(), Rate: unknownIfZero(p.GetRate()), Change: p.GetChange(),
		Gain: number(p.GetGain()), Reason: p.GetReason(), Notes: []string{},
		Now: choiceOf(p.GetNow()), Proposed: choiceOf(p.GetProposed()),
		Approximate: p.GetApproximate(), More: []gainJSON{},
	}
	if p == nil {
		out.Reason = "the leader has made no plan yet"
		out.AgeMs = number(math.NaN())
	}
	out.Notes = append(out.Notes, p.GetNotes()...)
	for _, g := range p.GetMore() {
		out.More = append(out.More, gainJSON{
			g.GetType(), number(g.GetRate()), unknownIfZero(g.GetPrice()),
		})
	}
	writeJSON(w, out)
}
