// Package tensor holds the tensors of the Open Inference Protocol: named, typed, row-major blocks
// of bytes, whose leading dimension is the batch size.
//
// The codecs fill them, the executor runs on them, and the SDK makes them from slices. None of
// these copies the bytes, so a tensor shares them with whoever made it.
package tensor
