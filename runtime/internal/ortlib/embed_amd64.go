//go:build embed_onnxruntime

package ortlib

import _ "embed"

//go:embed libonnxruntime-1.30.0-linux-amd64.so.zst
var packed []byte
