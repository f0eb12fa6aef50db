// Package variants makes variants of a model: models that answer the same question in less time or
// memory, less accurately. It changes the model's ONNX graph, and so works for generated models and
// for a user's own. What the change does not touch keeps its bytes.
//
// [Make] makes a variant of a model of a repository, beside it; [Quantize] of a file. Neither runs
// a model: the caller hands in the check that ONNX Runtime accepts what was made. Package evaluate
// tells how accurate it is.
package variants
