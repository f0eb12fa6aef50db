package runtime

import (
	"encoding/binary"
	"testing"
)

func FuzzSplitStrings(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00a\x00\x00\x00\x00"), 2)
	f.Add([]byte("\xff\xff\xff\xff"), 1)
	f.Add([]byte{}, 0)
	f.Add([]byte{}, 1<<62)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n < 0 {
			t.Skip()
		}
		values, err := splitStrings(data, n)
		if err != nil {
			return
		}
		var back []byte
		for _, v := range values {
			back = append(binary.LittleEndian.AppendUint32(back, uint32(len(v))), v...)
		}
		if len(values) != n || string(back) != string(data) {
			t.Errorf("%q as %d strings is %q, and that is %q", data, n, values, back)
		}
	})
}
