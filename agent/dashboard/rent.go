package dashboard

import (
	"encoding/json"
	"io"
	"net/http"

	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

type rentedJSON struct {
	Mode     string        `json:"mode"` // "": nothing is rented
	Exact    bool          `json:"exact"`
	Price    number        `json:"price"`
	Limit    number        `json:"limit"`
	Fault    string        `json:"fault"`
	Outlook  string        `json:"outlook"`
	Proposal *proposalJSON `json:"proposal"`
	Held     []heldJSON    `json:"held"`
}

type proposalJSON struct {
	Number  uint64   `json:"number,string"` // beyond what JavaScript counts exactly
	Price   number   `json:"price"`
	Now     number   `json:"now"`
	Why     string   `json:"why"`
	Waits   string   `json:"waits"`
	Changes []string `json:"changes"`
}

type heldJSON struct {
	What  string `json:"what"`
	Why   string `json:"why"`
	ForMs number `json:"for_ms"`
}

func rentedOf(s *control.FleetState) rentedJSON {
	out := rentedJSON{Mode: s.GetMode(), Exact: s.GetExact(), Price: number(s.GetPriceUsdPerHour()),
		Limit: number(s.GetLimitUsdPerHour()), Fault: s.GetFault(), Outlook: s.GetOutlook(),
		Held: []heldJSON{}}
	if p := s.GetProposal(); p != nil {
		out.Proposal = &proposalJSON{Number: p.GetNumber(), Price: number(p.GetPriceUsdPerHour()),
			Now: number(p.GetNowUsdPerHour()), Why: p.GetWhy(), Waits: p.GetWaits(),
			Changes: append([]string{}, p.GetChanges()...)}
	}
	for _, h := range s.GetHeld() {
		out.Held = append(out.Held,
			heldJSON{h.GetWhat(), h.GetWhy(), toMs(float64(h.GetForNs()))})
	}
	return out
}

// serveFleet serves GET /dashboard/api/fleet: what the leader rents, proposes and holds.
func (d *Dashboard) serveFleet(w http.ResponseWriter, req *http.Request) {
	if d.refuseWithout(w, req, secure.Plan) {
		return
	}
	s, err := d.config.Fleet(req.Context())
	if err != nil { // there is no leader, which is no fault of the page's
		s = &control.FleetState{Fault: status.Convert(err).Message()}
	}
	writeJSON(w, rentedOf(s))
}

// maxApproval is the largest body of an approval, in bytes: a number of 20 digits at most, with
// room for spaces.
const maxApproval = 256

// serveApproval serves POST /dashboard/api/fleet: it approves the proposal of the number in the
// body. The guard has refused what pages of other origins send.
func (d *Dashboard) serveApproval(w http.ResponseWriter, req *http.Request) {
	if d.refuseWithout(w, req, secure.Fleet) {
		return
	}
	var said struct {
		Approve uint64 `json:"approve,string"`
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxApproval+1))
	if err != nil || len(body) > maxApproval || json.Unmarshal(body, &said) != nil ||
		said.Approve == 0 {
		writeError(w, http.StatusBadRequest, `body, want JSON: {"approve": "a proposal's number"}`)
		return
	}
	s, err := d.config.SetFleet(req.Context(), &control.SetFleetRequest{
		Change: &control.SetFleetRequest_Approve{Approve: said.Approve},
	})
	if err != nil {
		writeError(w, http.StatusConflict, status.Convert(err).Message())
		return
	}
	writeJSON(w, rentedOf(s))
}
