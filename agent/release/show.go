package release

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/canary"
)

// State returns the release of a model, or of all models if that is "", with what this agent has
// counted of trials as the leader. It says nothing of who made a release: that is for those who may
// read events.
func (r *Releases) State(model string) (*control.ReleaseResponse, error) {
	r.mu.Lock()
	out, term := &control.ReleaseResponse{}, r.term
	for _, x := range r.All() {
		if model == "" || x.Model == model {
			out.Releases = append(out.Releases, r.toState(x))
		}
	}
	r.mu.Unlock()
	if model == "" || len(out.Releases) > 0 {
		return out, nil
	}
	if term != nil {
		if served := term.Serving(); len(served[model]) == 0 {
			return nil, unknownModelError(model, served)
		}
	}
	return nil, status.Errorf(codes.NotFound, "no version of %.80q was released: its newest "+
		"version serves", model)
}

// unknownModelError is the error of a model that no agent serves.
func unknownModelError(model string, served map[string][]int64) error {
	there := "no model"
	if len(served) > 0 {
		there = strings.Join(slices.Sorted(maps.Keys(served)), ", ")
	}
	return status.Errorf(codes.NotFound, "no agent serves model %.80q, the fleet serves: %s", model,
		there)
}

// StateOf says in words what a release says: "released", "on trial" or "taken back".
func StateOf(x *control.Release) string {
	switch {
	case x.GetCanary() == 0:
		return "released"
	case x.GetShare() == 0:
		return "taken back"
	}
	return "on trial"
}

// toState makes the state of a release. r.mu is held.
func (r *Releases) toState(x *control.Release) *control.ReleaseState {
	s := &control.ReleaseState{
		Release: &control.Release{
			Model: x.Model, Number: x.Number, Current: x.Current, Canary: x.Canary, Share: x.Share,
			Previous: x.Previous, Why: x.Why, TimeUnixNs: x.TimeUnixNs, Tolerance: x.Tolerance,
			PromoteAfterNs: x.PromoteAfterNs, PromoteQueries: x.PromoteQueries,
			Kept: x.Kept, MaxDifference: x.MaxDifference,
		},
		State: StateOf(x),
	}
	if needsStoring(x) {
		s.Release.Why += "; in this fleet only: it is not written to the model store"
	}
	s.Verdict = s.Release.Why
	t := r.trials[x.Model]
	switch {
	case !canary.RolloutOf(x).OnTrial():
	case t != nil && t.serves:
		s.Verdict = t.verdict
	case t != nil:
		s.State, s.Verdict = "waits for agents", t.verdict
	default:
		s.Verdict = "the leader has not looked yet"
	}
	if t != nil && x.Canary != 0 {
		s.AgeNs = int64(t.age)
		s.Current, s.Canary = toVersionCounts(&t.counted.Current),
			toVersionCounts(&t.counted.Canary)
		s.Current.Slow, s.Canary.Slow = t.counted.Slow()
		a := &t.counted.Answers
		s.Answers = &control.AnswersCompared{
			Model: x.Model, Canary: x.Canary, Current: x.Current, Compared: a.Compared,
			Wrong: a.Wrong, Sum: a.Sum, Most: a.Most,
		}
	}
	return s
}

func toVersionCounts(c *canary.TrialCounts) *control.VersionCounts {
	total := c.Total()
	return &control.VersionCounts{
		Queries: total.Queries(), Late: total.Late, Failed: total.Failed, Runs: c.Runs.Total,
		P50Ns: int64(c.Times.Quantile(.5)), P99Ns: int64(c.Times.Quantile(.99)),
	}
}

var (
	versionDesc = prometheus.NewDesc("muster_release_version",
		"Versions of the models that were released, as this agent knows them; the role is "+
			"current or "+
			"canary.", []string{"model", "role"}, nil)
	shareDesc = prometheus.NewDesc("muster_release_canary_share",
		"Share of a model's queries that go to its canary; 0 after it was taken back.",
		[]string{"model"}, nil)
	queriesDesc = prometheus.NewDesc("muster_release_trial_queries",
		"Queries of a trial that have ended, as the leader counts them, by version and outcome: "+
			"ok, "+
			"late or failed.", []string{"model", "version", "outcome"}, nil)
	comparedDesc = prometheus.NewDesc("muster_release_trial_answers",
		"Answers of a trial that were compared, as the leader counts them: alike or wrong.",
		[]string{"model", "outcome"}, nil)
)

// collectMetrics makes the metrics.
func (r *Releases) collectMetrics(out chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, x := range r.All() {
		gauge(versionDesc, float64(x.Current), x.Model, "current")
		if x.Canary == 0 {
			continue
		}
		gauge(versionDesc, float64(x.Canary), x.Model, "canary")
		gauge(shareDesc, x.Share, x.Model)
		t := r.trials[x.Model]
		if t == nil {
			continue
		}
		for version, c := range map[int64]*canary.TrialCounts{
			x.Current: &t.counted.Current, x.Canary: &t.counted.Canary,
		} {
			v, total := strconv.FormatInt(version, 10), c.Total()
			gauge(queriesDesc, float64(total.Answered-total.Late), x.Model, v, "ok")
			gauge(queriesDesc, float64(total.Late), x.Model, v, "late")
			gauge(queriesDesc, float64(total.Failed), x.Model, v, "failed")
		}
		a := &t.counted.Answers
		gauge(comparedDesc, float64(a.Compared-a.Wrong), x.Model, "alike")
		gauge(comparedDesc, float64(a.Wrong), x.Model, "wrong")
	}
}
