package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// TestStateDirWritable: what was written to find out is gone.
func TestStateDirWritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := checkWritable(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
