package client

import (
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// ranker describes a model with a user and items; with is whether its agent knows their roles.
func ranker(t *testing.T, with bool) *control.Model {
	t.Helper()
	m := &control.Model{Name: "m", Version: 1, LargestBatchSize: 100,
		Metadata: &inference.ModelMetadataResponse{
			Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "user", Datatype: "INT64", Shape: []int64{-1}},
				{Name: "items", Datatype: "INT64", Shape: []int64{-1}},
			},
		}}
	if with {
		r, err := roles.Complete(roles.Roles{
			Inputs: []roles.NamedRole{{Name: "user", Role: roles.User}, {Name: "items",
				Role: roles.Row}},
			Outputs: []roles.NamedRole{{Name: "scores", Role: roles.Row}},
		})
		if err != nil {
			t.Fatal(err)
		}
		m.Metadata.Properties = oip.Properties{Roles: r}.Map()
	}
	return m
}

// TestForOlderMember: an agent that does not know roles gets the user once for each row, also where
// no agent knows the model's roles; one that knows them gets the query as it is.
func TestForOlderMember(t *testing.T) {
	ids := func(name string, values ...int64) tensor.Tensor {
		made, err := tensor.Of(name, values, int64(len(values)))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	older := &control.Member{Name: "older", Protocol: 7, NewestProtocol: 7}
	newer := &control.Member{Name: "newer", Protocol: 7, NewestProtocol: 8}
	for _, with := range []bool{false, true} {
		v := &fleetVersion{}
		v.noteHeld(ranker(t, false))
		v.noteHeld(ranker(t, with))
		v.noteHeld(ranker(t, false)) // an older agent's description does not hide the roles
		req := &oip.Request{
			Model: "m", Inputs: []tensor.Tensor{ids("user", 7), ids("items", 1, 2, 3)},
		}
		q := &gatewayQuery{roles: v.roles}
		q.measure(req, v.largest)
		if q.batch != 3 || q.users != 1 {
			t.Errorf("with roles %t: %d rows, %d users, want 3 and 1", with, q.batch, q.users)
		}
		if got := q.forMember(req, newer); got != req {
			t.Errorf("with roles %t: the newer agent gets %v", with, got.Inputs)
		}
		users, err := tensor.Values[int64](q.forMember(req, older).Inputs[0])
		if err != nil || !slices.Equal(users, []int64{7, 7, 7}) {
			t.Errorf("with roles %t: the older agent gets the users %v, %v", with, users, err)
		}
		if req.Inputs[0].Shape[0] != 1 {
			t.Error("the query itself has changed")
		}
		parts, err := req.SplitBy(q.roles, []int{1, 2})
		if err != nil || parts[0].Inputs[0].Shape[0] != 1 || parts[1].Inputs[0].Shape[0] != 1 ||
			parts[1].Inputs[1].Shape[0] != 2 {
			t.Errorf("with roles %t: parts %v, %v", with, parts, err)
		}
	}
}
