// Package kernels computes lookups in embedding tables faster than ONNX Runtime's own operators do:
// these write every row to memory before another operator adds the rows.
//
// [Rewrite] reads a model and finds sums of rows of constant tables, and joined rows. Its copy of the
// model computes them with the operator EmbeddingBags of the domain muster, which [Register] adds to
// a session's options. [Rewritten.Check] compares the operator with the standard ones before the
// model is used. docs/internals/kernels.md says which models fit and how fast they are.
//
// bags.c sums the rows; it depends on nothing. shim.c is the operator.
package kernels
