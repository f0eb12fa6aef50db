package picker

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A stamp signs with a word.
type stamp string

func (s stamp) SignTicket(content []byte) string { return string(s) + string(content) }

func (s stamp) OpenTicket(ticket string) ([]byte, error) {
	content, ok := strings.CutPrefix(ticket, string(s))
	if !ok {
		return nil, errors.New("foreign")
	}
	return []byte(content), nil
}

// TestTickets: a ticket is good once, at its agent, for ten seconds, and signed; what it says is what
// was assigned.
func TestTickets(t *testing.T) {
	now := time.Unix(1e9, 0)
	sign := func(agent, attempt string, at time.Time) string {
		t := &Ticket{Agent: "a", Attempt: attempt, Merge: "5/2", Model: "wnd", Version: "3",
			Left: 20 * time.Millisecond}
		if agent != "" {
			t.Agent = "b"
		}
		return t.sign(stamp("fleet"), at)
	}
	g := NewTurnstile("a", stamp("fleet"))
	got, err := g.Open(sign("", "1", now), now.Add(time.Second))
	if err != nil || got.Attempt != "1" || got.Merge != "5/2" || got.Model != "wnd" ||
		got.Version != "3" || got.Left != 20*time.Millisecond {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, tt := range []struct {
		name, ticket string
		at           time.Time
		want         error
	}{
		{"again", sign("", "1", now), now.Add(2 * time.Second), errUsed},
		{"elsewhere", sign("b", "2", now), now, errElsewhere},
		{"late", sign("", "3", now), now.Add(ticketTime), errExpired},
		{"for ever", sign("", "4", now.Add(time.Hour)), now, errExpired},
		{"again later", sign("", "1", now), now.Add(ticketTime - 1), errUsed},
	} {
		if _, err := g.Open(tt.ticket, tt.at); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	if _, err := g.Open(stamp("other").SignTicket([]byte("{}")), now); err == nil {
		t.Error("a foreign ticket is good")
	}
	if _, err := g.Open("fleetno JSON", now); err == nil {
		t.Error("a ticket of another form is good")
	}
	// What was used is forgotten after the longest that a ticket is good, and not before.
	for i := range 100 {
		at := now.Add(time.Duration(i) * time.Second)
		if _, err := g.Open(sign("", string(rune('α'+i)), at), at); err != nil {
			t.Fatalf("ticket %d: %v", i, err)
		}
	}
	if n := len(g.used) + len(g.before); n > 41 {
		t.Errorf("%d tickets are remembered", n)
	}
}
