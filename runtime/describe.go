//go:build linux && cgo

package runtime

import (
	"fmt"

	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/kernels"
)

// DescribeKernels says in words who does the lookups in embedding tables of the model file at path:
// Muster's operators or ONNX Runtime's, and why. It is "" for a model without such lookups. Loading
// compares both, and keeps ONNX Runtime's where they differ.
func DescribeKernels(path string) (string, error) {
	signature, err := onnx.ReadSignature(path)
	if err != nil {
		return "", err
	}
	k, err := kernels.Rewrite(path, signature, 1)
	switch {
	case err != nil:
		return "", err
	case k.Tables == 0 && len(k.Left) == 0:
		return "", nil
	case k.Tables == 0:
		return "ONNX Runtime's operators do the lookups in tables: " + k.Reason(), nil
	}
	text := fmt.Sprintf("Muster's operators do the lookups in %d tables", k.Tables)
	if len(k.Left) > 0 {
		text += "; ONNX Runtime's do others: " + k.Reason()
	}
	return text, nil
}
