package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
)

// generateModel makes a model repository with Model, whose graph is NCF's, with four numbers a row:
// emulated agents run no graph, and larger inputs would make the client on this machine the
// bottleneck.
func generateModel(ctx context.Context, dir string) error {
	const donor = "ncf"
	for _, name := range []string{donor, Model} {
		if _, err := zoo.Generate(ctx, dir, name, zoo.Options{Scale: zoo.Small}); err != nil {
			return err
		}
	}
	version := filepath.Join(dir, Model, "1")
	if err := errors.Join(os.RemoveAll(version),
		os.Rename(filepath.Join(dir, donor, "1"), version),
		os.RemoveAll(filepath.Join(dir, donor))); err != nil {
		return err
	}
	// Keep the model's settings up to its inputs and outputs: those are the donor's now.
	config := filepath.Join(dir, Model, models.ConfigFile)
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	settings, _, _ := strings.Cut(string(text), "inputs:")
	return os.WriteFile(config, []byte(settings), 0o644)
}

// countRefusals is how many queries were refused because too many wait. They are not lost: their
// clients were told. A report counts them among the failed ones.
func countRefusals(m bench.ModelReport) (n int64) {
	for _, f := range m.Failures {
		if f.Reason == client.ErrOverloaded.Error() {
			n += f.Count
		}
	}
	return n
}

// wrongAnswers counts answers that cannot be those of their queries.
type wrongAnswers struct {
	count   int64
	example error
}

// A checkedServer gives each query an id and checks its answer. A wrong answer becomes an error.
type checkedServer struct {
	bench.Server

	mu    sync.Mutex
	sent  int64
	wrong wrongAnswers
}

func (s *checkedServer) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	s.mu.Lock()
	s.sent++
	req.ID = fmt.Sprint(s.sent)
	s.mu.Unlock()
	resp, err := s.Server.Infer(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := checkAnswer(req, resp); err != nil {
		resp.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wrong.count++
		s.wrong.example = err
		return nil, err
	}
	return resp, nil
}

// checkAnswer is nil if the answer may be that of the query: emulated agents answer with as many
// zeros as the model would have numbers.
func checkAnswer(req *oip.Request, resp *oip.Response) error {
	if resp.ID != req.ID || resp.Model != req.Model {
		return fmt.Errorf("query %s to %s got the answer to %s of %s", req.ID, req.Model, resp.ID,
			resp.Model)
	}
	if len(resp.Outputs) == 0 {
		return fmt.Errorf("query %s got an answer without outputs", req.ID)
	}
	rows := req.Inputs[0].Shape[0]
	for _, out := range resp.Outputs {
		if len(out.Shape) == 0 || out.Shape[0] != rows {
			return fmt.Errorf("query %s of batch size %d: output %q has shape %v", req.ID, rows,
				out.Name, out.Shape)
		}
	}
	return nil
}
