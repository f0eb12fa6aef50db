// Package triton is the generated code of the settings of a model in a Triton model repository
// (model_config.proto). It is apart from package inference so that whoever reads config.pbtxt does
// not bring gRPC along.
package triton
