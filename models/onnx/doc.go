// Package onnx reads and writes the parts of the ONNX format that Muster needs. It reads the
// signature of any model, without its weights. It writes models of standard operators, with their
// weights in a separate file.
//
// It decodes protobuf's wire format itself, by the public ONNX specification
// (https://onnx.ai/onnx/repo-docs/IR.html and onnx/onnx.proto), because a protobuf library would
// read the whole file. It knows only the fields that it needs and skips all others, so that weights
// are never read from disk.
package onnx
