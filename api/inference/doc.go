// Package inference is the generated code of the Open Inference Protocol's gRPC form
// (inference.proto). Package oip has queries and answers in a form that is cheaper to use.
package inference
