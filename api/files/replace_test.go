package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReplace: a file gets its new contents, keeps its permissions as far as the caller allows, and
// stays as it was if the contents cannot be made; nothing is left beside it.
func TestReplace(t *testing.T) {
	for _, tt := range []struct {
		name              string
		before, mode, now fs.FileMode // before: 0 if there is no file
	}{
		{"a new file for its owner alone", 0, 0o600, 0o600},
		{"all could read it", 0o644, 0o600, 0o600},
		{"fewer may read it than the caller allows", 0o600, 0o644, 0o600},
		{"a group may write it", 0o664, 0o666, 0o664},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "file")
		if tt.before != 0 {
			err := errors.Join(os.WriteFile(path, []byte("before"), tt.before),
				os.Chmod(path, tt.before))
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := Replace(path, []byte("after"), tt.mode); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		wrong := errors.New("wrong")
		if err := ReplaceBy(path, tt.mode, func(w io.Writer) error {
			_, err := io.WriteString(w, "half")
			return errors.Join(err, wrong)
		}); !errors.Is(err, wrong) {
			t.Errorf("%s: got %v, want what the writer says", tt.name, err)
		}
		text, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(text) != "after" || info.Mode().Perm() != tt.now {
			t.Errorf("%s: got %q, %v with mode %v, %v, want \"after\" with %v", tt.name, text, err,
				info.Mode(), statErr, tt.now)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s: the folder has %v, %v, want one file", tt.name, left, err)
		}
	}
}

// TestReplaceLink: a link is replaced; what it led to stays.
func TestReplaceLink(t *testing.T) {
	dir := t.TempDir()
	link, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
	err := errors.Join(os.WriteFile(target, []byte("before"), 0o600), os.Symlink(target, link))
	if err != nil {
		t.Fatal(err)
	}
	if err := Replace(link, []byte("after"), 0o600); err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadFile(link)
	kept, keptErr := os.ReadFile(target)
	if err != nil || keptErr != nil || string(there) != "after" || string(kept) != "before" {
		t.Errorf("got %q, %v, and %q, %v where the link led", there, err, kept, keptErr)
	}
}
