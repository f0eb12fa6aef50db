package storecmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/models/store"
)

// keyFile writes a new private key to a file.
func keyFile(t *testing.T) (path string, public minisign.PublicKey) {
	t.Helper()
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := private.MarshalText()
	path = filepath.Join(t.TempDir(), "key")
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path, public
}

// run runs a command, and returns what it prints.
func run(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestRevoke: all versions that a key has signed are revoked for those who trust another key, and
// nothing fetches them again.
func TestRevoke(t *testing.T) {
	dir := t.TempDir()
	address := "file://" + dir
	old, oldPublic := keyFile(t)
	now, nowPublic := keyFile(t)
	signers := map[int64]string{1: old, 2: now, 3: old}
	s := store.New(store.Directory(dir), "store")
	for version, path := range signers {
		signer, err := store.ReadSigner(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(t.TempDir(), "ncf")
		file := filepath.Join(folder, string('0'+rune(version)), "model.onnx")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte{byte(version)}, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Push(t.Context(), folder, version, store.PushOptions{
			Sign: signer.Sign,
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"--store", address}, {"ncf", "--store", address}, {"ncf@0", "--store", address},
		{"--key", "xyz", "--store", address}, {"--key", "0000000000000001", "--store", address},
	} {
		if out, err := run(t, newRevoke(), args...); err == nil {
			t.Errorf("%v: got %q, want an error", args, out)
		}
	}
	out, err := run(t, newRevoke(), "--key", strings.ToLower(keyID(oldPublic)), "--store", address,
		"--sign", now, "--why", "stolen")
	if err != nil || out != "ncf version 1: revoked\nncf version 3: revoked\n" {
		t.Errorf("got %q, %v, want versions 1 and 3", out, err)
	}
	for _, version := range []int64{1, 3} {
		r, err := s.Revoked(t.Context(), "ncf", version, store.Keys{nowPublic}, address)
		if err != nil || r.Why != "stolen" {
			t.Errorf("version %d: got %+v, %v", version, r, err)
		}
	}
	models := t.TempDir()
	out, err = run(t, newPull(), "ncf", "--store", address, "--dir", models)
	if err != nil || !strings.Contains(out, "ncf version 2: pulled") {
		t.Errorf("pulling the newest: got %q, %v, want version 2", out, err)
	}
	if _, err = run(t, newPull(), "ncf@3", "--store", address, "--dir", models); err == nil ||
		!strings.Contains(err.Error(), "version 3 is revoked") || !strings.Contains(err.Error(), "stolen") {
		t.Errorf("pulling a revoked version: got %v", err)
	}
}

func keyID(public minisign.PublicKey) string { return fmt.Sprintf("%X", public.ID()) }
