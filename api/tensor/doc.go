// Package tensor holds the tensors of the Open Inference Protocol: named, typed, row-major blocks
// of bytes, whose first dimension is the batch size.
//
// Codecs fill tensors, executors read and make them, and the SDK makes them from slices. None of
// them copies the bytes: a tensor shares its memory with the code that made it. A gateway that has
// a query run as parts cuts its tensors by rows, also without a copy ([Split]), and copies the rows
// of the answers into one tensor ([Join]).
package tensor
