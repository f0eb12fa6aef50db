// Package onnx reads and writes what Muster needs of the ONNX format: the signature of any model,
// without reading its weights, and models made of plain operators, with their weights in a file
// beside them.
//
// It follows the public ONNX specification (https://onnx.ai/onnx/repo-docs/IR.html and
// onnx/onnx.proto) on protobuf's wire format directly. The few fields that are needed are named
// below. Everything else is skipped, so that a file's weights are never read from disk.
package onnx
