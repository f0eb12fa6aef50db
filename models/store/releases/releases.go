// Package releases keeps in a model store which versions of its models are released: documents with
// numbers that rise, of which the newest is in force. A release is written as the next number,
// unless there is one. So of two people, or fleets, that release at once, one is told to look
// again, in every kind of store that can create an object or say that it exists; and what was
// released before stays readable.
//
// Where signatures are required a release counts only with a signature beside it ([Trust]). That is
// over the document, which says the model, the number and the fleet, so that nobody can take an old
// release for a newer one, for another model or for another fleet.
package releases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	shared "github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/models/store"
)

// format is the format of the documents that this program writes.
const format = 1

// A document is a release in a store. Format and Requires say which format it needs, the higher of
// the two: see shared.Format. Programs of before know Format alone, and refuse any but 1.
type document struct {
	Format   uint64 `json:"format"`
	Requires uint64 `json:"requires,omitempty"`
	// Fleet is the name of the fleets that the release is for; "" of one that is not signed. Agents
	// that know nothing of it ignore it.
	Fleet   string          `json:"fleet,omitempty"`
	Release json.RawMessage `json:"release"`
}

// A Trust says which releases count. The zero value takes all.
type Trust struct {
	// Keys are the keys of which one must have signed a release; nil: nothing must be signed.
	Keys store.Keys
	// Fleet is the name that a signed release must be for.
	Fleet string
	// URL is that of the store, for errors.
	URL string
}

// check returns an error that wraps store.ErrSignature unless the document is signed, for the
// fleet. It asks for the signature before anybody parses the document.
func (t *Trust) check(ctx context.Context, s *store.Store, model string, number uint64,
	data []byte) error {
	if t.Keys == nil {
		return nil
	}
	signature, err := s.ReleaseSignature(ctx, model, number)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil {
		err = t.Keys.Verify(data, signature)
	}
	if err == nil {
		d := document{}
		if err = json.Unmarshal(data, &d); err == nil && d.Fleet != t.Fleet {
			err = fmt.Errorf("it is signed for the fleet %.255q, this one is %q (--fleet-name)",
				d.Fleet,
				t.Fleet)
		}
	}
	if err != nil {
		return fmt.Errorf("release %d of %s in %s: %w: %w; if it is right, write it signed as the next "+
			"one: muster models release %s --store %s --fleet-name %s --sign KEY", number, model, s,
			store.ErrSignature, err, model, t.URL, t.Fleet)
	}
	return nil
}

// Read reads a release, whose texts are cut to their bounds. The error wraps store.ErrNotFound if
// there is none with the number, and store.ErrInvalid if the document is no release; also
// [shared.FormatError] if it needs a later program.
func Read(ctx context.Context, s *store.Store, model string, number uint64) (*control.Release,
	error) {
	return ReadTrusted(ctx, s, model, number, Trust{})
}

// ReadTrusted is Read, and also an error that wraps store.ErrSignature unless the release is signed
// as trust says.
func ReadTrusted(ctx context.Context, s *store.Store, model string, number uint64, trust Trust) (
	*control.Release, error) {
	data, err := s.Release(ctx, model, number)
	if err == nil {
		err = trust.check(ctx, s, model, number, data)
	}
	if err != nil {
		return nil, err
	}
	r, err := parse(data)
	if err == nil && (r.GetModel() != model || r.GetNumber() != number) {
		err = fmt.Errorf("it is number %d of model %.80q", r.GetNumber(), r.GetModel())
	}
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("release %d of %s in %s: %w: %w", number, model, s, store.ErrInvalid,
			err)
	}
	r.Kept, r.Epoch = number, 0 // said by the key, or of a fleet
	return r.Bounded(), nil
}

func parse(data []byte) (*control.Release, error) {
	d := document{}
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if err := shared.CheckFormat("the document", max(d.Format, d.Requires)); err != nil {
		return nil, err
	}
	if d.Format == 0 {
		return nil, fmt.Errorf("format is 0, want 1 to %d", shared.Format)
	}
	r := &control.Release{}
	return r, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(d.Release, r)
}

// Newest reads the newest release of a model, and returns it with what else the store has of it;
// nil if the store has none. The error wraps store.ErrNotFound if it has nothing of the model.
func Newest(ctx context.Context, s *store.Store, model string) (*control.Release, *store.Entry,
	error) {
	entry, err := s.Entry(ctx, model)
	if err != nil || entry.Release == 0 {
		return nil, entry, err
	}
	r, err := Read(ctx, s, model, entry.Release)
	return r, entry, err
}

// maxInvalid is how many releases NewestValid looks at, so that who fills a store does not have
// every call read all of it.
const maxInvalid = 16

// NewestValid is Newest, but for releases that are not valid, or not signed as trust says, which
// nobody follows: it passes them over. One that needs a later program is an error, for others may
// follow it. The next release is one above the newest in the store, whether that is valid or not.
func NewestValid(ctx context.Context, s *store.Store, model string, trust Trust) (*control.Release,
	*store.Entry, error) {
	entry, err := s.Entry(ctx, model)
	if err != nil {
		return nil, nil, err
	}
	for i, number := range slices.Backward(entry.Releases) {
		r, err := ReadTrusted(ctx, s, model, number, trust)
		var later *shared.FormatError
		if err == nil || errors.As(err, &later) ||
			!errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrSignature) {
			return r, entry, err
		}
		if len(entry.Releases)-i == maxInvalid {
			return nil, entry,
				fmt.Errorf("none of the newest %d releases is valid, remove them: %w",
					maxInvalid, err)
		}
	}
	return nil, entry, nil
}

// Create writes a release under its number, which is one above that of the store's newest.
// The error wraps store.ErrExists if another release has the number. A write that was cut
// off may be repeated.
func Create(ctx context.Context, s *store.Store, r *control.Release) error {
	data, err := encode(r, "")
	if err != nil {
		return err
	}
	return createRelease(ctx, s, r, data)
}

// CreateSigned is Create, and writes the signature of a release for a fleet after it. If that
// fails, the release does not count where signatures are required, and may be written again as the
// next one.
func CreateSigned(ctx context.Context, s *store.Store, r *control.Release, signer *store.Signer,
	fleet string) error {
	data, err := encode(r, fleet)
	if err != nil {
		return err
	}
	signature, err := signer.Sign(data)
	if err != nil {
		return fmt.Errorf("sign release %d of %s: %w", r.GetNumber(), r.GetModel(), err)
	}
	if err := createRelease(ctx, s, r, data); err != nil {
		return err
	}
	err = s.CreateReleaseSignature(ctx, r.GetModel(), r.GetNumber(), signature)
	if errors.Is(err, store.ErrExists) { // of this document, in an earlier attempt, or of another
		return ReadSigned(ctx, s, r, Trust{Keys: signer.Key, Fleet: fleet})
	}
	return err
}

// ReadSigned returns an error unless the store has a release, signed as trust says.
func ReadSigned(ctx context.Context, s *store.Store, r *control.Release, trust Trust) error {
	_, err := ReadTrusted(ctx, s, r.GetModel(), r.GetNumber(), trust)
	return err
}

// encode returns the document of a release, for a fleet if that is not "".
func encode(r *control.Release, fleet string) ([]byte, error) {
	r = proto.CloneOf(r)
	r.Kept, r.Epoch = 0, 0 // of a fleet, or said by the key
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
	if err != nil {
		return nil, err
	}
	// protojson puts spaces where it likes.
	var data bytes.Buffer
	if text, err = json.Marshal(document{Format: format, Fleet: fleet, Release: text}); err == nil {
		err = json.Indent(&data, text, "", "  ")
	}
	data.WriteByte('\n')
	return data.Bytes(), err
}

func createRelease(ctx context.Context, s *store.Store, r *control.Release, data []byte) error {
	err := s.CreateRelease(ctx, r.GetModel(), r.GetNumber(), data)
	if errors.Is(err, store.ErrExists) {
		there, readErr := s.Release(ctx, r.GetModel(), r.GetNumber())
		if readErr == nil && bytes.Equal(there, data) {
			return nil
		}
	}
	return err
}
