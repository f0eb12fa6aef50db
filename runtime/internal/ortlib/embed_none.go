//go:build !embed_onnxruntime

package ortlib

var packed []byte
