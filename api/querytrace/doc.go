// Package querytrace reads and writes records of queries: when each arrived, for which model, how
// large it was, and perhaps its inputs and what became of it. A load tool sends them again, the
// simulator simulates them, and two versions of a model are compared by them. They have nothing to
// do with the traces of package tracing, which say where one query's time goes.
//
// A record is JSON lines, one object for each query, or an npz file of NumPy with one array for
// each key; what it begins with says which. JSON lines may be compressed by Zstandard. [ReadFile]
// also reads the CSV files of before, with the columns arrival_ms, model and batch_size, compressed
// too. Reading is strict: an unknown key, a value of another
// type or out of bounds, and arrivals that are not in order are errors, which name the file, the
// line or query, the key, what was found and what is wanted.
package querytrace
