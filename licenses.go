// Package muster holds the licences of Muster and of what its binary has from others, for the
// command that prints them: a binary must not travel without them.
package muster

import _ "embed"

//go:embed LICENSE
var License string

// Notice is made by scripts/tools/notice.
//
//go:embed NOTICE
var Notice string

// ONNXRuntimeNotices are those that come with the ONNX Runtime library, of what it has from others.
//
//go:embed runtime/internal/ortlib/ThirdPartyNotices.txt
var ONNXRuntimeNotices string
