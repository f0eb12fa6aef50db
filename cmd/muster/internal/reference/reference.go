// Package reference answers queries by ONNX Runtime alone, in this process, so that the answers of
// a fleet can be compared with what the model says.
package reference

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// Verify prepares models under load for the comparison of their answers with those of the same
// versions in the repository dir. It blocks until ONNX Runtime has answered all rows that queries
// of them can have.
func Verify(ctx context.Context, server bench.Server, dir string, all []*bench.TargetModel) error {
	executor, err := runtime.OpenONNX(runtime.Config{Provider: runtime.CPU})
	if err != nil {
		return err
	}
	return verify(ctx, server, executor, dir, all)
}

func verify(ctx context.Context, server bench.Server, executor runtime.Executor, dir string,
	all []*bench.TargetModel) error {
	for _, m := range all {
		served, err := m.ServedVersions(ctx, server)
		if err != nil {
			return err
		}
		var missing error
		prepared := 0
		for _, key := range served {
			model, number := key.Split()
			v, err := models.ReadVersion(dir, model, number)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, models.ErrNotFound) {
				missing = err // it may never answer
				continue
			}
			if err != nil {
				return err
			}
			if err := verifyVersion(ctx, executor, v, key, m); err != nil {
				return err
			}
			prepared++
		}
		if prepared == 0 {
			return fmt.Errorf("model %q: %s has none of the versions %v that are served: %w", m.Name,
				dir, served, missing)
		}
	}
	return nil
}

// verifyVersion prepares the comparison with one version.
func verifyVersion(ctx context.Context, executor runtime.Executor, v *models.Version,
	key names.ModelKey, m *bench.TargetModel) error {
	if !v.Config.RowsIndependent {
		return fmt.Errorf("model %q: its model.yaml does not say rows_independent: true, so "+
			"answers cannot be compared row by row", v.Model)
	}
	loaded, err := executor.Load(ctx, v)
	if err != nil {
		return err
	}
	if err := m.Verify(ctx, key, localModel{v, loaded}); err != nil {
		_ = loaded.Close() // the error is told
		return err
	}
	return loaded.Close()
}

// A localModel answers queries of one version, in place of a server.
type localModel struct {
	version *models.Version
	loaded  runtime.Model
}

// Infer implements [bench.Reference].
func (m localModel) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	inputs := make([]tensor.Tensor, len(m.version.Inputs))
	for i, p := range m.version.Inputs {
		at := slices.IndexFunc(req.Inputs, func(t tensor.Tensor) bool { return t.Name == p.Name })
		if at < 0 {
			return nil, fmt.Errorf("%s takes an input %q, which the agents' model does not have",
				m.version, p.Name)
		}
		inputs[i] = req.Inputs[at]
	}
	result, err := m.loaded.Run(ctx, inputs)
	if err != nil {
		return nil, err
	}
	resp := &oip.Response{
		Model: m.version.Model, Version: strconv.FormatInt(m.version.Number, 10),
		Outputs: result.Outputs,
	}
	resp.OnRelease(result.Release)
	return resp, nil
}
