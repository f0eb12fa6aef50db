package picker

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// TicketHeader is the name of the header that carries a signed [Ticket].
const TicketHeader = "muster-ticket"

// ticketTime is how long a ticket is good for. Agents compare their clocks by it, so it is longer
// than clocks that are kept differ; and it bounds for how long agents remember tickets.
const ticketTime = 10 * time.Second

// A Ticket says which attempt of a query a request is.
type Ticket struct {
	Agent names.AgentName `json:"a"` // that is to run it
	// Attempt and Merge have the forms of control.AttemptHeader and control.MergeHeader.
	Attempt string `json:"t"`
	Merge   string `json:"m,omitempty"`
	// Model and Version are what is to answer: of a query for a family a variant of it.
	Model   string `json:"o"`
	Version string `json:"v,omitempty"`
	// Left is how long after the assignment the query is dropped, in ns; 0: never.
	Left time.Duration `json:"l,omitempty"`
	// Until is the time until which the ticket is good, in Unix ms.
	Until int64 `json:"u"`
}

// A Signer makes tickets that other agents of the fleet know to be of one of them, and opens theirs.
type Signer interface {
	SignTicket(content []byte) string
	OpenTicket(ticket string) (content []byte, err error)
}

// sign returns the header's value for t.
func (t *Ticket) sign(by Signer, now time.Time) string {
	t.Until = now.Add(ticketTime).UnixMilli()
	content, _ := json.Marshal(t) // a Ticket is always valid
	return by.SignTicket(content)
}

// Errors of tickets that say that a request is one without.
var (
	errExpired   = errors.New("the ticket has expired")
	errElsewhere = errors.New("the ticket is for another agent")
	errUsed      = errors.New("the ticket was used before")
)

// A Turnstile lets each ticket for an agent through once. Its methods may be called concurrently.
type Turnstile struct {
	agent  names.AgentName
	signer Signer

	mu sync.Mutex
	// used and before are the attempts of tickets, those of before from the time up to since.
	used, before map[string]bool
	since        time.Time
}

// NewTurnstile returns the turnstile of an agent.
func NewTurnstile(agent names.AgentName, signer Signer) *Turnstile {
	return &Turnstile{agent: agent, signer: signer}
}

// Open returns the ticket that a header's value holds. It returns an error if no agent of the fleet
// has signed it, it has expired, is for another agent, or was opened before.
func (g *Turnstile) Open(value string, now time.Time) (*Ticket, error) {
	content, err := g.signer.OpenTicket(value)
	if err != nil {
		return nil, err
	}
	t := &Ticket{}
	if err := json.Unmarshal(content, t); err != nil {
		return nil, fmt.Errorf("the ticket is of a version that this agent does not know: %w", err)
	}
	until := time.UnixMilli(t.Until)
	switch {
	case !now.Before(until) || until.Sub(now) > 2*ticketTime:
		return nil, errExpired
	case t.Agent != g.agent:
		return nil, errElsewhere
	case !g.use(t.Attempt, now):
		return nil, errUsed
	}
	return t, nil
}

// use remembers an attempt for at least twice ticketTime, the longest that a ticket may be good. It
// reports false if it was used before.
func (g *Turnstile) use(attempt string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if age := now.Sub(g.since); g.used == nil || age >= 2*ticketTime || age < 0 {
		g.before, g.used, g.since = g.used, map[string]bool{}, now
	}
	if g.used[attempt] || g.before[attempt] {
		return false
	}
	g.used[attempt] = true
	return true
}
