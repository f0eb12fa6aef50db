package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// accountDir is where a pod finds the token and the certificates of its service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// callTimeout bounds a call of the API server, but not a watch. Chosen: the server itself gives
	// up after a minute.
	callTimeout = time.Minute
	// maxTries is how often a call is made that the server throttles, and maxRetryAfter the longest
	// wait between two that is worth it.
	maxTries, maxRetryAfter = 3, 10 * time.Second
	// maxAnswer bounds an answer. A list of 10,000 pods has 100 MB.
	maxAnswer = 256 << 20
)

// An Account says how the API server is reached. The zero value is that of the pod that this process
// runs in.
type Account struct {
	Server string // the URL; "": that of the cluster that this process runs in
	// TokenFile and CAFile are files with the token, which is read again for each call since it is
	// replaced every hour, and with the server's CA; "" with a Server: none.
	TokenFile, CAFile string
	Namespace         string // "": that of the pod
}

// A client calls the API server of a cluster. Its methods may be called concurrently. It knows five
// verbs and nothing of what the objects mean: client-go, which does, brings 213 packages and 20 MB.
type client struct {
	server    string
	tokenFile string
	namespace string
	http      *http.Client
	// ahead is by how much the server's clock, as its last answer says, is ahead of this machine's.
	ahead atomic.Int64
}

// now is the time by the server's clock.
func (c *client) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// newClient reads the account.
func newClient(a Account) (*client, error) {
	if a.Server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" {
			return nil, errors.New("this process runs in no pod, so it knows no API server: name one " +
				"with kubernetes.server, such as that of `kubectl proxy`, http://127.0.0.1:8001")
		}
		a.Server = "https://" + net.JoinHostPort(host, port)
		if a.TokenFile == "" {
			a.TokenFile = accountDir + "/token"
		}
		if a.CAFile == "" {
			a.CAFile = accountDir + "/ca.crt"
		}
	}
	if a.Namespace == "" {
		text, err := os.ReadFile(accountDir + "/namespace")
		if a.Namespace = strings.TrimSpace(string(text)); a.Namespace == "" {
			return nil, fmt.Errorf("no namespace: name one with kubernetes.namespace: %w", err)
		}
	}
	transport := &http.Transport{
		ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment,
		// A watch is silent for long, and a peer that is gone must not look like that.
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second},
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
	}
	if a.CAFile != "" {
		text, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the API server's CA: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("the API server's CA: %s has no certificate", a.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &client{
		server: strings.TrimSuffix(a.Server, "/"), tokenFile: a.TokenFile, namespace: a.Namespace,
		http: &http.Client{Transport: transport},
	}, nil
}

// close closes connections that are not in use.
func (c *client) close() { c.http.CloseIdleConnections() }

// An apiError is an answer of the API server that is an error.
type apiError struct {
	Code    int    `json:"code"`   // as of HTTP
	Reason  string `json:"reason"` // such as AlreadyExists
	Message string `json:"message"`
	call    string
	after   time.Duration // when to try again; 0: nobody says
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.call, e.Code, e.Reason, e.Message)
}

// codeOf is the code of an answer that is an error; 0 if err is none.
func codeOf(err error) int {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.Code
	}
	return 0
}

// open makes a call and returns the answer's body, which the caller closes. Its errors are those of
// the transport and *apiError.
func (c *client) open(ctx context.Context, method, path, kind string, in any) (io.ReadCloser,
	error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "muster")
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("the service account's token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		c.ahead.Store(int64(time.Until(date)))
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10)) // what there is says more than nothing
	short, _, _ := strings.Cut(path, "?")
	e := &apiError{}
	if json.Unmarshal(text, e) != nil || e.Message == "" { // of a proxy
		e.Message = strings.TrimSpace(string(text))
	}
	e.Code, e.call = resp.StatusCode, method+" "+short
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
		e.after = time.Duration(s) * time.Second
	}
	return nil, e
}

// call makes a call, again where the server throttles it and says when, and reads the answer into
// out; nil: it is of no interest.
func (c *client) call(ctx context.Context, method, path, kind string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 1; ; try++ {
		body, err := c.open(ctx, method, path, kind, in)
		if e, ok := errors.AsType[*apiError](err); ok && e.Code == http.StatusTooManyRequests &&
			try < maxTries && e.after <= maxRetryAfter {
			select {
			case <-time.After(max(e.after, time.Second)):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil {
			return err
		}
		defer body.Close()
		if out == nil {
			_, err = io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
			return err
		}
		if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(out); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		return nil
	}
}

const (
	asJSON       = "application/json"
	asMergePatch = "application/merge-patch+json"
)

// path is that of objects of the namespace: of all of a kind, or of one by its name.
func (c *client) path(resource string, name ...string) string {
	path := "/api/v1/namespaces/" + url.PathEscape(c.namespace) + "/" + resource
	for _, n := range name {
		path += "/" + url.PathEscape(n)
	}
	return path
}

// list lists objects that have labels.
func (c *client) list(ctx context.Context, resource, labels string, out any) error {
	return c.call(ctx, "GET", c.path(resource)+"?labelSelector="+url.QueryEscape(labels), "", nil, out)
}

// get reads an object.
func (c *client) get(ctx context.Context, resource, name string, out any) error {
	return c.call(ctx, "GET", c.path(resource, name), "", nil, out)
}

// create makes an object. dry: only tries to.
func (c *client) create(ctx context.Context, resource string, dry bool, in, out any) error {
	path := c.path(resource)
	if dry {
		path += "?dryRun=All"
	}
	return c.call(ctx, "POST", path, asJSON, in, out)
}

// patch merges what is given into the object with this name, if it has this UID.
func (c *client) patch(ctx context.Context, resource, name, uid string,
	metadata map[string]any) error {
	metadata["uid"] = uid // another one is a conflict
	return c.call(ctx, "PATCH", c.path(resource, name), asMergePatch,
		map[string]any{"metadata": metadata}, nil)
}

// remove deletes the object with this name, if it has this UID.
func (c *client) remove(ctx context.Context, resource, name, uid string) error {
	return c.call(ctx, "DELETE", c.path(resource, name), asJSON, map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]string{"uid": uid},
	}, nil)
}

// An event is a line of a watch.
type event struct {
	Type   string          `json:"type"` // ADDED, MODIFIED, DELETED, BOOKMARK, ERROR
	Object json.RawMessage `json:"object"`
}

// watch calls do with each event of objects that have labels, from a version on, until ctx ends or
// the watch breaks; the server ends it after some minutes. An error of the code 410 or 504 says
// that the version is too old, or not known yet: list again.
func (c *client) watch(ctx context.Context, resource, labels, version string,
	do func(event) error) error {
	query := url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "labelSelector": {labels},
		"resourceVersion": {version}, "timeoutSeconds": {"300"},
	}
	body, err := c.open(ctx, "GET", c.path(resource)+"?"+query.Encode(), "", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	for events := json.NewDecoder(body); ; {
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if e.Type == "ERROR" {
			fault := &apiError{call: "watch " + resource}
			if err := json.Unmarshal(e.Object, fault); err != nil {
				return err
			}
			return fault
		}
		if err := do(e); err != nil {
			return err
		}
	}
}

// may reports whether this account has a right, to the object with a name if that is not empty, and
// why not.
func (c *client) may(ctx context.Context, verb, resource, name string) (bool, string, error) {
	var answer struct {
		Status struct {
			Allowed bool   `json:"allowed"`
			Reason  string `json:"reason"`
		} `json:"status"`
	}
	err := c.call(ctx, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", asJSON,
		map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": map[string]any{"resourceAttributes": map[string]string{
				"namespace": c.namespace, "verb": verb, "resource": resource, "name": name,
			}},
		}, &answer)
	return answer.Status.Allowed, answer.Status.Reason, err
}
