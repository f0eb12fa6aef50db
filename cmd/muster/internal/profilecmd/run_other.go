//go:build !linux || !cgo

package profilecmd

import (
	"context"
	"io"

	"github.com/muster-serve/muster/runtime"
)

// run returns why nothing can be measured: there is no ONNX Runtime here.
func (o *options) run(context.Context, []string, io.Writer, io.Writer) error {
	_, err := runtime.OpenONNX(runtime.Config{Provider: runtime.CPU})
	return err
}
