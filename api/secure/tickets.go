package secure

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

// ticketPurpose is what the secrets of tickets are made for.
const ticketPurpose = "muster picker ticket v1"

// openSecret signs the tickets of a fleet without gossip keys: whoever reaches its agents may ask
// them anything.
var openSecret = sha256.Sum256([]byte(ticketPurpose))

// ticketSecrets are the secrets that sign tickets, the first one new ones. While the gossip key is
// changed there are several, so each agent of the fleet accepts what another one has signed.
func (g *Guard) ticketSecrets() [][]byte {
	if g.sessionKeys == nil || len(g.sessionKeys()) == 0 {
		return [][]byte{openSecret[:]}
	}
	return g.fleetSecrets(ticketPurpose)
}

func signTicket(secret, content []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(content)
	return mac.Sum(nil)
}

// SignTicket returns content with a signature that the agents of the fleet know to be one of theirs,
// in the characters of a header's value.
func (g *Guard) SignTicket(content []byte) string {
	return base64.RawURLEncoding.EncodeToString(content) + "." +
		base64.RawURLEncoding.EncodeToString(signTicket(g.ticketSecrets()[0], content))
}

// ErrForeignTicket is the error of a ticket that no agent of the fleet has signed.
var ErrForeignTicket = errors.New("the ticket is not signed by an agent of this fleet")

// OpenTicket returns the content of a ticket that an agent of the fleet has signed.
func (g *Guard) OpenTicket(ticket string) (content []byte, err error) {
	encoded, signature, _ := strings.Cut(ticket, ".")
	content, err = base64.RawURLEncoding.Strict().DecodeString(encoded)
	mac, err2 := base64.RawURLEncoding.Strict().DecodeString(signature)
	if errors.Join(err, err2) != nil {
		return nil, ErrForeignTicket
	}
	for _, secret := range g.ticketSecrets() {
		if hmac.Equal(mac, signTicket(secret, content)) {
			return content, nil
		}
	}
	return nil, ErrForeignTicket
}
