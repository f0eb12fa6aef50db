package dashboard

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestVendoredFiles holds what the page has from others to the checksums that are written down.
func TestVendoredFiles(t *testing.T) {
	sums, err := embedded.ReadFile("web/vendor/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(string(sums))); lines.Scan(); {
		sum, name, _ := strings.Cut(lines.Text(), "  ")
		want[name] = sum
	}
	err = fs.WalkDir(embedded, "web/vendor", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Dir(name) == "web/vendor" {
			return err
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		short := strings.TrimPrefix(name, "web/vendor/")
		sum := sha256.Sum256(content)
		if got := hex.EncodeToString(sum[:]); got != want[short] {
			t.Errorf("%s has the checksum %s, want %q", short, got, want[short])
		}
		delete(want, short)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range want {
		t.Errorf("%s is gone", name)
	}
}

// TestPageKeepsToItself: no file of ours asks another site for anything, makes markup of texts,
// runs texts, or has a script or a style in its markup; and all of them stay small.
func TestPageKeepsToItself(t *testing.T) {
	const most = 200 << 10 // bytes of all files of ours
	never := map[string]*regexp.Regexp{
		"an address elsewhere": regexp.MustCompile(`(https?:)?//[a-z0-9-]+\.[a-z]{2}`),
		"markup of texts": regexp.MustCompile(
			`innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|ContextualFragment`),
		"running texts": regexp.MustCompile(
			`\beval\(|new Function\(|set(Timeout|Interval)\(["'` + "`" + `]`),
		"a style of texts": regexp.MustCompile(`setAttribute\("style"|cssText|style="`),
		"a handler":        regexp.MustCompile(`\son[a-z]+="`),
		"an inline script": regexp.MustCompile(`<script[^>]*>[^<]|<style`),
	}
	total := 0
	for name, f := range thePage().files {
		if name == "" || strings.HasPrefix(name, "vendor/") {
			continue
		}
		total += len(f.content)
		text := strings.ReplaceAll(string(f.content), "http://www.w3.org/2000/svg", "")
		for what, pattern := range never {
			if found := pattern.FindString(text); found != "" {
				t.Errorf("%s has %s: %q", name, what, found)
			}
		}
	}
	if total > most {
		t.Errorf("the page's own files have %d bytes, want %d at most", total, most)
	}
}
