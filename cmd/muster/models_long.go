package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
)

// A listedTensor is an input or output of a listed model.
type listedTensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
	// Role is whose the tensor's rows are: row, user, query or ragged; "" if the model has no roles.
	Role roles.Role `json:"role,omitempty"`
}

// listedTensors are the inputs and outputs of a listed model; nil where they are not known.
type listedTensors struct {
	Inputs  []listedTensor `json:"inputs,omitempty"`
	Outputs []listedTensor `json:"outputs,omitempty"`
	// RowsIndependent is what says that rows are independent: settings or graph; "": nothing.
	RowsIndependent string `json:"rows_independent,omitempty"`
}

// describeListed adds the inputs and outputs of each model that an agent serves.
func describeListed(ctx context.Context, c *client.Client, list []listedModel) error {
	for i := range list {
		m := &list[i]
		if m.State != "READY" {
			continue
		}
		meta, err := c.ModelMetadata(ctx, m.Model, m.Version)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Model, err)
		}
		properties, err := oip.ParseProperties(meta.GetProperties())
		if err != nil {
			return fmt.Errorf("%s: %w", m.Model, err)
		}
		known := properties.Roles
		if known == nil {
			known = &roles.Roles{}
		}
		m.RowsIndependent = properties.RowsIndependent
		m.Inputs = listTensors(meta.GetInputs(), known.Inputs)
		m.Outputs = listTensors(meta.GetOutputs(), known.Outputs)
	}
	return nil
}

func listTensors(all []*inference.ModelMetadataResponse_TensorMetadata,
	of []roles.NamedRole) (list []listedTensor) {
	for _, t := range all {
		l := listedTensor{Name: t.GetName(), Datatype: t.GetDatatype(), Shape: t.GetShape()}
		if i := slices.IndexFunc(of, func(r roles.NamedRole) bool { return r.Name == l.Name }); i >= 0 {
			l.Role = of[i].Role
		}
		list = append(list, l)
	}
	return list
}

// listSpecs are the tensors of a version on disk.
func listSpecs(all []models.TensorSpec) (list []listedTensor) {
	for _, p := range all {
		list = append(list, listedTensor{p.Name, string(p.DataType), p.Shape, p.Role})
	}
	return list
}

// formatTensors is what stands of the inputs and outputs of a model below its row.
func (m *listedModel) formatTensors() string {
	var lines strings.Builder
	for _, side := range []struct {
		name string
		all  []listedTensor
	}{{"input", m.Inputs}, {"output", m.Outputs}} {
		for _, t := range side.all {
			text := fmt.Sprintf("%s %s: %s %v", side.name, t.Name, t.Datatype, t.Shape)
			if t.Role != "" {
				text += fmt.Sprintf(", role %s", t.Role)
			}
			fmt.Fprintf(&lines, "  %s\n", terminal.Plain(text))
		}
	}
	if m.RowsIndependent != "" {
		fmt.Fprintf(&lines, "  rows are independent by the %s\n",
			terminal.Plain(m.RowsIndependent))
	}
	return lines.String()
}

// longTime bounds how long an agent is asked for the metadata of all its models.
const longTime = 30 * time.Second
