package runtime

import (
	"fmt"
	"regexp"
)

// An IndexError is the error of a run in which an index was outside of what it indexes, such as an
// id outside of a table: one in the query, or one that the model computes of the query. It says
// nothing of ONNX Runtime's.
type IndexError struct {
	Index    string // as the operator says it; empty if it does not
	Low, Top string // the first and the last index that there is; empty if the operator does not say them
}

func (e *IndexError) Error() string {
	index, want := "an index", ""
	if e.Index != "" {
		index = "index " + e.Index
	}
	if e.Low != "" {
		want = fmt.Sprintf(", want %s to %s", e.Low, e.Top)
	}
	return fmt.Sprintf("%s is out of bounds%s: an id of the query, or what the model computes of it, "+
		"is outside of its table", index, want)
}

// indexErrors are what ONNX Runtime's operators say of an index that is out of bounds, with it and
// with the first and the last one that there is, as far as they say it: Gather,
// GatherBlockQuantized, ScatterElements and the operator of package kernels; GatherElements and the
// losses; GatherND and ScatterND; ArrayFeatureExtractor; operators of sequences;
// EmbedLayerNormalization.
var indexErrors = regexp.MustCompile(`out of data bounds, idx=(-?\d+) must be within the inclusive ` +
	`range \[(-?\d+),\s*(-?\d+)\]|Out of range value in index tensor|invalid ind(?:ex|ice) found, ` +
	`ind(?:ex|ice) = (-?\d+)|index is out of range: Y\[\d+\] \((-?\d+)\)|` +
	`Invalid sequence index \((-?\d+)\)|input index out of range`)

// indexError returns an error of ONNX Runtime's as an [IndexError] if it is one, else as it is.
func indexError(err error) error {
	m := indexErrors.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	e := &IndexError{Index: m[1], Low: m[2], Top: m[3]}
	for _, index := range m[4:] {
		if index != "" {
			e.Index = index
		}
	}
	return e
}
