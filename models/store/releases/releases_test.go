package releases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"aead.dev/minisign"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	shared "github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/models/store"
)

// opened is a store in an empty folder, which is there too, with version 1 of ncf.
func opened(t *testing.T) (*store.Store, string) {
	t.Helper()
	dir := t.TempDir()
	folder := filepath.Join(t.TempDir(), "ncf")
	if err := os.MkdirAll(filepath.Join(folder, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "1", "model.onnx"), []byte("x"),
		0o644); err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Directory(dir), "store")
	if _, err := s.Push(t.Context(), folder, 1, store.PushOptions{}); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// TestCreate: a release is read as it was written. Of many that write the next one at once, one
// wins; a write that is repeated has won before.
func TestCreate(t *testing.T) {
	s, _ := opened(t)
	ctx := t.Context()
	if r, entry, err := Newest(ctx, s, "ncf"); r != nil || err != nil || len(entry.Versions) != 1 {
		t.Fatalf("nothing released: got %v, %+v, %v", r, entry, err)
	}
	if _, _, err := Newest(ctx, s, "nfc"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("no such model: got %v", err)
	}
	var won *control.Release
	for number := uint64(1); number <= 10; number++ {
		var winners atomic.Int64
		var writers sync.WaitGroup
		for i := range int64(4) {
			writers.Go(func() {
				r := &control.Release{
					Model: "ncf", Number: number, Current: 1, Canary: 2 + i, Share: .25,
					Previous: 7,
					Why:      "on trial <é>", By: fmt.Sprint("somebody ", i), TimeUnixNs: 1 << 62,
					Tolerance: .1, PromoteAfterNs: 5, PromoteQueries: 6, Kept: 3, Epoch: 4,
				}
				err := Create(ctx, s, r)
				if err == nil {
					winners.Add(1)
					won = r
					err = Create(ctx, s, r)
				}
				if err != nil && !errors.Is(err, store.ErrExists) {
					t.Errorf("release %d: %v", number, err)
				}
			})
		}
		writers.Wait()
		if winners.Load() != 1 {
			t.Fatalf("%d writers won, want one", winners.Load())
		}
		got, _, err := Newest(ctx, s, "ncf")
		want := proto.CloneOf(won)
		want.Kept, want.Epoch = number, 0
		if err != nil || !proto.Equal(got, want) {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	}
}

// TestRead: a document that is none of ours is named.
func TestRead(t *testing.T) {
	s, dir := opened(t)
	path := filepath.Join(dir, "models", "ncf", "releases", "3.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	good := `{"model": "ncf", "number": "3", "current": "1", "of a later program": 1, "epoch": 9, "why": "` +
		strings.Repeat("y", 60000) + `"}`
	for _, tt := range []struct{ text, says string }{
		{`{"format": 1, "release": ` + good + `}`, ""},
		{`{"format": 99, "release": ` + good + `}`, "requires format 99, but this version of Muster"},
		{`{"format": 1, "requires": 99, "release": {"of a later": "form"}}`, "requires format 99"},
		{`{"format": 1, "requires": 1, "of a later program": 1, "release": ` + good + `}`, ""},
		{`{"release": ` + good + `}`, "format is 0, want 1"},
		{`{"format": 1, "requires": "2", "release": ` + good + `}`, "requires"},
		{`{"format": 1}`, "syntax error"},
		{`{"format": 1, "release": {"model": "wnd", "number": 3, "current": 1}}`, `model "wnd"`},
		{`{"format": 1, "release": {"model": "ncf", "number": 4, "current": 1}}`, "number 4"},
		{`{"format": 1, "release": {"model": "ncf", "number": 3}}`, "version 0"},
		{`{"format": 1, "release": {"model": "ncf", "number": 3, "current": 1, "canary": 2, "share": ` +
			`"NaN"}}`, "share NaN"},
		{`{"format": 1, "release": {"model": "ncf", "number": 3, "current": 1, "why": "` +
			strings.Repeat("x", 1<<21) + `"}}`, "more than 65536 bytes"},
		{`{"format": 1, "release": {"model": "ncf", "number": "x"}}`, "invalid value"},
		{`{`, "unexpected end"},
		{``, "unexpected end"},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := Read(context.Background(), s, "ncf", 3)
		if tt.says == "" {
			if err != nil || r.GetKept() != 3 || r.GetEpoch() != 0 || len(r.GetWhy()) > 1024 {
				t.Errorf("%s: got %v, %v", tt.text, r, err)
			}
			continue
		}
		if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), tt.says) ||
			!strings.Contains(err.Error(), "release 3 of ncf in store") {
			t.Errorf("%.80s: got %v, want %q", tt.text, err, tt.says)
		}
	}
}

// TestStrange: a release that leaves no room for later ones is passed over, whatever it says, and
// those that are not valid keep nobody from the next one.
func TestStrange(t *testing.T) {
	s, dir := opened(t)
	if err := Create(t.Context(), s, &control.Release{Model: "ncf", Number: 1, Current: 1}); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "models", "ncf", "releases")
	for _, number := range []uint64{2, 1<<63 - 1, 1 << 40, 1<<20 + 3} {
		path := filepath.Join(folder, fmt.Sprint(number, ".json"))
		if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, entry, err := NewestValid(t.Context(), s, "ncf", Trust{})
	if err != nil || r.GetNumber() != 1 || entry.Release != 2 || entry.Strange != 1<<20+3 {
		t.Errorf("got %v, %+v, %v, want release 1, and 2 as the newest number", r, entry, err)
	}
	if err := entry.StrangeRelease("ncf"); err == nil ||
		!strings.Contains(err.Error(), "release 1048579 of ncf and those above it are ignored") {
		t.Errorf("got %v", err)
	}
	if r, _, err := Newest(t.Context(), s, "ncf"); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("the newest: got %v, %v, want an error", r, err)
	}
	// Agents of a later version follow this one, so the next release must not be based on an older one.
	if err := os.WriteFile(filepath.Join(folder, "2.json"), []byte(`{"format": 9}`), 0o644); err != nil {
		t.Fatal(err)
	}
	var later *shared.FormatError
	if r, _, err := NewestValid(t.Context(), s, "ncf", Trust{}); r != nil || !errors.As(err, &later) {
		t.Errorf("a release of a later format: got %v, %v, want an error that says so", r, err)
	}
}

// signer returns a new key.
func signer(t *testing.T) *store.Signer {
	t.Helper()
	_, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := private.MarshalText()
	path := filepath.Join(t.TempDir(), "key")
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.ReadSigner(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTrust: where signatures are required a release counts as what its signer has signed: nobody can
// have an old one count as a newer one, for another model or in another fleet. What others read of it
// is as before.
func TestTrust(t *testing.T) {
	s, dir := opened(t)
	ctx := t.Context()
	key, stranger := signer(t), signer(t)
	trust := Trust{Keys: key.Key, Fleet: "prod", URL: "s3://acme"}
	r := &control.Release{Model: "ncf", Number: 1, Current: 1, Why: "promoted"}
	if err := Create(ctx, s, r); err != nil {
		t.Fatal(err)
	}
	r.Number = 2
	if err := CreateSigned(ctx, s, r, key, "prod"); err != nil {
		t.Fatal(err)
	}
	r.Number = 3
	if err := CreateSigned(ctx, s, r, key, "staging"); err != nil {
		t.Fatal(err)
	}
	r.Number = 4
	if err := CreateSigned(ctx, s, r, stranger, "prod"); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "models")
	for _, model := range []string{"ncf/releases/5", "wnd/releases/2"} {
		for _, end := range []string{".json", ".json.minisig"} {
			data, err := os.ReadFile(filepath.Join(folder, "ncf/releases/2"+end))
			path := filepath.Join(folder, model+end)
			if err == nil {
				err = os.MkdirAll(filepath.Dir(path), 0o755)
			}
			if err == nil {
				err = os.WriteFile(path, data, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		model  string
		number uint64
		is     error
		says   string
	}{
		{"ncf", 2, nil, ""},
		{"ncf", 1, store.ErrSignature, "muster models release ncf --store s3://acme --fleet-name prod " +
			"--sign KEY"},
		{"ncf", 3, store.ErrSignature, `signed for the fleet "staging"`},
		{"ncf", 4, store.ErrSignature, "has signed it, trusted is"},
		{"ncf", 5, store.ErrInvalid, "it is number 2"},
		{"wnd", 2, store.ErrInvalid, `of model "ncf"`},
		{"ncf", 6, store.ErrNotFound, ""},
	} {
		got, err := ReadTrusted(ctx, s, tt.model, tt.number, trust)
		if !errors.Is(err, tt.is) || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s %d: got %v, %v, want %v that says %q", tt.model, tt.number, got, err, tt.is,
				tt.says)
		}
	}
	if got, err := Read(ctx, s, "ncf", 3); err != nil || got.GetWhy() != "promoted" {
		t.Errorf("without keys: got %v, %v", got, err)
	}
	got, entry, err := NewestValid(ctx, s, "ncf", trust)
	if err != nil || got.GetNumber() != 2 || entry.Release != 5 {
		t.Errorf("the newest that counts: got %v, %v, %v, want number 2", got, entry, err)
	}
}
