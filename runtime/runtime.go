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

// An Executor loads model versions, so that they can run. Its methods may be called concurrently.
type Executor interface {
	// Load loads a version. It blocks until the version is in memory, or until ctx ends. The first
	// runs of the model are slow; [Warm] makes them. The caller closes the model.
	Load(ctx context.Context, v *models.Version) (Model, error)
	// Info describes the executor.
	Info() Info
}

// An Info describes an executor, for logs, metrics and server metadata.
type Info struct {
	Executor string // "onnx" or "emulated"
	Version  string // of the ONNX Runtime library; empty if emulated
	Library  string // "embedded" or the library's path; empty if emulated
	Provider ExecutionProvider
	// Fallback is why Provider is [CPU] although the configuration says [Auto]; else empty.
	Fallback string
	// Threads is how many threads one run uses.
	Threads int
}

// A Model is a loaded model version. Its methods may be called concurrently.
type Model interface {
	// Run executes one query on the caller's goroutine. The inputs must match the model's
	// signature, in its order, and must not change until Run returns. When ctx ends, the run stops
	// early with ctx's error. The caller releases the result.
	Run(ctx context.Context, inputs []tensor.Tensor) (*Result, error)
	// Close waits for runs in progress and frees the model. Later runs fail with [ErrClosed]. A
	// second Close does nothing.
	Close() error
}

// A Result is the result of a run. It belongs to the caller until Release.
type Result struct {
	// Outputs are in the order of the model's signature. Their data is
	// valid until Release.
	Outputs []tensor.Tensor
	// Execution is the time of the run itself, without waiting.
	Execution time.Duration
	// Queue is how long the query waited for a lane; 0 without [Lanes].
	Queue time.Duration
	// Lane is the number of the lane that the query ran on; 0 without [Lanes].
	Lane int
	// Queries is how many queries ran as one, and Items the sum of their batch sizes; 0 without
	// [Lanes]. Execution is then that of all. Joined is false for exactly one of them, so that the
	// run can be counted once.
	Queries, Items int
	Joined         bool
	// Users, Values and Work are the sums of theirs ([Query]).
	Users, Values, Work int
	// Divided is how many cores the lane has if the run had only one of them ([Query.Divide]); else
	// 0.
	Divided int

	release func()
}

// Release gives the buffers of the outputs back for other runs. A second Release does nothing.
func (r *Result) Release() {
	if r.release != nil {
		r.release()
		r.release = nil
	}
}
