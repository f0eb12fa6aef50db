package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCaptureKey: a key is what its file has without white space around it, and one that can be
// guessed is refused.
func TestCaptureKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for text, want := range map[string]string{
		" 0123456789abcdef\n":                "",
		"short\n":                            "has 5 bytes, expected at least 16",
		strings.Repeat("x", maxCaptureKey+1): path,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := readCaptureKey(path)
		if want == "" && (err != nil || string(key) != "0123456789abcdef") ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.20q: %q, %v, want %q", text, key, err, want)
		}
	}
	if _, err := readCaptureKey(path + "x"); err == nil {
		t.Error("a file that is not there was read")
	}
}
