package members

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-serve/muster/gossip"
)

var (
	oldKey   = bytes.Repeat([]byte{1}, gossip.KeySize)
	newerKey = bytes.Repeat([]byte{2}, gossip.KeySize)
	otherKey = bytes.Repeat([]byte{3}, gossip.KeySize)
)

// TestChangedKeys is what each step makes of the keys held.
func TestChangedKeys(t *testing.T) {
	a, b, c := oldKey, newerKey, otherKey
	name := map[byte]string{1: "a", 2: "b", 3: "c"}
	for _, tt := range []struct {
		step string
		held [][]byte
		key  []byte
		want string
	}{
		{addKey, [][]byte{a}, b, "ab"},
		{addKey, [][]byte{a, b}, b, "ab"},
		{addKey, [][]byte{a}, a, "a"},
		{useKey, [][]byte{a, b}, b, "ba"},
		{useKey, [][]byte{a, b, c}, c, "cab"},
		{useKey, [][]byte{a, b}, a, "ab"},
		{useKey, [][]byte{a}, b, ""},
		{onlyKey, [][]byte{a, b, c}, a, "a"},
		{onlyKey, [][]byte{a}, a, "a"},
		{onlyKey, [][]byte{a, b}, b, ""},
		{"swap", [][]byte{a, b}, b, ""},
	} {
		before := fmt.Sprint(tt.held)
		keys, err := changedKeys(tt.held, tt.step, tt.key)
		got := ""
		for _, key := range keys {
			got += name[key[0]]
		}
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s %s of %s: got %q, %v, want %q", tt.step, name[tt.key[0]], before, got, err,
				tt.want)
		}
		if fmt.Sprint(tt.held) != before {
			t.Errorf("%s changes its argument", tt.step)
		}
	}
}

// TestKeepKeys writes to what a link leads to, all or nothing.
func TestKeepKeys(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "key"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("before\n"), 0o600),
		os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	k := &Keyring{file: link}
	if err := k.storeKeys([][]byte{oldKey, newerKey}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", info, err)
	}
	kept, err := os.ReadFile(file)
	if want := gossip.FormatKey(oldKey) + "\n" + gossip.FormatKey(newerKey) + "\n"; err != nil ||
		string(kept) != want {
		t.Errorf("kept: %q, %v, want %q", kept, err, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v, want the mode that it had", info.Mode(), err)
	}
	if err := (&Keyring{file: filepath.Join(dir,
		"other")}).storeKeys([][]byte{oldKey}); err == nil {
		t.Error("a key file that is not there was made")
	}
}
