package control

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
)

// The bounds of a release. Each one is told to all agents in one message, which the Link of every
// member must take, and anybody who can write to a model store writes releases.
const (
	// MaxReleaseNumber is the highest number of a release. A store with the most objects that an
	// agent lists, each as far above the one before as may be, comes to a tenth of it. So no number
	// that is valid leaves no room for a later one.
	MaxReleaseNumber = 1 << 40
	// MaxNameBytes bounds a model's name, as file systems bound that of its folder.
	MaxNameBytes = 255
	// MaxWhyBytes and MaxByBytes bound what people read of a release, which is cut to them.
	MaxWhyBytes, MaxByBytes = 1 << 10, 255
	// maxUnknownBytes bounds the fields of later versions, which are passed on as they came.
	maxUnknownBytes = 1 << 10
)

// Validate returns what is wrong with a release, or nil. Texts that are too long are not: see
// [Release.Bounded].
func (r *Release) Validate() error {
	switch share := r.GetShare(); {
	case r.GetModel() == "" || len(r.GetModel()) > MaxNameBytes:
		return fmt.Errorf("model %.80q, want a name of at most %d bytes", r.GetModel(), MaxNameBytes)
	case r.GetNumber() < 1 || r.GetCurrent() < 1 || r.GetPrevious() < 0:
		return fmt.Errorf("%s: number %d, current version %d, previous %d: want numbers above 0",
			r.GetModel(), r.GetNumber(), r.GetCurrent(), r.GetPrevious())
	case max(r.GetNumber(), r.GetKept()) > MaxReleaseNumber:
		return fmt.Errorf("%s: number %d, in the model store %d: want at most %d, so that later "+
			"releases have higher ones", r.GetModel(), r.GetNumber(), r.GetKept(), MaxReleaseNumber)
	case r.GetCanary() < 0 || r.GetCanary() == r.GetCurrent():
		return fmt.Errorf("%s: canary version %d beside version %d, want another", r.GetModel(),
			r.GetCanary(), r.GetCurrent())
	case !(share >= 0 && share < 1) || share > 0 && r.GetCanary() == 0:
		return fmt.Errorf("%s: share %v of canary %d, want at least 0 and below 1", r.GetModel(),
			share, r.GetCanary())
	case !(r.GetTolerance() >= 0) || r.GetPromoteAfterNs() < 0:
		return fmt.Errorf("%s: tolerance %v, promote after %v: want nothing below 0", r.GetModel(),
			r.GetTolerance(), time.Duration(r.GetPromoteAfterNs()))
	}
	if err := CheckMaxDifference(r.MaxDifference); err != nil {
		return fmt.Errorf("%s: %w", r.GetModel(), err)
	}
	return nil
}

// CheckMaxDifference returns what is wrong with a max_difference, or nil.
func CheckMaxDifference(difference *float64) error {
	if d := difference; d != nil && !(*d >= 0 && *d <= math.MaxFloat64) {
		return fmt.Errorf("max_difference %v, want a number of at least 0, or none: then answers are "+
			"not compared", *d)
	}
	return nil
}

// Bounded returns the release with texts that are within their bounds: r itself, or a changed copy.
func (r *Release) Bounded() *Release {
	if len(r.GetWhy()) <= MaxWhyBytes && len(r.GetBy()) <= MaxByBytes &&
		len(r.ProtoReflect().GetUnknown()) <= maxUnknownBytes {
		return r
	}
	r = proto.CloneOf(r)
	r.Why, r.By = Cut(r.Why, MaxWhyBytes), Cut(r.By, MaxByBytes)
	if len(r.ProtoReflect().GetUnknown()) > maxUnknownBytes {
		r.ProtoReflect().SetUnknown(nil)
	}
	return r
}

// cutMark ends a text that was cut.
const cutMark = "..."

// Cut returns a text for people in at most limit bytes, which must be 3 or more. One that is longer is
// cut, and ends in "...".
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(cutMark)], "") + cutMark
}

// DefaultTolerance is how much a score of a canary's answer may differ from the current version's
// where a release says it only by a tolerance of 0, as releases made by older agents may.
const DefaultTolerance = .05

// OlderTolerance returns the tolerance that says to agents which do not know max_difference what it
// says: an infinite one, with which they find no answer wrong, if it is absent. They take 0 for
// DefaultTolerance; the smallest number above 0 means the same.
func OlderTolerance(maxDifference *float64) float64 {
	if maxDifference == nil {
		return math.Inf(1)
	}
	return max(*maxDifference, math.SmallestNonzeroFloat64)
}

// ComparedWithin returns by how much a score of the canary's answers may differ from the current
// version's, and whether answers are compared at all.
func (r *Release) ComparedWithin() (difference float64, compared bool) {
	if r.GetCanary() == 0 {
		return 0, false
	}
	if r.MaxDifference != nil {
		return r.GetMaxDifference(), true
	}
	difference = cmp.Or(r.GetTolerance(), DefaultTolerance)
	return difference, !math.IsInf(difference, 1)
}
