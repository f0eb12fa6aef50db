package runtime

import (
	"testing"

	"github.com/muster-serve/muster/api/tensor"
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
		var back tensor.Tensor
		if err := appendStrings(&back, values); err != nil {
			t.Fatal(err)
		}
		if len(values) != n || string(back.Data) != string(data) {
			t.Errorf("%q as %d strings is %q, and that is %q", data, n, values, back.Data)
		}
	})
}
