package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/muster-serve/muster"
)

// mit is a text of the licence with the copyright line given.
func mit(t *testing.T, copyright string) string {
	t.Helper()
	text, err := os.ReadFile("../../../runtime/internal/ortlib/LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(text), "Copyright (c) Microsoft Corporation", copyright, 1)
}

func TestRender(t *testing.T) {
	first, second := mit(t, "Copyright (c) One"), mit(t, "Copyright (c) Another")
	components := []component{
		{"example.com/b", "v1.2.3", map[string]string{"LICENSE": first + "  \r\n"}},
		{"example.com/a", "v0.0.1", map[string]string{
			"LICENSE": second, "NOTICE": "to be passed on\r\n",
		}},
		{"example.com/c", "v2.0.0", map[string]string{"LICENSE": first}},
	}
	got, err := render(components)
	if err != nil {
		t.Fatal(err)
	}
	mark := func(text string) string {
		sum := sha256.Sum256([]byte(strings.Join(strings.Fields(text), " ")))
		return fmt.Sprintf("[%x]", sum[:4])
	}
	one, other, notice := mark(first), mark(second), mark("to be passed on")
	for _, want := range []string{
		"  example.com/a v0.0.1\n      MIT " + other + " " + notice + "\n" +
			"  example.com/b v1.2.3\n      MIT " + one + "\n  example.com/c v2.0.0\n      MIT " +
			one + "\n",
		"\n" + notice + " example.com/a\n" + rule + "\n\nto be passed on\n",
		"\n" + one + " example.com/b\n           example.com/c\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("there is no %q", want)
		}
	}
	if n := strings.Count(string(got), "Copyright (c) One"); n != 1 {
		t.Errorf("a text that two have is there %d times", n)
	}
	if strings.Contains(string(got), "\r") {
		t.Error("lines end with carriage returns")
	}
}

// TestRefused: somebody has to look at a licence before it is in a binary.
func TestRefused(t *testing.T) {
	gpl := "This program is free software: you can redistribute it and/or modify it under the " +
		"terms " +
		"of the GNU General Public License as published by the Free Software Foundation, either " +
		"version 3 of the License, or (at your option) any later version."
	for name, texts := range map[string]map[string]string{
		"copyleft":      {"LICENSE": mit(t, "Copyright (c) One"), "LICENSE.tools": gpl},
		"unknown":       {"LICENSE": "Ask me."},
		"none":          {},
		"only a notice": {"NOTICE": "See https://opensource.org/licenses/MIT."},
	} {
		_, err := render([]component{{"example.com/" + name, "v1.0.0", texts}})
		if err == nil || !strings.Contains(err.Error(), "example.com/"+name+" v1.0.0") {
			t.Errorf("%s: got error %v, want one that names it", name, err)
		}
	}
}

func TestLegal(t *testing.T) {
	for name, want := range map[string]bool{
		"LICENSE": true, "License.txt": true, "LICENSE-SIL": true, "licenses": true,
		"LICENCE.md": true, "COPYING": true, "NOTICE.txt": true, "THIRD_PARTY_LICENSES": true,
		"ThirdPartyNotices.txt": true, "Sun-LICENSE": true, "CATALOGUE-SOURCE.md": true,
		"source": false, "main.go": false, "licensed": false, "noticeable": false,
		"README.md": false,
	} {
		if got := legal.MatchString(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

// TestCompare: a NOTICE that leaves something out is found, and where.
func TestCompare(t *testing.T) {
	if err := compare(muster.Notice, muster.Notice); err != nil {
		t.Error(err)
	}
	lines := strings.SplitAfter(muster.Notice, "\n")
	old := strings.Join(append(lines[:20:20], lines[22:]...), "")
	for _, have := range []string{old, strings.Join(lines[:20], "")} {
		if err := compare(have, muster.Notice); err == nil ||
			!strings.Contains(err.Error(), "line 21 ") {
			t.Errorf("got error %v, want one that names line 21", err)
		}
	}
}
