package kubernetes

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const podTemplate = `
metadata: {labels: {app.kubernetes.io/name: muster}, annotations: {prometheus.io/scrape: "true"}}
spec:
  terminationGracePeriodSeconds: 50
  nodeSelector: {disk: ssd}
  containers:
    - {name: muster, image: muster:dev, env: [{name: MUSTER_JOIN, value: "muster-gossip:7946"}]}
`

// A fakeServer answers as an API server does, for the calls that this package makes. The answers that
// are errors have its words.
type fakeServer struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	version int
	pods    map[string]map[string]any // by name
	log     []map[string]any          // the events of all watches, the first with the version 1
	fleets  []string                  // of the events, as label selectors
	changed chan struct{}             // closed at the next event
	refuse  func(r *http.Request) (code int, reason, message string)
	// created is called with the name of a pod that has been made before the client is told so.
	created  func(name string)
	listed   func()         // is called once, when the next list has been made and not yet sent
	calls    map[string]int // by verb: list, watch, create, get, patch, delete
	breaks   []int          // the codes of the errors that the next watches end with
	denied   map[string]bool
	template string
}

func newFakeServer(t *testing.T) *fakeServer {
	f := &fakeServer{
		t: t, pods: map[string]map[string]any{}, changed: make(chan struct{}),
		calls: map[string]int{}, denied: map[string]bool{}, template: podTemplate,
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// provider returns a provider that rents from the fake server.
func (f *fakeServer) provider(change func(*Config)) *Provider {
	f.t.Helper()
	token := filepath.Join(f.t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	config := Config{
		Fleet: "demo", Account: Account{Server: f.URL, TokenFile: token, Namespace: "muster"},
		Template: "muster-worker", TemplateVersion: "v1", Nodes: "karpenter",
		Prices:        map[string]float64{"r5n.large": 0.149, "r5n.large@spot": 0.05, "g4dn.xlarge": 0.526},
		LaunchTimeout: time.Hour, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	p, err := New(config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return p
}

// record notes an event. mu is held.
func (f *fakeServer) record(kind string, of map[string]any) {
	f.version++
	of["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.version)
	text, err := json.Marshal(of)
	if err != nil {
		f.t.Error(err)
	}
	f.fleets = append(f.fleets, fmt.Sprintf("%s=%v", fleetLabel, labelsOf(of)[fleetLabel]))
	f.log = append(f.log, map[string]any{"type": kind, "object": json.RawMessage(text)})
	close(f.changed)
	f.changed = make(chan struct{})
}

// set changes the pod with a name; status replaces its status.
func (f *fakeServer) set(name string, status map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[name]["status"] = status
	f.record("MODIFIED", f.pods[name])
}

// kill removes a pod, as a node's end does.
func (f *fakeServer) kill(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("DELETED", f.pods[name])
	delete(f.pods, name)
}

func (f *fakeServer) count(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[verb]
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{},
		"status": "Failure", "message": message, "reason": reason, "code": code})
}

func labelsOf(pod map[string]any) map[string]any {
	labels, _ := pod["metadata"].(map[string]any)["labels"].(map[string]any)
	return labels
}

func matches(pod map[string]any, selector string) bool {
	key, value, exact := strings.Cut(selector, "=")
	got, ok := labelsOf(pod)[key]
	return ok && (!exact || got == value)
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer a-token" {
		fail(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		if code, reason, message := f.refuse(r); code != 0 {
			if code == http.StatusTooManyRequests {
				w.Header().Set("Retry-After", "0")
			}
			fail(w, code, reason, message)
			return
		}
	}
	const base = "/api/v1/namespaces/muster/"
	name := strings.TrimPrefix(r.URL.Path, base+"pods/")
	switch {
	case r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		var review struct {
			Spec struct {
				ResourceAttributes struct{ Verb, Resource, Name string }
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&review)
		of := review.Spec.ResourceAttributes
		answer(w, http.StatusCreated, map[string]any{"status": map[string]any{
			// As the chart's Role has it: of ConfigMaps only the template.
			"allowed": !f.denied[of.Verb+" "+of.Resource] &&
				(of.Resource != "configmaps" || of.Name == "muster-worker"),
		}})
	case r.URL.Path == "/apis/karpenter.sh":
		answer(w, http.StatusOK, map[string]any{"kind": "APIGroup"})
	case r.URL.Path == base+"configmaps/muster-worker":
		answer(w, http.StatusOK, map[string]any{
			"metadata": map[string]any{"name": "muster-worker", "uid": "uid-of-template"},
			"data":     map[string]any{"pod.yaml": f.template},
		})
	case r.URL.Path == base+"pods" && r.URL.Query().Get("watch") != "":
		f.calls["watch"]++
		f.watch(w, r)
	case r.URL.Path == base+"pods" && r.Method == http.MethodGet:
		f.calls["list"]++
		items := []any{}
		for _, n := range slices.Sorted(maps.Keys(f.pods)) {
			if matches(f.pods[n], r.URL.Query().Get("labelSelector")) {
				items = append(items, f.pods[n])
			}
		}
		list := map[string]any{
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)}, "items": items,
		}
		if do := f.listed; do != nil {
			f.listed = nil
			f.mu.Unlock()
			do()
			f.mu.Lock()
		}
		answer(w, http.StatusOK, list)
	case r.URL.Path == base+"pods" && r.Method == http.MethodPost:
		f.create(w, r)
	case strings.HasPrefix(r.URL.Path, base+"pods/"):
		f.change(w, r, name)
	default:
		fail(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	}
}

func (f *fakeServer) create(w http.ResponseWriter, r *http.Request) {
	f.calls["create"]++
	var made map[string]any
	if err := json.NewDecoder(r.Body).Decode(&made); err != nil {
		f.t.Error(err)
	}
	metadata := made["metadata"].(map[string]any)
	name := metadata["name"].(string)
	if f.pods[name] != nil {
		fail(w, http.StatusConflict, "AlreadyExists", fmt.Sprintf("pods %q already exists", name))
		return
	}
	metadata["uid"] = fmt.Sprintf("uid-%d", f.version+1)
	metadata["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	made["status"] = map[string]any{"phase": "Pending"}
	if r.URL.Query().Get("dryRun") == "" {
		f.pods[name] = made
		f.record("ADDED", made)
	}
	text, err := json.Marshal(made)
	if err != nil {
		f.t.Error(err)
	}
	if created := f.created; created != nil {
		f.mu.Unlock()
		created(name)
		f.mu.Lock()
	}
	answer(w, http.StatusCreated, json.RawMessage(text))
}

// change serves what is asked of one pod.
func (f *fakeServer) change(w http.ResponseWriter, r *http.Request, name string) {
	pod := f.pods[name]
	if pod == nil {
		fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("pods %q not found", name))
		return
	}
	metadata := pod["metadata"].(map[string]any)
	var body struct {
		Metadata struct {
			UID         string
			Annotations map[string]string
		}
		Preconditions struct{ UID string }
	}
	if r.Method != http.MethodGet {
		_ = json.NewDecoder(r.Body).Decode(&body)
		if uid := body.Metadata.UID + body.Preconditions.UID; uid != metadata["uid"] {
			fail(w, http.StatusConflict, "Conflict", fmt.Sprintf("Precondition failed: UID in "+
				"precondition: %s, UID in object meta: %s", uid, metadata["uid"]))
			return
		}
	}
	switch r.Method {
	case http.MethodGet:
		f.calls["get"]++
	case http.MethodPatch:
		f.calls["patch"]++
		for k, v := range body.Metadata.Annotations {
			metadata["annotations"].(map[string]any)[k] = v
		}
		f.record("MODIFIED", pod)
	case http.MethodDelete: // a pod that no node has is deleted at once
		f.calls["delete"]++
		f.record("DELETED", pod)
		delete(f.pods, name)
	}
	answer(w, http.StatusOK, pod)
}

// watch sends events until the client has gone. mu is held, but not while it waits.
func (f *fakeServer) watch(w http.ResponseWriter, r *http.Request) {
	if len(f.breaks) > 0 {
		code := f.breaks[0]
		f.breaks = f.breaks[1:]
		answer(w, http.StatusOK, map[string]any{"type": "ERROR", "object": map[string]any{
			"kind": "Status", "status": "Failure", "code": code, "message": "try again",
			"reason": map[int]string{410: "Expired", 504: "Timeout"}[code],
		}})
		return
	}
	next, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		f.t.Errorf("watch from version %q", r.URL.Query().Get("resourceVersion"))
	}
	send := json.NewEncoder(w)
	_ = send.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(next)},
	}})
	for {
		for ; next < len(f.log); next++ {
			if f.fleets[next] == r.URL.Query().Get("labelSelector") {
				_ = send.Encode(f.log[next])
			}
		}
		_ = http.NewResponseController(w).Flush()
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		f.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}
