package runtime_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestLinkedFiles: a model whose files are links to elsewhere is served, as the cache of Hugging Face
// has them: each file, also of external data, links to a blob with another name.
func TestLinkedFiles(t *testing.T) {
	m, data := embedding()
	blobs, dir := t.TempDir(), t.TempDir()
	files := map[string][]byte{"model.onnx": m.Marshal()}
	for name, bytes := range data {
		files[name] = bytes
	}
	folder := filepath.Join(dir, "m", "1")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, bytes := range files {
		blob := filepath.Join(blobs, "blob-of-"+name)
		if err := os.WriteFile(blob, bytes, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(blob, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	v, err := models.ReadVersion(dir, "m", 1)
	if err != nil {
		t.Fatal(err)
	}
	x := runtimetest.Open(t)
	loaded := load(t, x, v)
	dense, ids, inputs := embeddingInputs(3)
	r, err := loaded.Run(context.Background(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	got, want := must(tensor.Values[float32](r.Outputs[0])), embeddingScores(dense, ids)
	for i := range want {
		if math.Abs(float64(got[i]-want[i])) > 1e-4 {
			t.Errorf("score %d is %v, want %v", i, got[i], want[i])
		}
	}
}
