package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// pageURL is where an agent shows the fleet.
func pageURL(n *harness.Node) string { return "http://" + n.HTTP + "/dashboard/" }

func (d *demo) pagePicturePath() string { return filepath.Join(d.dir, "dashboard.png") }

// takePagePicture takes a picture of an agent's page, if there is a Chromium, within a minute. It
// returns where the picture is, or why there is none.
func (d *demo) takePagePicture(ctx context.Context, n *harness.Node) string {
	var browser string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		return ""
	}
	if err := d.takeScreenshot(ctx, browser, n); err != nil {
		return fmt.Sprintf("There is no picture of the page: %v", err)
	}
	return "Picture of the page: " + d.pagePicturePath()
}

func (d *demo) takeScreenshot(ctx context.Context, browser string, n *harness.Node) error {
	path, err := filepath.Abs(d.pagePicturePath())
	if err != nil {
		return err
	}
	url, stop, err := slowly(n)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	profile := filepath.Join(d.dir, "chromium")
	defer os.RemoveAll(profile)
	args := []string{
		"--headless=new", "--disable-gpu", "--hide-scrollbars", "--window-size=1440,1700",
		"--user-data-dir=" + profile, "--blink-settings=preferredColorScheme=0",
		"--screenshot=" + path, url,
	}
	if os.Geteuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...) // which root cannot have
	}
	cmd := exec.CommandContext(ctx, browser, args...)
	cmd.SysProcAttr = harness.ChildAttributes()
	cmd.WaitDelay = time.Second
	_ = os.Remove(path) // of an earlier demo
	if err := cmd.Run(); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s has written none", browser)
	}
	return nil
}

// slowly passes an agent's page on at an address of its own, with an image in it that comes a
// moment after the third beat: Chromium takes its picture once all of a page is there, and beats
// come later than its files.
func slowly(n *harness.Node) (address string, stop func(), err error) {
	target, err := url.Parse("http://" + n.HTTP)
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	seen := make(chan struct{})
	enough := sync.OnceFunc(func() { close(seen) })
	const later = "/dashboard/later.svg"
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // or the page would come compressed
		},
		ModifyResponse: func(resp *http.Response) error {
			switch resp.Request.URL.Path {
			case "/dashboard/":
			case "/dashboard/api/stream":
				resp.Body = &beats{ReadCloser: resp.Body, left: 3, enough: enough}
				return nil
			default:
				return nil
			}
			page, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			page = append(page, `<img alt="" src="`+later+`">`...)
			resp.Body = io.NopCloser(bytes.NewReader(page))
			resp.Header.Set("Content-Length", fmt.Sprint(len(page)))
			return nil
		},
	}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.HandleFunc(later, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-seen:
			time.Sleep(2 * time.Second) // the page draws
		case <-time.After(20 * time.Second):
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNoContent)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(l) //nolint:errcheck // it ends with Close
	return "http://" + l.Addr().String() + "/dashboard/", func() { server.Close() }, nil
}

// A beats is the body of a stream, and calls enough when so many beats have passed.
type beats struct {
	io.ReadCloser
	left   int
	enough func()
}

func (b *beats) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		if b.left -= bytes.Count(p[:n], []byte("event: beat")); b.left <= 0 {
			b.enough()
		}
	}
	return n, err
}
