package oip

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/roles"
)

// Properties are the facts about a model that Muster adds to ModelMetadata, in its field
// `properties`: a map of strings, which other clients ignore. A zero field is unknown and left out
// of the map.
type Properties struct {
	QoSTarget        time.Duration      // qos_target_ms
	QoSPercentile    float64            // qos_percentile, in (0, 100]
	Deadline         time.Duration      // deadline_ms
	LargestBatchSize int                // largest_batch_size
	IDBounds         map[string][]int64 // id_bounds.INPUT, separated by commas; see models.Port
	// Family is what the model answers for beside its own name. Variants are the models that answer
	// for the family that the metadata is of, the most accurate first, separated by commas.
	Family   string   // family
	Variants []string // variants
	// Accuracy is in (0, 1] and Score in terms of the metric of the model's measurement, both by
	// model: of the family's variants, or of the one model.
	Accuracy map[string]float64 // accuracy.MODEL
	Score    map[string]float64 // score.MODEL
	// Labels name the columns of outputs that are made of maps: labels.OUTPUT, a list in JSON.
	Labels map[string][]string
	// Optional are the inputs that a query may leave out: optional, a list in JSON.
	Optional []string
	// Batchless is whether the tensors have no batch dimension, so that a query counts as one item:
	// batchless, "true" or left out.
	Batchless bool
	// RowsIndependent is what says that rows are independent, so that queries may be split and merged:
	// rows_independent, "settings" or "graph"; "": nothing does.
	RowsIndependent string
	// Roles are those of a ranker's inputs and outputs: roles, as [roles.Parse] reads it; nil: the model
	// has none.
	Roles *roles.Roles
}

const (
	idBoundsPrefix = "id_bounds."
	accuracyPrefix = "accuracy."
	scorePrefix    = "score."
	labelsPrefix   = "labels."
	batchless      = "batchless"
	independent    = "rows_independent"
	optional       = "optional"
)

// RolesProperty is the name of the property with a model's roles; a model without it has none.
const RolesProperty = "roles"

// Map returns p in the form of the field `properties`.
func (p Properties) Map() map[string]string {
	m := map[string]string{}
	number := func(name string, x float64) {
		if x != 0 {
			m[name] = strconv.FormatFloat(x, 'f', -1, 64)
		}
	}
	number("qos_target_ms", toMs(p.QoSTarget))
	number("qos_percentile", p.QoSPercentile)
	number("deadline_ms", toMs(p.Deadline))
	number("largest_batch_size", float64(p.LargestBatchSize))
	if p.Batchless {
		m[batchless] = "true"
	}
	if p.RowsIndependent != "" {
		m[independent] = p.RowsIndependent
	}
	if p.Roles != nil {
		m[RolesProperty] = p.Roles.String()
	}
	for input, bounds := range p.IDBounds {
		s := make([]string, len(bounds))
		for i, b := range bounds {
			s[i] = strconv.FormatInt(b, 10)
		}
		m[idBoundsPrefix+input] = strings.Join(s, ",")
	}
	for output, labels := range p.Labels {
		m[labelsPrefix+output] = listOf(labels)
	}
	if len(p.Optional) > 0 {
		m[optional] = listOf(p.Optional)
	}
	if p.Family != "" {
		m["family"] = p.Family
	}
	if len(p.Variants) > 0 {
		m["variants"] = strings.Join(p.Variants, ",")
	}
	for model, accuracy := range p.Accuracy {
		number(accuracyPrefix+model, accuracy)
	}
	for model, score := range p.Score {
		number(scorePrefix+model, score)
	}
	return m
}

// ParseProperties parses the result of Map. It ignores unknown names.
func ParseProperties(m map[string]string) (Properties, error) {
	var p Properties
	var qos, deadline, largest float64
	for name, x := range map[string]*float64{
		"qos_target_ms":      &qos,
		"qos_percentile":     &p.QoSPercentile,
		"deadline_ms":        &deadline,
		"largest_batch_size": &largest,
	} {
		value, ok := m[name]
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || !(f > 0 && f < 1e12) {
			return Properties{}, fmt.Errorf("model property %s: found %q, want a number above 0",
				name, value)
		}
		*x = f
	}
	p.QoSTarget = time.Duration(qos * float64(time.Millisecond))
	p.Deadline = time.Duration(deadline * float64(time.Millisecond))
	p.LargestBatchSize = int(largest)
	p.Family = m["family"]
	if variants := m["variants"]; variants != "" {
		p.Variants = strings.Split(variants, ",")
	}
	for prefix, byModel := range map[string]*map[string]float64{
		accuracyPrefix: &p.Accuracy, scorePrefix: &p.Score,
	} {
		for name, value := range m {
			model, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			x, err := strconv.ParseFloat(value, 64)
			if err != nil || !(x > 0 && x <= 1) {
				return Properties{}, fmt.Errorf(
					"model property %s: found %q, want a number above 0, at most 1", name, value)
			}
			if *byModel == nil {
				*byModel = map[string]float64{}
			}
			(*byModel)[model] = x
		}
	}
	p.Batchless, p.RowsIndependent = m[batchless] == "true", m[independent]
	if text := m[RolesProperty]; text != "" {
		var err error
		if p.Roles, err = roles.Parse(text); err != nil {
			return Properties{}, fmt.Errorf("model property %s: %w", RolesProperty, err)
		}
	}
	if list := m[optional]; list != "" {
		var err error
		if p.Optional, err = parseList(optional, list); err != nil {
			return Properties{}, err
		}
	}
	for name, value := range m {
		output, ok := strings.CutPrefix(name, labelsPrefix)
		if !ok {
			continue
		}
		labels, err := parseList(name, value)
		if err != nil {
			return Properties{}, err
		}
		if p.Labels == nil {
			p.Labels = map[string][]string{}
		}
		p.Labels[output] = labels
	}
	for name, value := range m {
		input, ok := strings.CutPrefix(name, idBoundsPrefix)
		if !ok {
			continue
		}
		fields := strings.Split(value, ",")
		bounds := make([]int64, len(fields))
		for i, s := range fields {
			b, err := strconv.ParseInt(s, 10, 64)
			if err != nil || b <= 0 {
				return Properties{}, fmt.Errorf(
					"model property %s: found %q at position %d, want an integer above 0", name, s,
					i)
			}
			bounds[i] = b
		}
		if p.IDBounds == nil {
			p.IDBounds = map[string][]int64{}
		}
		p.IDBounds[input] = bounds
	}
	return p, nil
}

// NeedsRoles reports whether only agents that know the roles of a model's inputs can answer its
// queries, of a model with these properties.
func NeedsRoles(properties map[string]string) bool {
	text := properties[RolesProperty]
	if text == "" {
		return false
	}
	r, err := roles.Parse(text)
	return err == nil && r.NeedsRoles()
}

// listOf returns texts as a list in JSON, for they may have any characters.
func listOf(texts []string) string {
	b := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSONString(b, text)
	}
	return string(append(b, ']'))
}

// parseList parses the result of listOf, the property name.
func parseList(name, value string) (texts []string, err error) {
	j := jsonReader{text: []byte(value)}
	err = j.readArray(func() error {
		text, err := j.string()
		texts = append(texts, text)
		return err
	})
	if err == nil {
		err = j.expectEnd()
	}
	if err != nil {
		return nil, fmt.Errorf("model property %s: %w, want a list of texts in JSON", name, err)
	}
	return texts, nil
}

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
