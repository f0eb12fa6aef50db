// Package models knows what can be served: the model repository on disk, each version's signature,
// and which versions are loaded.
//
// In come a directory and a loader, which executes versions ([Open]), and calls to load and unload.
// Out go loaded versions ([Repository.Acquire]) and events of their states. The package watches the
// directory while it serves.
//
// [Repository.Run] owns the loop that watches, one goroutine for each load, and one for each
// version that is closed when its last query has ended. A load that does not stop when told to is
// left behind.
//
// # The repository
//
//	<dir>/<model>/model.yaml             optional, see below
//	<dir>/<model>/<version>/model.onnx   a version's number is a whole number above 0
//	<dir>/<model>/<version>/...          the model's external data
//
// Any ONNX model serves without configuration if the first dimension of its inputs and outputs is
// the batch size and dynamic. Hidden folders, and folders of a model whose names are no version
// numbers, are ignored. Symbolic links may lead to other places within the directory, not out of
// it.
//
// New, changed and removed versions are picked up when two looks at the directory in a row have
// seen the same; by default it is looked at once a second. A changed version is loaded beside the
// former load, which serves until the new one does and then finishes its queries. A version that
// cannot be loaded is tried again when its files change, or when it is loaded by call.
//
// To replace a file, rename another over it, or add a version. Do not write into a file in place:
// where ONNX Runtime keeps external data mapped, a process whose file is truncated dies.
//
// # model.yaml
//
// Every key is optional. An unknown key or a value out of range is an error, and what was loaded
// before goes on serving.
//
//	qos_target_ms: 100         the latency within which queries should be answered, at most an hour
//	qos_percentile: 99         the share of queries that should be, in percent
//	deadline_ms: 1000          when a query without a timeout is dropped; 10 x qos_target_ms
//	                           (and the longest timeout that counts, if above a minute)
//	largest_batch_size: 1000   up to 1048576
//	rows_independent: false    whether a large batch may run in pieces
//	late: serve                late queries: serve when there is time for them, or reject
//	warm_up: [1, 64]           batch sizes run before a version serves; [] runs none
//	versions: {latest: 1}      or all, or a list such as [1, 3]
//	family: ctr                models of one family answer the same question ...
//	accuracy: 0.93             ... with different quality, in (0, 1]
//	inputs:                    may repeat the model's own inputs, and then must agree with them
//	  - name: ids
//	    data_type: INT64
//	    shape: [-1, 4]
//	    id_bounds: [140000, 140000, 28000, 28000]
//	outputs:                   likewise, without id_bounds
//	  - name: scores
//
// id_bounds limits the ids of an integer input: 0 <= id < bound, one bound for each position of the
// second dimension, or one for all. The keys tables and generated describe a generated model (see
// package zoo) and change nothing.
package models
