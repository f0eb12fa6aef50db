//go:build !linux || !cgo

package runtime

import (
	"context"
	"fmt"
	goruntime "runtime"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime/gpu"
)

// ONNX is the executor that runs models with ONNX Runtime. This program has none.
type ONNX struct{}

// OpenONNX returns an error that says where there is ONNX Runtime.
func OpenONNX(Config) (*ONNX, error) {
	why := "this program was built without cgo"
	if goruntime.GOOS != "linux" {
		why = fmt.Sprintf("this is %s/%s", goruntime.GOOS, goruntime.GOARCH)
	}
	return nil, fmt.Errorf("ONNX Runtime is in Muster's packages for Linux alone; %s", why)
}

// Load is never called: nothing makes an ONNX.
func (o *ONNX) Load(context.Context, *models.Version) (Model, error) { return nil, ErrClosed }

// Info is never called.
func (o *ONNX) Info() Info { return Info{} }

// GPU is never called.
func (o *ONNX) GPU() *gpu.Card { return nil }

// startedThreads are the threads of a session that are not its caller: there are no sessions.
type startedThreads struct{}

// DescribeKernels says nothing: there are no kernels without ONNX Runtime.
func DescribeKernels(string) (string, error) { return "", nil }
