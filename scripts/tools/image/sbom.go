package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const sbomType = "application/vnd.cyclonedx+json"

// A component is one of CycloneDX.
type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
}

// wheel is a line of a list of wheels.
var wheel = regexp.MustCompile(`(?m)^([A-Za-z0-9._-]+)==([^\s\\]+)`)

// newSBOM lists what an image holds: Debian's packages, the modules that are linked into the program,
// as the program itself says, and the wheels that its other libraries come from.
func newSBOM(dir, image, version string, debs []string) ([]byte, error) {
	program := filepath.Join(dir, "muster")
	var parts []component
	for _, deb := range debs {
		fields, err := fieldsOf(deb, "Package", "Version", "Architecture")
		if err != nil {
			return nil, err
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s: fields %q, want a name, a version and an architecture", deb,
				fields)
		}
		name, v, arch := strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1]),
			strings.TrimSpace(fields[2])
		parts = append(parts, component{"library", name, v, fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s",
			url.PathEscape(name), url.PathEscape(v), arch)})
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	parts = append(parts, component{"library", "go", info.GoVersion,
		"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")})
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, component{"library", m.Path, m.Version,
			"pkg:golang/" + m.Path + "@" + m.Version})
	}
	wheels, err := os.ReadFile(filepath.Join(dir, "wheels.txt"))
	if err != nil {
		return nil, err
	}
	for _, found := range wheel.FindAllStringSubmatch(string(wheels), -1) {
		parts = append(parts, component{"library", found[1], found[2],
			"pkg:pypi/" + found[1] + "@" + found[2]})
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata": map[string]any{"component": component{
			"container", image, version, "pkg:oci/" + image + "@" + url.PathEscape(version),
		}},
		"components": parts,
	}, "", "  ")
}
