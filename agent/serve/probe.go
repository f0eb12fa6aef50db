package serve

import (
	"net"
	"net/http"
	"time"
)

// probeTimeout bounds a probe's connection. Chosen: kubelets give up after a second by default.
const probeTimeout = 5 * time.Second

// newProbeServer returns the server that answers whether the agent lives and is ready, and nothing
// else, to anybody: whoever starts the agent may have no certificate. Each connection has one
// request, so that probes keep none open.
func (s *Server) newProbeServer() *http.Server {
	r, mux := &rest{Server: s}, http.NewServeMux()
	for _, route := range r.healthRoutes() {
		mux.HandleFunc(route.pattern, func(w http.ResponseWriter, req *http.Request) {
			if err := route.serve(w, req); err != nil {
				writeError(w, err)
			}
		})
	}
	server := &http.Server{
		Handler: mux, ReadTimeout: probeTimeout, WriteTimeout: probeTimeout,
		MaxHeaderBytes: 4 << 10,
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// ServeProbe serves the answers to probes on l, until Close; see ServeGRPC.
func (s *Server) ServeProbe(l net.Listener) error { return serveHTTP(s.probe, l) }
