package oip

import (
	"maps"
	"slices"
)

// The parameter that bounds the accuracy of the model that answers, and its former name, which
// gateways send on because agents of before know no other.
const (
	minAccuracyParameter   = "min_accuracy"
	leastAccuracyParameter = "least_accuracy"
)

// takeLeastAccuracy moves the parameter `min_accuracy`, or `least_accuracy`, to r.LeastAccuracy.
func (r *Request) takeLeastAccuracy() error {
	given := false
	for _, name := range []string{minAccuracyParameter, leastAccuracyParameter} {
		v, ok := r.Parameters[name]
		if !ok {
			continue
		}
		if given {
			return invalidf("parameters %s and %s are given, expected one of them",
				minAccuracyParameter, leastAccuracyParameter)
		}
		bound, ok := parseNumber(v)
		if !ok {
			return invalidf("parameter %s is %v (%T), expected a number above 0, at most 1", name,
				v,
				v)
		}
		if err := checkLeastAccuracy(name, bound); err != nil {
			return err
		}
		r.LeastAccuracy, given = bound, true
		removeParameter(&r.Parameters, name)
	}
	return nil
}

func checkLeastAccuracy(name string, bound float64) error {
	if !(bound > 0 && bound <= 1) {
		return invalidf("parameter %s is %v, expected a number above 0, at most 1", name, bound)
	}
	return nil
}

// parseNumber converts a parameter; false if it is none.
func parseNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}

// Parameters of an answer that have a field of their own.
const (
	variantParameter        = "variant"
	variantVersionParameter = "variant_version"
	accuracyParameter       = "accuracy"
	emulatedParameter       = "emulated"
)

// takeParameters moves the parameters that have fields of their own to those, if there are such of
// the right types.
func (r *Response) takeParameters() {
	if emulated, ok := r.Parameters[emulatedParameter].(bool); ok {
		r.Emulated = emulated
		removeParameter(&r.Parameters, emulatedParameter)
	}
	variant, ok := r.Parameters[variantParameter].(string)
	if !ok {
		return
	}
	r.Variant = variant
	r.VariantVersion, _ = r.Parameters[variantVersionParameter].(string)
	if accuracy, _ := parseNumber(r.Parameters[accuracyParameter]); accuracy > 0 && accuracy <= 1 {
		r.Accuracy = accuracy
	}
	for _, name := range []string{
		variantParameter, variantVersionParameter, accuracyParameter,
	} {
		removeParameter(&r.Parameters, name)
	}
}

// eachParameter calls do with each parameter of the answer, in a fixed order, until it returns an
// error.
func (r *Response) eachParameter(do func(name string, value any) error) error {
	if r.Variant != "" {
		if err := do(variantParameter, r.Variant); err != nil {
			return err
		}
		if err := do(variantVersionParameter, r.VariantVersion); err != nil {
			return err
		}
		if r.Accuracy > 0 {
			if err := do(accuracyParameter, r.Accuracy); err != nil {
				return err
			}
		}
	}
	if r.Emulated {
		if err := do(emulatedParameter, true); err != nil {
			return err
		}
	}
	if len(r.Parameters) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(r.Parameters)) {
		if err := do(name, r.Parameters[name]); err != nil {
			return err
		}
	}
	return nil
}

// AnsweredBy makes r the answer of a variant to a query that names a family: r has the family's
// name, and says which model it is of, until now its own.
func (r *Response) AnsweredBy(family string, accuracy float64) {
	r.Variant, r.VariantVersion, r.Accuracy = r.Model, r.Version, accuracy
	r.Model, r.Version = family, ""
}
