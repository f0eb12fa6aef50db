package models

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/files"
)

// A Rating is how well a model answers the question of its family. Fields with their zero value are
// left as they are in the file.
type Rating struct {
	Family   string
	Accuracy float64
	Score    float64
	Metric   Metric
	Measured Measurement
}

// WriteRating writes a rating to the model.yaml at path, which may be missing. Everything else in
// the file stays, with its comments. If the file is wrong, or would be, it stays as it is, with an
// error.
func WriteRating(path string, r Rating) error {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := parseConfig(path, data); err != nil {
		return err
	}
	edited, err := r.editFile(path, data)
	if err != nil {
		return err
	}
	if _, err := parseConfig(path, edited); err != nil {
		return fmt.Errorf("rate model: %w", err)
	}
	if bytes.Equal(data, edited) {
		return nil
	}
	return files.Replace(path, edited, 0o666)
}

func (r Rating) editFile(path string, data []byte) ([]byte, error) {
	doc, err := document.YAML(path, data)
	if err != nil {
		return nil, err
	}
	if doc == nil { // no more than comments
		doc = &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{
			{Kind: yaml.MappingNode, HeadComment: string(bytes.TrimSpace(data))},
		}}
	}
	root := doc.Content[0]
	moveComments(root)
	set := func(key string, value *yaml.Node) {
		for i := 0; i+1 < len(root.Content); i += 2 {
			if root.Content[i].Value == key {
				value.LineComment = root.Content[i+1].LineComment
				root.Content[i+1] = value
				return
			}
		}
		root.Content = append(root.Content,
			&yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	}
	if r.Family != "" {
		set("family", textNode(r.Family))
	}
	if r.Accuracy != 0 {
		set("accuracy", numberNode(r.Accuracy))
	}
	if r.Score != 0 {
		set("score", numberNode(r.Score))
		set("metric", textNode(string(r.Metric)))
	}
	if m := r.Measured; m != (Measurement{}) {
		m.Error = roundTo6(m.Error)
		var n yaml.Node
		if err := n.Encode(measurement(m)); err != nil {
			return nil, err
		}
		n.Style = yaml.FlowStyle
		set("measured", &n)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(doc), e.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// moveComments puts a comment behind a key, whose value in brackets begins on the next line, behind
// that value: the encoder would write it behind the next key, and leave it out where there is none.
func moveComments(n *yaml.Node) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if value.Style&yaml.FlowStyle != 0 {
			value.LineComment = strings.TrimSpace(key.LineComment + " " + value.LineComment)
			key.LineComment = ""
		}
	}
	for _, c := range n.Content {
		moveComments(c)
	}
}

func textNode(s string) *yaml.Node {
	var n yaml.Node
	n.SetString(s)
	return &n
}

// numberNode shows f with the six digits after the point that a score on a million rows can have.
func numberNode(f float64) *yaml.Node {
	return &yaml.Node{
		Kind: yaml.ScalarNode, Tag: "!!float",
		Value: strconv.FormatFloat(roundTo6(f), 'f', -1, 64),
	}
}

func roundTo6(f float64) float64 { return math.Round(f*1e6) / 1e6 }

// Rerate gives the measured variants of a family in the repository dir their accuracies anew, from
// their scores. Those that were measured on the same rows belong together. It returns the models
// whose accuracy changed.
func Rerate(dir, family string) ([]string, error) {
	all, err := ReadAll(dir)
	if err != nil {
		return nil, err
	}
	type rows struct {
		metric  Metric
		against string
		rows    int64
		seed    uint64
	}
	rowsOf := func(c Config) rows {
		return rows{c.Metric, c.Measured.Against, c.Measured.Rows, c.Measured.Seed}
	}
	best := map[rows]float64{}
	all = slices.DeleteFunc(all, func(v *Version) bool {
		return v.Config.Family != family || v.Config.Score == 0
	})
	for _, v := range all {
		best[rowsOf(v.Config)] = max(best[rowsOf(v.Config)], v.Config.Score)
	}
	for _, v := range all {
		if r := rowsOf(v.Config); r.against == v.Model {
			best[r] = v.Config.Score
		}
	}
	var changed []string
	for _, v := range all {
		c := v.Config
		accuracy := roundTo6(c.Metric.Accuracy(c.Score, best[rowsOf(c)]))
		if accuracy == c.Accuracy {
			continue
		}
		path, outside, err := resolvePath(dir, v.Model, ConfigFile)
		if err == nil && outside != "" {
			err = fmt.Errorf("%s leads to %s, outside of the model directory: it is not written to", path,
				outside)
		}
		if err != nil {
			return changed, err
		}
		if err := WriteRating(path, Rating{Accuracy: accuracy}); err != nil {
			return changed, err
		}
		changed = append(changed, v.Model)
	}
	return changed, nil
}
