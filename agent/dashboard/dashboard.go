package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/profiles"
)

// Path is where the page is. Its files and data are below.
const Path = "/dashboard/"

// A Config holds what a [Dashboard] shows. None of its fields may be nil.
type Config struct {
	Hub   *Hub
	Guard *secure.Guard
	// FleetEvents returns the events of all agents, by time. It may block for some seconds.
	FleetEvents func(context.Context) []*control.Event
	// Fleet returns what the leader rents, SetFleet approves what it proposes, for the caller of
	// the context. They may block for some seconds.
	Fleet    func(context.Context) (*control.FleetState, error)
	SetFleet func(context.Context, *control.SetFleetRequest) (*control.FleetState, error)
	// View returns the fleet as this agent sees it, with what is learned of latencies.
	View     func() *control.View
	Library  *profiles.Library // the profiles that come with the program
	Software string            // the agent's version
	// Closing ends when the servers begin to close.
	Closing context.Context
}

// A Dashboard answers the requests under [Path]. Its methods may be called concurrently.
type Dashboard struct {
	config  Config
	hub     *Hub
	mux     *http.ServeMux
	viewers *secure.Shares // of streams
}

// New returns a Dashboard.
func New(config Config) *Dashboard {
	d := &Dashboard{
		config: config, hub: config.Hub, mux: http.NewServeMux(),
		viewers: secure.NewShares(maxViewers),
	}
	d.mux.Handle("GET "+Path[:len(Path)-1], http.RedirectHandler(Path, http.StatusMovedPermanently))
	// Its files are compressed when somebody first asks for one, not while the agent starts.
	d.mux.HandleFunc("GET "+Path+"{file...}", func(w http.ResponseWriter, req *http.Request) {
		thePage().serveFile(w, req)
	})
	const api = Path + "api/"
	d.mux.HandleFunc("GET "+api+"session", d.serveSession)
	d.mux.HandleFunc("POST "+api+"login", d.serveLogin)
	d.mux.HandleFunc("DELETE "+api+"login", d.serveLogout)
	d.mux.HandleFunc("GET "+api+"stream", d.serveStream)
	d.mux.HandleFunc("GET "+api+"events", d.serveEvents)
	d.mux.HandleFunc("GET "+api+"profiles", d.serveProfiles)
	d.mux.HandleFunc("GET "+api+"why", d.serveWhy)
	d.mux.HandleFunc("GET "+api+"plan", d.servePlan)
	d.mux.HandleFunc("GET "+api+"fleet", d.serveFleet)
	d.mux.HandleFunc("POST "+api+"fleet", d.serveApproval)
	return d
}

// ServeHTTP implements [http.Handler].
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	setSecurityHeaders(w.Header())
	d.mux.ServeHTTP(w, req)
}

// writeError writes an error as all answers of the REST server have it.
func writeError(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(oip.ErrorJSON(text), '\n')) // fails only if the client has gone
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has gone
}

func (d *Dashboard) helloMessage() helloJSON {
	return helloJSON{string(d.hub.config.Self), d.config.Software, thePage().build}
}

// visibilityOf returns a function that says whether the caller of ctx may know of a model; for "",
// of every model.
func (d *Dashboard) visibilityOf(ctx context.Context) func(model string) bool {
	return func(model string) bool { return d.config.Guard.MayQuery(ctx, model) == nil }
}

func (d *Dashboard) mayControl(ctx context.Context, right secure.Control) bool {
	return d.config.Guard.MayControl(ctx, right)
}

// refuseWithout answers a request of a caller without a right, and reports whether it has.
func (d *Dashboard) refuseWithout(w http.ResponseWriter, req *http.Request,
	right secure.Control) bool {
	if d.mayControl(req.Context(), right) {
		return false
	}
	writeError(w, http.StatusForbidden, "this client may not: it needs the right "+string(right))
	return true
}

func (d *Dashboard) serveSession(w http.ResponseWriter, req *http.Request) {
	ctx, name, in := d.config.Guard.Session(req)
	refused := d.config.Guard.LoginRefused(req)
	writeJSON(w, struct {
		helloJSON
		In           bool            `json:"in"`
		Name         string          `json:"name"`
		Login        bool            `json:"login"`
		LoginRefused string          `json:"login_refused"`
		May          map[string]bool `json:"may"`
	}{
		d.helloMessage(), in, name, refused == "", refused, map[string]bool{
			"events": in && d.mayControl(ctx, secure.Events), "plan": in && d.mayControl(ctx,
				secure.Plan),
			"fleet": in && d.mayControl(ctx, secure.Fleet),
		},
	})
}

// maxLogin is the largest body of a login, in bytes: the longest key, and as much for JSON's
// escapes and spaces.
const maxLogin = 2 * secure.LongestKey

// parseLogin reads the body of a login.
func parseLogin(body io.Reader) (key string, err error) {
	b, err := io.ReadAll(io.LimitReader(body, maxLogin+1))
	if err != nil {
		return "", err
	}
	var said struct {
		Key string `json:"key"`
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	if len(b) > maxLogin || decoder.Decode(&said) != nil || said.Key == "" || decoder.More() {
		return "", errors.New(`body, want JSON: {"key": "an API key"}`)
	}
	return said.Key, nil
}

func (d *Dashboard) serveLogin(w http.ResponseWriter, req *http.Request) {
	key, err := parseLogin(req.Body)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	code, again, err := d.config.Guard.Login(w, req, key)
	if again > 0 {
		w.Header().Set("Retry-After", seconds(again))
	}
	if err != nil {
		writeError(w, code, err.Error())
		return
	}
	w.WriteHeader(code)
}

// seconds is a time in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return string(appendNumber(nil, math.Ceil(d.Seconds())))
}

func (d *Dashboard) serveLogout(w http.ResponseWriter, req *http.Request) {
	d.config.Guard.Logout(w, req)
	w.WriteHeader(http.StatusNoContent)
}

func (d *Dashboard) serveEvents(w http.ResponseWriter, req *http.Request) {
	if d.refuseWithout(w, req, secure.Events) {
		return
	}
	all := []control.EventJSON{}
	for _, e := range d.config.FleetEvents(req.Context()) {
		all = append(all, e.JSON())
	}
	writeJSON(w, map[string]any{"events": all})
}
