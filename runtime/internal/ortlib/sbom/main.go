// Sbom adds the embedded ONNX Runtime library to a CycloneDX SBOM (software bill of materials) of a
// muster binary. cyclonedx-gomod, which makes the SBOM, lists only the binary's Go modules.
// scripts/packages.sh calls this program.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/muster-serve/muster/runtime/internal/ortlib"
)

func main() {
	sbom := flag.String("sbom", "", "SBOM in JSON to add ONNX Runtime to")
	libraries := flag.String("libraries", "", "folder of the library that the binary embeds")
	flag.Parse()
	if err := run(*sbom, filepath.Join(*libraries, "libonnxruntime.so."+ortlib.Version)); err !=
		nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(sbom, library string) error {
	before, err := os.ReadFile(sbom)
	if err != nil {
		return err
	}
	lib, err := os.ReadFile(library)
	if err != nil {
		return err
	}
	after, err := add(before, sha256.Sum256(lib))
	if err != nil {
		return fmt.Errorf("%s: %w", sbom, err)
	}
	return os.WriteFile(sbom, after, 0o644)
}

// add returns the SBOM with ONNX Runtime as a component on which the main component depends.
func add(sbom []byte, sum [sha256.Size]byte) ([]byte, error) {
	var bom map[string]any
	decoder := json.NewDecoder(bytes.NewReader(sbom))
	decoder.UseNumber()
	if err := decoder.Decode(&bom); err != nil {
		return nil, err
	}
	metadata, _ := bom["metadata"].(map[string]any)
	component, _ := metadata["component"].(map[string]any)
	root, _ := component["bom-ref"].(string)
	components, _ := bom["components"].([]any)
	dependencies, _ := bom["dependencies"].([]any)
	if bom["bomFormat"] != "CycloneDX" || root == "" {
		return nil, errors.New("no CycloneDX SBOM with a main component")
	}
	var own map[string]any
	for _, d := range dependencies {
		if d, ok := d.(map[string]any); ok && d["ref"] == root {
			own = d
		}
	}
	if own == nil {
		return nil, fmt.Errorf("no dependencies of %s", root)
	}

	const ref = "pkg:github/microsoft/onnxruntime@v" + ortlib.Version
	bom["components"] = append(components, map[string]any{
		"bom-ref": ref, "purl": ref,
		"type": "library", "name": "onnxruntime", "version": ortlib.Version,
		"supplier":    map[string]any{"name": "Microsoft Corporation"},
		"description": "ONNX Runtime's library for CPUs, embedded in the binary",
		"hashes": []any{
			map[string]any{"alg": "SHA-256", "content": hex.EncodeToString(sum[:])},
		},
		"licenses": []any{map[string]any{"license": map[string]any{"id": "MIT"}}},
	})
	on, _ := own["dependsOn"].([]any)
	own["dependsOn"] = append(on, ref)
	bom["dependencies"] = append(dependencies, map[string]any{"ref": ref})

	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(bom)
	return out.Bytes(), err
}
