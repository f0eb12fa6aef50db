package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	timerate "golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/oip"
)

// A Guard authenticates and authorizes the callers of an agent's servers. Its methods may be called
// concurrently.
type Guard struct {
	config  Config
	log     *slog.Logger
	observe func(reason string)
	origins *http.CrossOriginProtection
	// hostname is the machine's name in lower case; "" if it is not known.
	hostname string

	identity  *watchedFiles[*identity]
	keys      *watchedFiles[*Keys]
	tokens    *tokens // of the issuers in access
	access    *watchedFiles[*Access]
	refusals  refusals
	waiting   waitingConns // connections in their handshake
	turns     *handshakeSlots
	silent    silent
	following rightsWatch
	open      peers // gRPC connections, both accepted and dialled
	// What callers other than agents hold. strangers' calls are also among calls.
	connections           connections
	calls, strangersCalls quota
	meters                meters            // the use of clients with limits
	free                  *timerate.Limiter // see pace

	attempts    attempts
	sessionKeys func() [][]byte // set by ShareSessions; nil: there are none
	ownSecret   func() []byte

	tlsMu sync.Mutex
	tls   tlsConfigs

	familyOf atomic.Pointer[func(model string) string] // nil: not known yet

	knownMu sync.Mutex
	known   func(model string) bool
}

// The reasons of refusals: the arguments of Options.OnRefusal.
const (
	// A connection without the required TLS or certificate.
	ReasonHandshake       = "handshake"
	ReasonUnauthenticated = "unauthenticated" // a call without valid credentials
	ReasonDenied          = "denied"          // a call that the client has no right to make
	ReasonConnections     = "connections"     // a connection beyond Limits
	ReasonCalls           = "calls"           // a call beyond Limits
	ReasonLimit           = "limit"           // a call or query beyond its client's limits
)

// Reasons returns all reasons of refusals.
func Reasons() []string {
	return []string{
		ReasonHandshake, ReasonUnauthenticated, ReasonDenied, ReasonConnections, ReasonCalls,
		ReasonLimit,
	}
}

// Options hold a Guard's limits, and where it reports.
type Options struct {
	Logger *slog.Logger // must not be nil
	// OnRefusal is called for each refused connection or call, concurrently, and must not block;
	// nil: no function is called.
	OnRefusal func(reason string)
	Limits    Limits
}

// ShareSessions makes logins good for all agents of the fleet: keys returns those that the agents
// share, the newest first, from which they derive the secret of logins. Without it, or without
// keys, logins are good for this process alone. It must be called before the first server serves;
// keys is called concurrently and must not block.
func (g *Guard) ShareSessions(keys func() [][]byte) { g.sessionKeys = keys }

// Open returns a Guard, and reads the files that config names. The error says what is wrong with
// config or a file. [Guard.Run] reads the files again when they change.
func Open(config Config, o Options) (*Guard, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	g := &Guard{config: config, log: o.Logger, observe: o.OnRefusal,
		refusals: refusals{log: o.Logger}, waiting: waitingConns{limit: maxWaiting},
		turns: newTurns(runtime.GOMAXPROCS(0)), free: timerate.NewLimiter(paceRate, paceBurst),
		connections: connections{
			quota: quota{limit: o.Limits.Connections}, named: config.Named(),
		},
		calls: quota{limit: o.Limits.Calls}, strangersCalls: quota{limit: (o.Limits.Calls + 3) / 4},
		ownSecret: newSecret()}
	if g.observe == nil {
		g.observe = func(string) {}
	}
	g.origins = http.NewCrossOriginProtection()
	name, err := os.Hostname()
	if err != nil {
		// "localhost" and the loopback addresses still work as names
		o.Logger.Debug("cannot read the machine's name", "error", err)
	}
	g.hostname = strings.ToLower(name)
	g.identity, err = identityFiles{
		config.CertFile, config.KeyFile, config.CAFile, config.ClientCAFile, config.CRLFile,
	}.watch()
	if err != nil {
		return nil, err
	}
	g.keys, err = watch("API keys", func() (*Keys, error) {
		if config.APIKeysFile == "" {
			return nil, nil
		}
		data, err := ReadSecret("api-keys", config.APIKeysFile)
		if err == nil {
			err = checkWholeLines("api-keys", config.APIKeysFile, data)
		}
		if err != nil {
			return nil, err
		}
		return ParseKeys(config.APIKeysFile, data)
	}, config.APIKeysFile)
	if err != nil {
		return nil, err
	}
	g.access, err = watch("access", func() (*Access, error) {
		if config.AccessFile == "" {
			return DefaultAccess(), nil
		}
		data, err := readFile("access", config.AccessFile)
		if err == nil {
			err = checkWholeLines("access", config.AccessFile, data)
		}
		if err != nil {
			return nil, err
		}
		access, err := ParseAccess(config.AccessFile, data)
		if err != nil {
			return nil, err
		}
		if len(access.issuers) == 0 && !config.identifies() {
			return nil, fmt.Errorf("access: %q has no issuers, and there is no tls-ca, tls-client-ca "+
				"or api-keys, want one: without it no client has a name", config.AccessFile)
		}
		for _, i := range access.issuers {
			if _, err := newIssuerKeys(i, o.Logger); err != nil {
				return nil, err
			}
		}
		return access, nil
	}, config.AccessFile)
	if err != nil {
		return nil, err
	}
	g.tokens = &tokens{log: o.Logger}
	if err := g.tokens.setIssuers(g.access.get().issuers); err != nil {
		return nil, err
	}
	g.tokens.fetchKeys(time.Now())
	g.adviseOnFiles()
	return g, nil
}

// adviseAgain is how often Run checks an unchanged certificate of this process, to warn before it
// expires.
const adviseAgain = 24 * time.Hour

// Run checks the files for changes every second, and logs a summary of refusals every minute, until
// ctx ends. It always returns nil.
func (g *Guard) Run(ctx context.Context) error {
	var look <-chan time.Time
	if g.config != (Config{}) { // otherwise there are no files
		ticker := time.NewTicker(lookAgain)
		defer ticker.Stop()
		look = ticker.C
	}
	minutely := time.NewTicker(time.Minute)
	defer minutely.Stop()
	defer g.refusals.logSum()
	daily := time.NewTicker(adviseAgain)
	defer daily.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look:
			g.Refresh()
			if len(g.access.get().issuers) > 0 {
				g.tokens.fetchKeys(time.Now())
				g.endLost() // whose tokens have ended
			}
		case <-minutely.C:
			g.refusals.logSum()
		case <-daily.C:
			g.adviseOnFiles()
		}
	}
}

// Refresh checks the files for changes now.
func (g *Guard) Refresh() {
	if g.identity.refreshFiles(g.log) {
		g.adviseOnFiles()
		if names := g.open.endRevoked(g.identity.get().revoked); len(names) > 0 {
			g.log.Warn("connections ended: their certificates are revoked", "of",
				strings.Join(names, " "), "event", "files")
		}
	}
	keys, access := g.keys.refreshFiles(g.log), g.access.refreshFiles(g.log)
	if access {
		if err := g.tokens.setIssuers(g.access.get().issuers); err != nil {
			g.log.Warn("the issuers of tokens in the access file cannot be used; those before stay in "+
				"force", "error", err, "event", "files")
		}
		g.tokens.fetchKeys(time.Now())
		g.warnOfModels()
	}
	if keys {
		g.attempts.clear()
	}
	if keys || access {
		g.connections.doubtAll()
		g.endLost()
	}
}

func (g *Guard) adviseOnFiles() {
	if err := g.identity.get().certificateFault(time.Now()); err != nil {
		g.log.Warn("the own certificate is amiss", "file", g.config.CertFile, "error", err, "event",
			"files")
	}
	if err := g.identity.get().revoked.listFault(time.Now()); err != nil {
		g.log.Warn("a revocation list is out of date", "file", g.config.CRLFile, "error", err,
			"event", "files")
	}
}

// KnowModels sets the function that reports whether a model exists. Now and whenever the access
// file changes, the Guard logs each model of the file that does not exist, which may be a typing
// error.
func (g *Guard) KnowModels(known func(model string) bool) {
	g.knownMu.Lock()
	g.known = known
	g.knownMu.Unlock()
	g.warnOfModels()
}

func (g *Guard) warnOfModels() {
	g.knownMu.Lock()
	known := g.known
	g.knownMu.Unlock()
	if known == nil {
		return
	}
	var unknown []string
	for _, model := range g.access.get().Models() {
		if !known(model) {
			unknown = append(unknown, model)
		}
	}
	if len(unknown) > 0 {
		g.log.Warn("the access file names models that do not exist", "file", g.config.AccessFile,
			"models", strings.Join(unknown, " "))
	}
}

// CertificateEnd returns when this process's certificate expires; zero if it has none.
func (g *Guard) CertificateEnd() time.Time {
	if cert := g.identity.get().cert; cert != nil {
		return cert.Leaf.NotAfter
	}
	return time.Time{}
}

// CertificateName returns the name by which others know this process's requests; "" without a
// certificate.
func (g *Guard) CertificateName() string {
	if cert := g.identity.get().cert; cert != nil {
		return certificateName(cert.Leaf)
	}
	return ""
}

// RevocationEnd returns when the first of the revocation lists should be renewed; zero without one.
func (g *Guard) RevocationEnd() time.Time {
	if r := g.identity.get().revoked; r != nil {
		return r.end
	}
	return time.Time{}
}

// A refusal is the error of a refused call: a gRPC status, and a reason for the log that is the
// same for all refusals of its kind.
type refusal struct {
	code   codes.Code // Unauthenticated, PermissionDenied, ResourceExhausted or Unavailable
	reason string
	text   string
	again  time.Duration // after which to try again, with ResourceExhausted and Unavailable
}

func (r *refusal) Error() string { return r.text }

// GRPCStatus returns the refusal as a gRPC status.
func (r *refusal) GRPCStatus() *status.Status {
	s := status.New(r.code, r.text)
	if r.again > 0 {
		why := "limit"
		if r.code == codes.Unavailable {
			why = "unavailable"
		}
		return oip.Explain(s, why, r.again)
	}
	return s
}

// authenticateCaller returns the caller: by the API key, if there is one, or by that of who has
// logged in, or else by the connection's certificate, if it uses TLS. A caller without a name and a
// nil error mean that no name is required.
func (g *Guard) authenticateCaller(state *tls.ConnectionState, authorization []string,
	by login, from net.Addr) (caller, *refusal) {
	var c caller
	if state != nil {
		var err error
		if c, err = g.identity.get().callerOf(*state); err != nil {
			reason := "certificate without a name"
			if errors.As(err, new(*revokedError)) {
				reason = "certificate revoked"
			}
			return caller{}, &refusal{code: codes.Unauthenticated, reason: reason,
				text: err.Error()}
		}
		// The ID of SPIFFE is the name of who has it, whatever else the certificate names, once the
		// access file has it: access files of before go by the common name.
		if _, known := g.access.get().clients[c.spiffeID]; known && !c.agent {
			c.name = c.spiffeID
		}
	}
	keys, tokens := g.keys.get() != nil, len(g.access.get().issuers) > 0
	if keys || tokens {
		key, given, r := bearerToken(authorization)
		if r != nil {
			return caller{}, r
		}
		if given && tokens && (isToken(key) || !keys) {
			if c, r = g.tokenCaller(key, from); r != nil {
				return caller{}, r
			}
		} else if given {
			name, sum, r := g.ownerOf(key, from)
			if r != nil {
				return caller{}, r
			}
			c = caller{name: name, apiKey: true, key: sum}
		} else if keys && by.name != "" {
			c = caller{name: by.name, apiKey: true, key: by.key}
		}
	}
	if c.name == "" && !c.agent && g.config.Named() {
		return caller{}, &refusal{
			code: codes.Unauthenticated, reason: "no credentials",
			text: "no credentials: want " + g.wantedCredentials(),
		}
	}
	return c, nil
}

// wantedCredentials names, for an error message, the credentials that a client may use.
func (g *Guard) wantedCredentials() string {
	var all []string
	if g.config.TLS() && (g.config.CAFile != "" || g.config.ClientCAFile != "") {
		all = append(all, "a client certificate")
	}
	if g.config.APIKeysFile != "" {
		all = append(all, "an API key (authorization: Bearer KEY)")
	}
	if len(g.access.get().issuers) > 0 {
		all = append(all, "a token of an issuer (authorization: Bearer TOKEN)")
	}
	return strings.Join(all, " or ")
}

// bearerToken returns the token of an authorization header; given is false without a header.
func bearerToken(headers []string) (token string, given bool, _ *refusal) {
	if len(headers) > 1 {
		return "", false, &refusal{
			code: codes.Unauthenticated, reason: "several authorizations",
			text: "more than one authorization, want one",
		}
	}
	if len(headers) == 0 {
		return "", false, nil
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", false, nil
	}
	return strings.TrimSpace(token), true, nil
}

// A requiredRights holds the rights that a call needs.
type requiredRights struct {
	open    bool    // anybody may make the call
	agent   bool    // only agents of this fleet may make it
	control Control // "" : none
	or      Control // a right that does as well as control; "": none
	query   bool    // the right to query model
	model   string
}

// checkRights returns nil if the caller has the rights d, else the refusal.
func (g *Guard) checkRights(c caller, d requiredRights) *refusal {
	if d.open || c.agent {
		return nil
	}
	if !g.config.TLS() && !g.config.Named() {
		return nil // the call is open, or agents may do everything
	}
	switch {
	case c.stranger:
		return &refusal{
			code: codes.Unauthenticated, reason: "no credentials",
			text: "no credentials: want " + g.wantedCredentials(),
		}
	case d.agent:
		return &refusal{
			code: codes.PermissionDenied, reason: "not an agent",
			text: "only agents of this cluster may: want a certificate of its CA with the name " +
				AgentName,
		}
	case d.control != "" && c.name == "":
		return &refusal{
			code: codes.Unauthenticated, reason: "no credentials",
			text: "no credentials: " + string(d.control) + " needs a client with a name",
		}
	case d.control != "" && !g.access.get().MayControl(c.name, d.control) &&
		(d.or == "" || !g.access.get().MayControl(c.name, d.or)):
		return &refusal{
			code: codes.PermissionDenied, reason: "may not " + string(d.control),
			text: fmt.Sprintf("client %q may not %s", c.name, d.control),
		}
	case d.query && c.name != "" && !g.mayQuery(c.name, d.model):
		return &refusal{
			code: codes.PermissionDenied, reason: "may not query",
			text: fmt.Sprintf("client %q may not query model %q", c.name, d.model),
		}
	case d.control == "" && !d.query && c.name != "" && !g.access.get().hasEntry(c.name):
		return &refusal{
			code: codes.PermissionDenied, reason: "no rights",
			text: fmt.Sprintf("client %q has no rights: the access file has neither it nor %q",
				c.name,
				Anyone),
		}
	}
	return nil
}

// mayQuery reports whether a client may query a model, under its own name or that of its family.
func (g *Guard) mayQuery(client, model string) bool {
	access := g.access.get()
	if access.MayQuery(client, model) {
		return true
	}
	familyOf := g.familyOf.Load()
	if familyOf == nil {
		return false
	}
	family := (*familyOf)(model)
	return family != "" && access.MayQuery(client, family)
}

// KnowFamilies sets the function that returns the family of a model, "" if it has none. A client
// that may query a family may query its models.
func (g *Guard) KnowFamilies(familyOf func(model string) string) { g.familyOf.Store(&familyOf) }

// check authenticates the caller, and checks its rights. A call that anybody may make is let in
// whoever makes it, but its answer may depend on who does.
func (g *Guard) check(state *tls.ConnectionState, authorization []string, by login,
	from net.Addr, d requiredRights) (caller, *refusal) {
	c, r := g.authenticateCaller(state, authorization, by, from)
	if d.open {
		c.open, c.stranger = true, r != nil
		return c, nil
	}
	if r != nil {
		return caller{}, r
	}
	return c, g.checkRights(c, d)
}

// noteRefusal counts and logs a call that was refused.
func (g *Guard) noteRefusal(address net.Addr, call string, r *refusal) {
	reason := ReasonDenied
	switch r.code {
	case codes.Unauthenticated:
		reason = ReasonUnauthenticated
	case codes.ResourceExhausted:
		reason = ReasonLimit
	}
	g.observe(reason)
	g.refusals.add(address, "call refused", r.reason, fmt.Errorf("%.100q: %w", call, r))
}

// Client returns the name of the client that made the call with context ctx, by gRPC or REST; "" if
// it has no name or is an agent of this fleet.
func (g *Guard) Client(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(caller); ok && !c.agent {
		return c.name
	}
	return ""
}

// Identity identifies who made the call with context ctx: "client NAME" or, of an agent of this
// fleet, "agent NAME"; "" if it has no name.
func (g *Guard) Identity(ctx context.Context) string {
	switch c, _ := ctx.Value(callerKey{}).(caller); {
	case c.agent:
		return "agent " + c.name
	case c.name != "":
		return "client " + c.name
	}
	return ""
}

// MayControl reports whether the caller of the call with context ctx may make the control call.
func (g *Guard) MayControl(ctx context.Context, call Control) bool {
	c, ok := ctx.Value(callerKey{}).(caller)
	return ok && g.checkRights(c, requiredRights{control: call}) == nil
}

// LoadShare is the share of the agents that may hold models only because the client that made the
// call with context ctx asks for them; 0: it has no right to have models loaded.
func (g *Guard) LoadShare(ctx context.Context) float64 {
	if c, ok := ctx.Value(callerKey{}).(caller); ok && !c.agent {
		return g.access.get().rightsOf(c.name).loadShare
	}
	return 0
}

// MayQuery returns nil if the caller of the call with context ctx may query the model, else the
// reason. It uses the access file as it is now, so that a stream loses the rights that its client
// loses.
func (g *Guard) MayQuery(ctx context.Context, model string) error {
	c, ok := ctx.Value(callerKey{}).(caller)
	if !ok {
		return &refusal{
			code: codes.Unauthenticated, reason: "no credentials",
			text: "nobody knows who has made this call",
		}
	}
	if r := g.checkRights(c, requiredRights{query: true, model: model}); r != nil {
		return r
	}
	return nil
}
