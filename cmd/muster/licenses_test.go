package main

import (
	"strings"
	"testing"
)

// TestLicenses: the one file to install says what it holds of others, and under which licences.
func TestLicenses(t *testing.T) {
	out, _, err := execute(t, "licenses")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Apache License\n", "Copyright 2026 The Muster Authors\n",
		"  ONNX Runtime 1.", "  google.golang.org/grpc v1.",
		"  Go's runtime and standard library\n",
		"Copyright (c) Microsoft Corporation\n", "Mozilla Public License",
		// in ONNX Runtime
		"THIRD PARTY SOFTWARE NOTICES AND INFORMATION\n", "Intel Math Kernel Library",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q", want)
		}
	}
}
