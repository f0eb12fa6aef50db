// Package onnx reads, changes and writes the parts of the ONNX format that Muster needs. It reads
// the signature of any model, without its weights. It reads a model as a graph that can be
// changed, and keeps the bytes of what is not. It writes models of standard operators, with their
// weights in a separate file.
//
// It decodes protobuf's wire format itself, by the public ONNX specification
// (https://onnx.ai/onnx/repo-docs/IR.html and onnx/onnx.proto): a protobuf library would read the
// whole file to find its signature. The package knows only the fields that it needs and skips or
// keeps all others.
package onnx
