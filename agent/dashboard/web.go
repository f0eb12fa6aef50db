package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed web
var embedded embed.FS

// A page is the embedded files, by path below /dashboard/. It is never changed.
type page struct {
	files map[string]*file
	build string // a hash of all files
}

type file struct {
	content, zipped []byte // zipped is nil if it would be no shorter
	kind, tag       string
}

// thePage returns the embedded page. Tests of scripts, *.test.js, are not part of it.
var thePage = sync.OnceValue(func() *page {
	p := &page{files: map[string]*file{}}
	all := sha256.New()
	err := fs.WalkDir(embedded, "web", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, ".test.js") {
			return err
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		f := &file{content: content, zipped: compressGzip(content), kind: kindOf(name)}
		sum := sha256.Sum256(content)
		f.tag = `"` + hex.EncodeToString(sum[:8]) + `"`
		_, _ = all.Write(append([]byte(name), sum[:]...)) // never fails
		p.files[strings.TrimPrefix(name, "web/")] = f
		return nil
	})
	if err != nil {
		panic(err) // what is embedded can be read
	}
	p.files[""] = p.files["index.html"]
	p.build = hex.EncodeToString(all.Sum(nil)[:8])
	return p
})

// kindOf is the content type of a file. It does not depend on what the machine has in /etc.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt", "":
		return "text/plain; charset=utf-8"
	}
	if kind := mime.TypeByExtension(path.Ext(name)); kind != "" {
		return kind
	}
	return "application/octet-stream"
}

func compressGzip(content []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	_, _ = w.Write(content)                               // a buffer takes everything
	_ = w.Close()
	if b.Len() >= len(content) {
		return nil
	}
	return b.Bytes()
}

// policy allows the page nothing but its own files and this agent's data: no inline script or
// style, and no request to elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; font-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action " +
	"'self'"

// setSecurityHeaders sets the headers of every answer under /dashboard/.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
}

// serveFile answers GET /dashboard/FILE.
func (p *page) serveFile(w http.ResponseWriter, req *http.Request) {
	f := p.files[req.PathValue("file")]
	if f == nil {
		writeError(w, http.StatusNotFound, "no such file of the dashboard: see /dashboard/")
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if req.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	content := f.content
	if f.zipped != nil && strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content = f.zipped
	}
	_, _ = w.Write(content) // fails only if the client has gone
}
