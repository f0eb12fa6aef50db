package main

import (
	"crypto/sha256"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/runtime/internal/ortlib"
)

func TestAdd(t *testing.T) {
	out, err := add([]byte(`{"bomFormat": "CycloneDX", "version": 1,
		"metadata": {"component": {"bom-ref": "muster"}},
		"components": [{"bom-ref": "a<b>", "name": "a"}],
		"dependencies": [{"ref": "a<b>"}, {"ref": "muster", "dependsOn": ["a<b>"]}]}`),
		sha256.Sum256([]byte("library")))
	if err != nil {
		t.Fatal(err)
	}
	type hash struct{ Alg, Content string }
	type component struct {
		Ref     string `json:"bom-ref"`
		Name    string
		Version string
		Hashes  []hash
	}
	type dependency struct {
		Ref       string
		DependsOn []string
	}
	type bom struct {
		BOMFormat    string
		Version      int
		Components   []component
		Dependencies []dependency
	}
	var got bom
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	const ref = "pkg:github/microsoft/onnxruntime@v" + ortlib.Version
	want := bom{
		BOMFormat: "CycloneDX", Version: 1,
		Components: []component{
			{Ref: "a<b>", Name: "a"},
			{Ref: ref, Name: "onnxruntime", Version: ortlib.Version, Hashes: []hash{
				// sha256sum of "library"
				{"SHA-256", "b718f1354f7247312eca086d9a024afe5fa717ddea5adeddd6f12bcf945b2e8c"},
			}},
		},
		Dependencies: []dependency{
			{Ref: "a<b>"}, {Ref: "muster", DependsOn: []string{"a<b>", ref}}, {Ref: ref},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAddRefuses(t *testing.T) {
	for _, sbom := range []string{
		``, `[]`, `{}`, `{"bomFormat": "CycloneDX"}`,
		`{"bomFormat": "SPDX", "metadata": {"component": {"bom-ref": "x"}},
			"dependencies": [{"ref": "x"}]}`,
		`{"bomFormat": "CycloneDX", "metadata": {"component": {"bom-ref": "x"}},
			"dependencies": [{"ref": "y"}]}`,
	} {
		if out, err := add([]byte(sbom), [sha256.Size]byte{}); err == nil {
			t.Errorf("%q: got no error but %s", sbom, out)
		}
	}
}
