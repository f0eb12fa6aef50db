// Package npz reads and writes NumPy's files of arrays, as numpy.savez makes them: a zip file with
// an array in the format npy for each name. Arrays are tensors of at least one row.
//
// The package is our own. github.com/sbinet/npyio has no 16-bit floats, does not read version 3 of
// the format, panics on damaged headers, and writes no arrays of float32 of two dimensions.
package npz
