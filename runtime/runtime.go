package runtime

import (
	"context"
	"errors"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// ErrClosed is returned by the methods of a [Model] that has been closed.
var ErrClosed = errors.New("runtime: model is closed")

// An Executor turns model versions into something that runs. Its methods may
// be called concurrently.
type Executor interface {
	// Load prepares a version for running; its first runs are slow until it
	// has been through [Warm]. The caller closes the model.
	Load(ctx context.Context, v *models.Version) (Model, error)
	// Info says what runs the models.
	Info() Info
}

// An Info describes an executor, for logs, metrics and server metadata.
type Info struct {
	Executor string // "onnx" or "emulated"
	Version  string // of the ONNX Runtime library; empty where emulated
	Library  string // "embedded" or the library's path; empty where emulated
	Provider Provider
	// Fallback says why Provider is [CPU] although [Auto] was asked for and
	// the library might have had more; empty otherwise.
	Fallback string
	// Threads is how many threads one run uses.
	Threads int
}

// A Model is a loaded model version. Its methods may be called concurrently.
type Model interface {
	// Run executes one query on the caller's goroutine. The inputs must match the
	// model's signature, in its order (the agent has checked), and stay unchanged
	// until Run returns. When ctx ends the run stops early with ctx's error.
	Run(ctx context.Context, inputs []tensor.Tensor) (*Result, error)
	// Close waits for runs in progress and frees the model. Closing again does
	// nothing.
	Close() error
}

// A Result is what a run produced.
type Result struct {
	// Outputs are in the order of the model's signature. Their data is
	// valid until Release.
	Outputs []tensor.Tensor
	// Execution is the time the model itself took, without waiting.
	Execution time.Duration
	// Queue is how long the query waited for a lane; 0 where it was run
	// without [Lanes].
	Queue time.Duration
	// Lane is the one that the query ran on; 0 without [Lanes].
	Lane int

	release func()
}

// Release gives back the buffers behind the outputs. Calling it again does
// nothing.
func (r *Result) Release() {
	if r.release != nil {
		r.release()
		r.release = nil
	}
}
