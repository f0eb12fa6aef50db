// Package models manages the model repository: a directory of ONNX models, the signature of each
// version, and the versions that are loaded.
//
// [Families] groups models that answer the same question; [WriteRating] writes how well one does.
// [Install] puts the folder of a generated model into a repository.
//
// [Open] takes the directory and a [Loader], which loads a version into memory. [Repository.Run]
// loads the versions, watches the directory and follows changes of its files. [Repository.Acquire]
// gives a loaded version to a query. Options.OnEvent reports changes of the versions' states.
//
// [Repository.Run] owns the loop that watches the directory, one goroutine for each load,
// and one for each version that is closed after its last query. It does not wait for a load
// that ignores its cancellation.
//
// # The repository
//
//	<dir>/<model>/model.yaml             optional, see below
//	<dir>/<model>/config.pbtxt           optional: Triton's settings, where model.yaml says nothing
//	<dir>/<model>/<version>/model.onnx   a version's number is a whole number above 0
//	<dir>/<model>/<version>/...          the model's external data
//
// Any ONNX model serves without configuration. The first dimension of its inputs and outputs is the
// batch size if it is dynamic in all of them; otherwise the model is batchless ([Version]). Hidden
// folders are ignored, and so are folders within a model's
// folder whose names are no version numbers. Symbolic links must not lead out of the directory.
//
// The directory is scanned once a second by default. The repository acts on new, changed and
// removed versions when two scans in a row have seen the same files. It loads a changed version
// beside the earlier load, which serves until the new one is ready and then finishes its
// queries. If a version cannot be loaded, the repository tries again when its files change or
// when [Repository.Load] is called.
//
// To replace a file, rename another one over it, or add a version. Do not write to a file in place:
// if ONNX Runtime has mapped it as external data, truncating it kills the process.
//
// # config.pbtxt
//
// A model's settings as a Triton model repository has them: a ModelConfig of package triton in
// protobuf's text form. Taken over are name, platform, backend, max_batch_size, input, output (names,
// types, dims), version_policy, default_model_filename, dynamic_batching (rows are independent, and
// queries merge), default_timeout_microseconds, the batch sizes of model_warmup, and
// ensemble_scheduling. What would change the answers is an error; the names of all else that is set,
// and of files that nothing reads, go into Config.Notes, which the repository logs.
//
// An ensemble is a version whose [Step]s run one after the other, each a model of the repository that
// is a file. It is loaded anew when a file of one of them changes.
//
// # model.yaml
//
// Every key is optional. An unknown key or a value out of range is an error; versions that are
// loaded then go on serving.
//
//	qos_target_ms: 100         the latency within which queries should be answered, at most an hour
//	qos_percentile: 99         the percentage of queries that should meet the QoS target
//	deadline_ms: 1000          time after which a query without a timeout is dropped; default
//	                           10 x qos_target_ms. Longer timeouts of clients count as a minute,
//	                           or as deadline_ms if that is more
//	largest_batch_size: 1000   up to 1048576
//	rows_independent: false    whether a large batch may run in pieces, and queries be merged
//	split: false               no query runs as parts on several lanes, though rows are independent
//	merge: deadline            how several waiting queries run as one (see package
//	                           runtime/queue/merge); default deadline if rows_independent, which
//	                           it needs, else none
//	tf32: false                whether a GPU computes products of FP32 in TF32
//	late: serve                late queries: serve when a lane would be idle, or reject
//	warm_up: [1, 64]           batch sizes that run before a version serves; [] for none
//	versions: {latest: 1}      which versions to serve: {latest: N}, all, or a list such as [1, 3]
//	family: ctr                a group of models that answer the same question ...
//	accuracy: 0.93             ... each with its own accuracy, in (0, 1]; the best has 1
//	score: 0.8378              what accuracy follows from, in (0, 1] ...
//	metric: auc                ... in terms of auc or top10
//	measured: {against: holdout.npz, rows: 200000, seed: 1, error: 0.0012}
//	inputs:                    some or all of the model's inputs; types and shapes must agree
//	  - name: ids
//	    data_type: INT64
//	    shape: [-1, 4]
//	    id_bounds: [140000, 140000, 28000, 28000]
//	outputs:                   likewise, without id_bounds
//	  - name: scores
//
// id_bounds limits the ids of an integer input: 0 <= id < bound, with one bound for each index of
// the second dimension, or one for all. The keys tables and generated describe a generated model
// (see package zoo); they have no effect.
package models
