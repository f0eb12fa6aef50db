// Package inputs reads the inputs of queries from files, for `muster infer` and `muster bench`:
// JSON as the REST body of the Open Inference Protocol has it, one query after the other, or an npz
// file of NumPy with one array for each input.
//
// The reader of npz is our own. github.com/sbinet/npyio has no 16-bit floats, does not read version
// 3 of the format, and panics on damaged headers.
package inputs
