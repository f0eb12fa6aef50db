package worker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// ids makes an input.
func ids(t *testing.T, name string, values ...int64) tensor.Tensor {
	t.Helper()
	made, err := tensor.Of(name, values, int64(len(values)))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// rankerVersion is a version with a user, items and tags of these.
func rankerVersion(t *testing.T) *models.Version {
	t.Helper()
	r, err := roles.Complete(roles.Roles{
		Inputs: []roles.NamedRole{
			{Name: "user", Role: roles.User}, {Name: "items", Role: roles.Row},
			{Name: "tags", Role: roles.Ragged}, {Name: "tag_lengths", Role: roles.Ragged},
		},
		Outputs: []roles.NamedRole{{Name: "scores", Role: roles.Row}},
		Ragged: []roles.Feature{{
			Values: "tags", Form: roles.Lengths, Index: "tag_lengths", Per: roles.Row,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	v := &models.Version{Model: "m", Number: 1, Roles: r, Config: models.DefaultConfig()}
	v.Config.LargestBatchSize = 4
	for _, p := range r.Inputs {
		v.Inputs = append(v.Inputs, models.TensorSpec{
			Name: p.Name, DataType: tensor.Int64, Shape: []int64{models.Dynamic}, Role: p.Role,
		})
	}
	v.Outputs = []models.TensorSpec{{Name: "scores", DataType: tensor.FP32,
		Shape: []int64{models.Dynamic},
		Role:  roles.Row}}
	return v
}

// TestValidateRoles: the size of a query is that of its candidates, and what does not fit is
// refused with the input, the row and the value.
func TestValidateRoles(t *testing.T) {
	for _, tt := range []struct {
		name    string
		inputs  []tensor.Tensor
		size    roles.QuerySize
		batch   int
		refusal string
	}{
		{"once", []tensor.Tensor{ids(t, "user", 7), ids(t, "items", 1, 2, 3), ids(t, "tags", 5, 6),
			ids(t, "tag_lengths", 0, 2, 0)}, roles.QuerySize{Rows: 3, Users: 1, Values: 2}, 3, ""},
		{"repeated", []tensor.Tensor{ids(t, "user", 7, 7), ids(t, "items", 1, 2), ids(t, "tags"),
			ids(t, "tag_lengths", 0, 0)}, roles.QuerySize{Rows: 2, Users: 2}, 2, ""},
		{"none", []tensor.Tensor{ids(t, "user", 7), ids(t, "items"), ids(t, "tags"),
			ids(t, "tag_lengths")}, roles.QuerySize{Users: 1}, 1, ""},
		{"two users", []tensor.Tensor{ids(t, "user", 7, 8), ids(t, "items", 1, 2, 3), ids(t,
			"tags"),
			ids(t, "tag_lengths", 0, 0, 0)}, roles.QuerySize{}, 0, `input "user": 2 users, want 1`},
		{"too many", []tensor.Tensor{ids(t, "user", 7), ids(t, "items", 1, 2, 3, 4, 5), ids(t,
			"tags"),
			ids(t, "tag_lengths", 0, 0, 0, 0, 0)}, roles.QuerySize{}, 0,
			"batch size 5, want 0 to 4"},
		{"lengths", []tensor.Tensor{ids(t, "user", 7), ids(t, "items", 1, 2), ids(t, "tags", 5),
			ids(t, "tag_lengths", 0, 2)}, roles.QuerySize{}, 0,
			`input "tag_lengths": row 1 has the length 2, want at most 1: input "tags" has 1 values`},
		{"missing", []tensor.Tensor{ids(t, "user", 7), ids(t, "items", 1, 2), ids(t, "tags", 5)},
			roles.QuerySize{}, 0, `input "tag_lengths" is missing`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, err := validate(rankerVersion(t), &oip.Request{Model: "m", Inputs: tt.inputs})
			if tt.refusal != "" {
				if !errors.Is(err, outcome.ErrInvalid) || !strings.Contains(err.Error(),
					tt.refusal) {
					t.Errorf("got %v, want %q", err, tt.refusal)
				}
				return
			}
			if err != nil || q.size != tt.size || q.batchSize != tt.batch {
				t.Errorf("got %+v of batch size %d, %v, want %+v of %d", q.size, q.batchSize, err,
					tt.size,
					tt.batch)
			}
		})
	}
}

// TestOneRowForAll: of a model without roles an input with one row is that of all rows of the
// others, unless the settings say that nothing is sent once.
func TestOneRowForAll(t *testing.T) {
	v := rankerVersion(t)
	v.Roles, v.Inputs = nil, v.Inputs[:2]
	for i := range v.Inputs {
		v.Inputs[i].Role = ""
	}
	for _, swapped := range []bool{false, true} {
		inputs := []tensor.Tensor{ids(t, "user", 7), ids(t, "items", 1, 2, 3)}
		if swapped {
			slices.Reverse(inputs)
		}
		q, err := validate(v, &oip.Request{Model: "m", Inputs: inputs})
		if err != nil || q.batchSize != 3 {
			t.Fatalf("got batch size %d, %v", q.batchSize, err)
		}
		users, err := tensor.Values[int64](q.inputs[0])
		if err != nil || !slices.Equal(users, []int64{7, 7, 7}) || q.inputs[0].Shape[0] != 3 {
			t.Errorf("got the users %v, %v", users, err)
		}
	}
	v.Config.NeverSentOnce = true
	_, err := validate(v, &oip.Request{
		Model: "m", Inputs: []tensor.Tensor{ids(t, "user", 7), ids(t, "items", 1, 2, 3)},
	})
	if err == nil || !strings.Contains(err.Error(),
		`input "items": batch size 3, but input "user" has 1`) {
		t.Errorf("with sent_once: false: got %v", err)
	}
}
