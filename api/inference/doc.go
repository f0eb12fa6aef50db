// Package inference is the generated code of the gRPC form of the Open Inference Protocol
// (inference.proto). Package oip has queries and answers in a form that costs less to use.
package inference
