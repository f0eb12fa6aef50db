package modelstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aead.dev/minisign"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store"
)

// A trusted is a bench whose agent requires signatures of keys in a file.
type trusted struct {
	*bench
	path     string
	readmits int
}

// A pair is a key with which versions are signed.
type pair struct {
	public minisign.PublicKey
	signer *store.Signer
}

func newPair(t *testing.T) pair {
	t.Helper()
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return pair{public, &store.Signer{Key: store.Keys{public}, Sign: func(d []byte) ([]byte, error) {
		return minisign.Sign(private, d), nil
	}}}
}

// write writes the file of public keys.
func (b *trusted) write(keys ...pair) {
	b.t.Helper()
	var text string
	for _, k := range keys {
		line, err := k.public.MarshalText()
		if err != nil {
			b.t.Fatal(err)
		}
		text += string(line) + "\n"
	}
	if err := os.WriteFile(b.path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// require makes an agent with the model directory of another require signatures, as after a restart.
func (b *bench) require(keys ...pair) *trusted {
	b.t.Helper()
	n := &trusted{bench: b, path: filepath.Join(b.t.TempDir(), "keys")}
	n.write(keys...)
	var err error
	b.config.Keys, err = secure.WatchFile("keys", n.path, store.ReadKeys)
	if err == nil {
		err = b.cache.Close()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.config.Fleet, b.config.Readmit = "prod", func() { n.readmits++ }
	if b.Follower, err = New(b.config); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// rekey changes the keys, and lets the follower see it.
func (b *trusted) rekey(keys ...pair) {
	b.t.Helper()
	b.write(keys...)
	for range 3 {
		time.Sleep(time.Second)
		if b.followKeys() {
			return
		}
	}
	b.t.Fatal("the keys are not read again")
}

// sign adds a signature to a version in the store.
func (b *trusted) sign(version int64, by pair) {
	b.t.Helper()
	path := filepath.Join(b.root, "models", "ncf", fmt.Sprint(version, ".json"))
	document, err := os.ReadFile(path)
	var signature []byte
	if err == nil {
		signature, err = by.signer.Sign(document)
	}
	if err == nil {
		err = os.WriteFile(path+".minisig", signature, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *trusted) admits(when string, version int64, says string) {
	b.t.Helper()
	err := b.Admit(b.t.Context(), &models.Version{Model: "ncf", Number: version})
	if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
		b.t.Errorf("%s: version %d: got %v, want %q", when, version, err, says)
	}
}

func (b *trusted) untrustedAre(when string, want float64) {
	b.t.Helper()
	if got := testutil.ToFloat64(b.config.Metrics.untrusted); got != want {
		b.t.Errorf("%s: muster_store_untrusted_versions is %v, want %v", when, got, want)
	}
}

// TestRequire: what is on the disk is covered as well. A version that was installed before signatures
// were required is loaded once the store has one for it; a key that is taken out unloads nothing, is
// told, and keeps new loads out; a revocation unloads.
func TestRequire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := newBench(t, nil)
		first, second := newPair(t), newPair(t)
		before.push("ncf", 1, 10)
		before.look()
		b := before.require(first, second)
		b.admits("not signed", 1, "it has no signature")
		b.look()
		b.admits("the store has no signature either", 1, "it has no signature")
		if !b.says("muster models push --sign KEY") {
			t.Error("the log does not say how to sign it")
		}
		b.holds("not signed", "ncf/1")

		b.sign(1, first)
		b.readmits = 0
		time.Sleep(b.config.Poll)
		b.look()
		b.admits("signed", 1, "")
		if b.readmits == 0 {
			t.Error("what was refused is not tried again")
		}
		b.ready(1)
		b.look()
		b.untrustedAre("signed", 0)

		b.rekey(second)
		time.Sleep(b.config.Poll)
		b.look()
		b.holds("the key is taken out", "ncf/1")
		b.untrustedAre("the key is taken out", 1)
		b.admits("the key is taken out", 1, "has signed it, trusted is")
		if !b.says("it keeps serving") {
			t.Error("no event says that a version serves that nobody trusted has signed")
		}
		if note := b.Note("ncf", 1); !strings.Contains(note, "not signed by a key of --require-signature") {
			t.Errorf("the note on it is %q", note)
		}
		b.push("ncf", 2, 10)
		b.sign(2, first)
		time.Sleep(b.config.Poll)
		b.look()
		b.holds("a new version of that key", "ncf/1")

		if err := b.store.Revoke(t.Context(), store.Revocation{
			Fleet: "prod", Model: "ncf", Version: 1,
		}, first.signer); err != nil {
			t.Fatal(err)
		}
		time.Sleep(b.config.Poll)
		b.look()
		b.holds("revoked by that key", "ncf/1")
		if err := os.RemoveAll(filepath.Join(b.root, "models", "ncf", "revoked")); err != nil {
			t.Fatal(err)
		}
		if err := b.store.Revoke(t.Context(), store.Revocation{
			Fleet: "prod", Model: "ncf", Version: 1,
		}, second.signer); err != nil {
			t.Fatal(err)
		}
		b.look()
		b.holds("revoked")
		b.ready()
		b.look()
		b.untrustedAre("revoked", 0)
		if !b.says("a version is revoked, and unloaded") {
			t.Error("no event says that the version is revoked")
		}
	})
}

// TestOwnFolder: a folder that its operator has placed is loaded, and named as one that nobody signed.
func TestOwnFolder(t *testing.T) {
	b := newBench(t, nil).require(newPair(t))
	if err := os.MkdirAll(filepath.Join(b.dir, "ncf", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.admits("by hand", 1, "")
	if !b.says("nobody has signed it") {
		t.Error("the log does not say that nobody has signed it")
	}
	if note := b.Note("ncf", 1); !strings.Contains(note, "not from the model store") {
		t.Errorf("the note on it is %q", note)
	}
}

// TestRevokedUnsigned: where no signatures are required, who may write to the store revokes.
func TestRevokedUnsigned(t *testing.T) {
	b := newBench(t, nil)
	b.push("ncf", 1, 10)
	b.push("ncf", 2, 10)
	b.released["ncf"] = []int64{1}
	b.look()
	b.ready(1, 2)
	b.holds("before", "ncf/1", "ncf/2")
	if err := b.store.Revoke(t.Context(), store.Revocation{Model: "ncf", Version: 1}, nil); err != nil {
		t.Fatal(err)
	}
	b.look()
	b.holds("1 is revoked, though it is released", "ncf/2")
	b.look()
	b.holds("at the next look", "ncf/2")
}
