// Package inputs reads the inputs of queries from files, for `muster infer` and `muster bench`:
// JSON as the REST body of the Open Inference Protocol has it, one query after the other, or an npz
// file of NumPy with one array for each input.
package inputs
