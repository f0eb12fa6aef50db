// Package store holds models in a bucket, from which a fleet's agents fetch them.
//
// A [Store] has versions that never change, each a [Manifest] that names its files by SHA-256.
// [Store.Push] puts a version into a store, and a [Fetcher] fetches it into the [Cache] of a model
// directory. Which version serves the releases say, whose documents are for others to read.
//
// The keys in a bucket are
//
//	models/NAME/VERSION.json           the manifest of a version
//	models/NAME/VERSION.json.minisig   its signature in minisign's format, if it is signed
//	models/NAME/releases/NUMBER.json   a release, the one with the highest number being in force
//	models/NAME/revoked/VERSION.json   takes a version out of service
//	blobs/sha256/HEX                   a file, named by its SHA-256
//
// The signature of a release or a revocation has .minisig behind its key, too. All are written once
// and never changed, so that one condition is enough to keep two writers from each other: write this
// object unless it exists. Every kind of store has it. A version appears
// with its manifest, which is written after the files. Versions with the same file share it.
//
// A [Bucket] is what a kind of store must do. [Directory] is one on a disk; package remote
// has those of the clouds and of registries. The package starts goroutines only while
// Fetch and Push run.
package store
