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
	"time"

	timerate "golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Guard stands before a server. Its methods may be called concurrently.
type Guard struct {
	config  Config
	log     *slog.Logger
	observe func(reason string)
	origins *http.CrossOriginProtection
	// hostname is the machine's own, in small letters; "" if it is not known.
	hostname string

	identity *watched[*identity]
	keys     *watched[*Keys]
	access   *watched[*Access]
	refusals refusals
	waiting  waiting // connections whose handshake goes on
	turns    *turns
	silent   silent
	open     peers // of gRPC, both those that came and those that this agent made
	// What those hold who are no agents.
	connections, calls quota
	meters             meters            // of clients with limits of their own
	free               *timerate.Limiter // see pace

	tlsMu sync.Mutex
	tls   tlsConfigs

	knownMu sync.Mutex
	known   func(model string) bool
}

// What a refusal can be for, the argument of Options.OnRefusal.
const (
	// a connection without the TLS, or the certificate, that is wanted
	ReasonHandshake       = "handshake"
	ReasonUnauthenticated = "unauthenticated" // a call of nobody known
	ReasonDenied          = "denied"          // a call that its client may not make
	ReasonConnections     = "connections"     // a connection beyond Limits
	ReasonCalls           = "calls"           // a call beyond Limits
	ReasonLimit           = "limit"           // a call, or query, beyond the limits of its client
)

// Reasons are all there are.
func Reasons() []string {
	return []string{
		ReasonHandshake, ReasonUnauthenticated, ReasonDenied, ReasonConnections, ReasonCalls,
		ReasonLimit,
	}
}

// Options are how much a Guard lets in, and what it tells others.
type Options struct {
	Logger *slog.Logger // must not be nil
	// OnRefusal is called for each connection or call that was refused, by
	// several goroutines; nil means nobody.
	OnRefusal func(reason string)
	Limits    Limits
}

// Open reads the files that config names; see [Guard.Run] for their changes.
func Open(config Config, o Options) (*Guard, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	g := &Guard{config: config, log: o.Logger, observe: o.OnRefusal,
		refusals: refusals{log: o.Logger}, waiting: waiting{limit: mostWaiting},
		turns: newTurns(runtime.GOMAXPROCS(0)), free: timerate.NewLimiter(paceRate, paceBurst),
		connections: quota{limit: o.Limits.Connections}, calls: quota{limit: o.Limits.Calls}}
	if g.observe == nil {
		g.observe = func(string) {}
	}
	g.origins = http.NewCrossOriginProtection()
	name, err := os.Hostname()
	if err != nil {
		// the others that loopback answers to do
		o.Logger.Debug("the machine's name is not known", "error", err)
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
			err = whole("api-keys", config.APIKeysFile, data)
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
			err = whole("access", config.AccessFile, data)
		}
		if err != nil {
			return nil, err
		}
		return ParseAccess(config.AccessFile, data)
	}, config.AccessFile)
	if err != nil {
		return nil, err
	}
	g.advise()
	return g, nil
}

// adviseAgain is how often the own certificate is looked at though it is the same.
const adviseAgain = 24 * time.Hour

// Run looks at the files every second, and sums up what was refused every minute, until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	var look <-chan time.Time
	if g.config != (Config{}) { // there are files
		ticker := time.NewTicker(lookAgain)
		defer ticker.Stop()
		look = ticker.C
	}
	minutely := time.NewTicker(time.Minute)
	defer minutely.Stop()
	defer g.refusals.sum()
	daily := time.NewTicker(adviseAgain)
	defer daily.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look:
			g.Refresh()
		case <-minutely.C:
			g.refusals.sum()
		case <-daily.C:
			g.advise()
		}
	}
}

// Refresh looks at the files now.
func (g *Guard) Refresh() {
	if g.identity.refresh(g.log) {
		g.advise()
		if names := g.open.end(g.identity.get().revoked); len(names) > 0 {
			g.log.Warn("connections ended: their certificates are revoked", "of",
				strings.Join(names, " "), "event", "files")
		}
	}
	g.keys.refresh(g.log)
	if g.access.refresh(g.log) {
		g.warnOfModels()
	}
}

func (g *Guard) advise() {
	if err := g.identity.get().advice(time.Now()); err != nil {
		g.log.Warn("the own certificate is amiss", "file", g.config.CertFile, "error", err, "event",
			"files")
	}
	if err := g.identity.get().revoked.advice(time.Now()); err != nil {
		g.log.Warn("a revocation list is out of date", "file", g.config.CRLFile, "error", err,
			"event", "files")
	}
}

// KnowModels has the access file's models looked up, now and when the file
// changes: one that known does not know is logged, as it may be a slip.
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
		g.log.Warn("the access file names models that are not there", "file", g.config.AccessFile,
			"models", strings.Join(unknown, " "))
	}
}

// CertificateEnd is when the own certificate expires; zero if there is none.
func (g *Guard) CertificateEnd() time.Time {
	if cert := g.identity.get().cert; cert != nil {
		return cert.Leaf.NotAfter
	}
	return time.Time{}
}

// RevocationEnd is when the first of the revocation lists should be renewed; zero without one.
func (g *Guard) RevocationEnd() time.Time {
	if r := g.identity.get().revoked; r != nil {
		return r.end
	}
	return time.Time{}
}

// A refusal is a call that was refused: a status of gRPC, with words for the
// log that are the same for all of its kind.
type refusal struct {
	code   codes.Code // Unauthenticated or PermissionDenied
	reason string
	text   string
}

func (r *refusal) Error() string { return r.text }

// GRPCStatus makes it a status for grpc.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.text) }

// authenticate says who calls: by the API key, if there is one, or else by the
// certificate of the connection, if it has TLS. A nil error with no name is a
// caller who needs none.
func (g *Guard) authenticate(state *tls.ConnectionState, authorization []string) (caller,
	*refusal) {
	var c caller
	if state != nil {
		var err error
		if c, err = g.identity.get().caller(*state); err != nil {
			reason := "certificate without a name"
			if errors.As(err, new(*revokedError)) {
				reason = "certificate revoked"
			}
			return caller{}, &refusal{codes.Unauthenticated, reason, err.Error()}
		}
	}
	if keys := g.keys.get(); keys != nil {
		key, given, r := bearer(authorization)
		if r != nil {
			return caller{}, r
		}
		if given {
			name, ok := keys.client(key)
			if !ok {
				return caller{}, &refusal{
					codes.Unauthenticated, "unknown API key", "unknown API key",
				}
			}
			c = caller{name: name, apiKey: true}
		}
	}
	if c.name == "" && !c.agent && g.config.Named() {
		return caller{}, &refusal{
			codes.Unauthenticated, "no credentials", "no credentials: want " + g.wanted(),
		}
	}
	return c, nil
}

// wanted are the credentials that a client may have.
func (g *Guard) wanted() string {
	certificate := g.config.TLS() && (g.config.CAFile != "" || g.config.ClientCAFile != "")
	switch {
	case g.config.APIKeysFile == "":
		return "a client certificate"
	case !certificate:
		return "an API key (authorization: Bearer KEY)"
	}
	return "a client certificate or an API key (authorization: Bearer KEY)"
}

// bearer is the token of an authorization header, if it has one.
func bearer(headers []string) (token string, given bool, _ *refusal) {
	if len(headers) > 1 {
		return "", false, &refusal{
			codes.Unauthenticated, "several authorizations",
			"more than one authorization, want one",
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

// A demand is what a call needs.
type demand struct {
	open    bool    // anybody may
	agent   bool    // only agents of this cluster may
	control Control // "" : none
	query   bool    // a model's: see model
	model   string
}

// allow says whether the caller may do what the call needs.
func (g *Guard) allow(c caller, d demand) *refusal {
	if d.open || c.agent {
		return nil
	}
	if !g.config.TLS() && !g.config.Named() {
		return nil // nothing is guarded
	}
	switch {
	case d.agent:
		return &refusal{
			codes.PermissionDenied, "not an agent",
			"only agents of this cluster may: want a certificate of its CA with the name " +
				AgentName,
		}
	case d.control != "" && c.name == "":
		return &refusal{
			codes.Unauthenticated, "no credentials",
			"no credentials: " + string(d.control) + " needs a client with a name",
		}
	case d.control != "" && !g.access.get().MayControl(c.name, d.control):
		return &refusal{
			codes.PermissionDenied, "may not " + string(d.control),
			fmt.Sprintf("client %q may not %s", c.name, d.control),
		}
	case d.query && c.name != "" && !g.access.get().MayQuery(c.name, d.model):
		return &refusal{
			codes.PermissionDenied, "may not query",
			fmt.Sprintf("client %q may not query model %q", c.name, d.model),
		}
	}
	return nil
}

// check is authenticate and allow.
func (g *Guard) check(state *tls.ConnectionState, authorization []string, d demand) (caller,
	*refusal) {
	if d.open {
		return caller{}, nil
	}
	c, r := g.authenticate(state, authorization)
	if r != nil {
		return caller{}, r
	}
	return c, g.allow(c, d)
}

// refused counts and logs a call that was refused.
func (g *Guard) refused(address net.Addr, call string, r *refusal) {
	reason := ReasonDenied
	if r.code == codes.Unauthenticated {
		reason = ReasonUnauthenticated
	}
	g.observe(reason)
	g.refusals.add(address, "call refused", r.reason, fmt.Errorf("%.100q: %w", call, r))
}

// Client is the name of the client whose call ctx is of, by gRPC or REST; "" if it has none, or is
// an agent of this cluster.
func (g *Guard) Client(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(caller); ok && !c.agent {
		return c.name
	}
	return ""
}

// MayControl reports whether whoever has made the call that ctx is of may make the control call.
func (g *Guard) MayControl(ctx context.Context, call Control) bool {
	c, ok := ctx.Value(callerKey{}).(caller)
	return ok && g.allow(c, demand{control: call}) == nil
}

// MayQuery says why whoever has made the call that ctx is of may not query the model; nil
// if it may. It reads the access file as it is now, so that a stream has no rights that
// its client has lost.
func (g *Guard) MayQuery(ctx context.Context, model string) error {
	c, ok := ctx.Value(callerKey{}).(caller)
	if !ok {
		return &refusal{
			codes.Unauthenticated, "no credentials", "nobody knows who has made this call",
		}
	}
	if r := g.allow(c, demand{query: true, model: model}); r != nil {
		return r
	}
	return nil
}
