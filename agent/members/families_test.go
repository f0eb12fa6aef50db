package members

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// held is a model as an agent describes it.
func held(name, family string, changes ...func(*control.Model)) *control.Model {
	m := &control.Model{
		Name: name, Version: 1, Newest: true, Family: family, Accuracy: .9, LargestBatchSize: 10,
		QosTargetNs: 25e6, QosPercentile: .99, DeadlineNs: 250e6,
		Metadata: &inference.ModelMetadataResponse{
			Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "ids", Datatype: "INT64", Shape: []int64{-1, 4}},
			},
			Outputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "y", Datatype: "FP32", Shape: []int64{-1, 1}},
			},
		},
	}
	for _, change := range changes {
		change(m)
	}
	return m
}

// agentWith is an agent of this version that joined as the given one and holds models.
func agentWith(name string, joined uint64, models ...*control.Model) *control.Member {
	return &control.Member{
		Name: name, Joined: joined, Protocol: control.Spoken.Oldest,
		NewestProtocol: control.Spoken.Newest, Models: models,
	}
}

func TestWithdraw(t *testing.T) {
	slow := func(m *control.Model) { m.QosTargetNs = 30e6 }
	wide := func(m *control.Model) { m.Metadata.Inputs[0].Shape[1] = 5 }
	rejects := func(m *control.Model) { m.RejectLate = true }
	guesses := func(m *control.Model) { m.Accuracy = .044 }
	first := agentWith("first", 1, held("wnd", "ctr"), held("ncf", ""))
	for _, c := range []struct {
		name   string
		own    *control.Member
		before []*control.Member
		later  []*control.Member
		want   string // the models left, with their families
		apart  []string
	}{
		{"a second variant", agentWith("me", 2, held("wnd-int8", "ctr")),
			[]*control.Member{first}, nil, "wnd-int8 of ctr", nil},
		{"too inaccurate", agentWith("me", 2, held("wnd-lowrank64", "ctr", guesses),
			held("wnd-int8", "ctr")), []*control.Member{first}, nil,
			"wnd-lowrank64 wnd-int8 of ctr", []string{
				`wnd-lowrank64: served under its own name only: too inaccurate for family "ctr": ` +
					`its accuracy is 0.044, less than 0.8 of the best one's, 0.9; make a more ` +
					`accurate variant, state a lower min_accuracy for the family, or remove the key ` +
					`family from its model.yaml`}},
		{"below what another's file states", agentWith("me", 1, held("wnd-int8", "ctr")), nil,
			[]*control.Member{agentWith("later", 2, held("wnd", "ctr", func(m *control.Model) {
				m.Accuracy, m.MinAccuracy, m.StatesFor = 1, .95, "ctr"
			}))}, "wnd-int8", []string{"less than 0.95, the min_accuracy"}},
		{"too inaccurate beside an agent that joined later",
			agentWith("me", 1, held("wnd-lowrank64", "ctr", guesses)), nil,
			[]*control.Member{agentWith("later", 2, held("wnd", "ctr"))}, "wnd-lowrank64",
			[]string{`too inaccurate for family "ctr"`}},
		{"too inaccurate beside what another could load",
			agentWith("me", 1, held("wnd-lowrank64", "ctr", guesses)), nil,
			[]*control.Member{{Name: "later", Joined: 2, Loadable: []*control.Model{
				held("wnd", "ctr"),
			}}}, "wnd-lowrank64", []string{`too inaccurate for family "ctr"`}},
		{"inaccurate, and the best that there is",
			agentWith("me", 1, held("wnd-lowrank64", "ctr", guesses)), nil, nil,
			"wnd-lowrank64 of ctr", nil},
		{"the same variant", agentWith("me", 2, held("wnd", "ctr")), []*control.Member{first},
			nil, "wnd of ctr", nil},
		{"still joining", agentWith("me", 0, held("wnd-int8", "ctr"), held("ncf", "")), nil,
			nil, "ncf", nil},
		{"a family with the name of another's model", agentWith("me", 2, held("ncf-int8", "ncf")),
			[]*control.Member{first}, nil, "ncf-int8", []string{
				`ncf-int8: served under its own name only: family "ncf" has the name of a model ` +
					`of agent "first"`}},
		{"a model with the name of another's family",
			agentWith("me", 2, held("ctr", ""), held("din", "")), []*control.Member{first}, nil,
			"din",
			[]string{`ctr: not served: agent "first" has a family of this name`}},
		{"another QoS target", agentWith("me", 2, held("wnd-int8", "ctr", slow)),
			[]*control.Member{first}, nil, "wnd-int8", []string{
				`wnd-int8: served under its own name only: does not fit into family "ctr": ` +
					`qos_target_ms is 30, 25 in wnd of agent "first"`}},
		{"another signature", agentWith("me", 2, held("wnd-int8", "ctr", wide)),
			[]*control.Member{first}, nil, "wnd-int8", []string{
				`input "ids" has shape [-1 5], [-1 4] in wnd of agent "first"`}},
		{"another late policy", agentWith("me", 2, held("wnd-int8", "ctr", rejects)),
			[]*control.Member{first}, nil, "wnd-int8", []string{`late is reject, serve in wnd of`}},
	} {
		apart := map[string]string{}
		removeContradictions(c.own, c.before, c.later, apart)
		var left []string
		for _, m := range c.own.Models {
			name := m.Name
			if m.Family != "" {
				name += " of " + m.Family
			}
			left = append(left, name)
		}
		if got := strings.Join(left, " "); got != c.want {
			t.Errorf("%s: left are %q, want %q", c.name, got, c.want)
		}
		var said []string
		for _, model := range slices.Sorted(maps.Keys(apart)) {
			said = append(said, model+": "+apart[model])
		}
		if len(said) != len(c.apart) {
			t.Errorf("%s: said %q, want %q", c.name, said, c.apart)
			continue
		}
		for i, want := range c.apart {
			if !strings.Contains(said[i], want) {
				t.Errorf("%s: said %q, want %q", c.name, said[i], want)
			}
		}
	}
}

// TestCompareJoined: of two agents exactly one gives way, and never the one that was there before.
func TestCompareJoined(t *testing.T) {
	inOrder := []*control.Member{
		agentWith("a", 1), agentWith("b", 1), agentWith("a2", 2), agentWith("c", 0),
	}
	for i, a := range inOrder {
		for j, b := range inOrder {
			if got := compareJoined(a, b); got != min(max(i-j, -1), 1) {
				t.Errorf("%s (joined %d) and %s (joined %d): %d, want %d", a.Name, a.Joined, b.Name,
					b.Joined, got, min(max(i-j, -1), 1))
			}
		}
	}
}

func TestDescriptionOfFamilies(t *testing.T) {
	for _, c := range []struct {
		model *control.Model
		want  string
	}{
		{held("wnd", "ctr"), ""},
		{held("wnd", "ctr", func(m *control.Model) { m.Accuracy = 0 }), ""},
		{held("wnd", "ctr", func(m *control.Model) { m.Accuracy = 1.5 }), "accuracy"},
		{held("wnd", "ctr", func(m *control.Model) { m.Accuracy = -1 }), "accuracy"},
		{held("wnd", "wnd"), "family of the same name"},
	} {
		err := CheckDescription(agentWith("a", 1, c.model), "a", control.Spoken)
		if c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: error %v, want %q", c.model, err, c.want)
		}
	}
}
