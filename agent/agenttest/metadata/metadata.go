// Package metadata answers tests as EC2's metadata service does.
package metadata

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// A Service answers as EC2's does, version 2, without a socket, so that it runs in virtual time.
type Service struct {
	mu     sync.Mutex
	values map[string]string // by path below meta-data
	broken bool              // it answers nothing
	asked  map[string]int
}

// New returns the service of a machine with a life cycle, "spot" or "on-demand".
func New(lifeCycle string) *Service {
	return &Service{asked: map[string]int{}, values: map[string]string{
		"instance-id": "i-0123456789abcdef0", "instance-type": "r5n.large",
		"instance-life-cycle":         lifeCycle,
		"placement/availability-zone": "us-east-1a",
		"tags/instance/muster:slot":   "r5n.large/" + lifeCycle + "/3/0",
	}}
}

// Set changes what the service has at a path below meta-data; "": nothing.
func (s *Service) Set(path, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[path] = value
}

// SetBroken makes the service answer nothing, or answer again.
func (s *Service) SetBroken(broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = broken
}

// Asked returns how often it was asked for a path below meta-data.
func (s *Service) Asked(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

// ServeHTTP implements [http.Handler].
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const token = "a-token"
	path, data := strings.CutPrefix(r.URL.Path, "/latest/meta-data/")
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		_, _ = io.WriteString(w, token)
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
		w.WriteHeader(http.StatusUnauthorized)
	case data && s.values[path] != "":
		s.asked[path]++
		_, _ = io.WriteString(w, s.values[path])
	default:
		s.asked[path]++
		w.WriteHeader(http.StatusNotFound)
	}
}

// Do implements [imds.HTTPClient].
func (s *Service) Do(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken {
		return nil, fmt.Errorf("connection refused")
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	return rec.Result(), nil
}
