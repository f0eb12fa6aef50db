package control

import "time"

// An EventJSON is an event in the form in which agents and `muster events --json` print it.
type EventJSON struct {
	Time     time.Time         `json:"time"`
	Agent    string            `json:"agent"`
	Sequence uint64            `json:"sequence"`
	Kind     string            `json:"kind"`
	What     string            `json:"what"`
	Who      string            `json:"who,omitempty"`
	From     string            `json:"from,omitempty"`
	Details  map[string]string `json:"details,omitempty"`
}

// JSON returns e in the form in which it is printed. The caller owns it.
func (e *Event) JSON() EventJSON {
	out := EventJSON{
		Time: time.Unix(0, e.GetTimeUnixNs()).UTC(), Agent: e.GetAgent(), Sequence: e.GetSequence(),
		Kind: e.GetKind(), What: e.GetWhat(), Who: e.GetWho(), From: e.GetFrom(),
		Details: map[string]string{},
	}
	for _, d := range e.GetDetails() {
		out.Details[d.GetKey()] = d.GetValue()
	}
	return out
}
