package profiles

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/document"
)

// A Library holds latency profiles of some models on some instance types, such as the shipped ones.
// It is immutable and safe for concurrent use.
type Library struct {
	source  string
	command string
	models  map[string]ModelInfo
	tables  map[string]map[InstanceType]*Table
}

// A ModelInfo is the library's entry of a model.
type ModelInfo struct {
	Name             string
	QoSTarget        time.Duration
	LargestBatchSize int
}

// libraryFormat is the version of the JSON form.
const libraryFormat = 1

type libraryJSON struct {
	Format  int         `json:"format"`
	Source  string      `json:"source"`
	Command string      `json:"command"`
	Models  []modelJSON `json:"models"`
	Tables  []*Table    `json:"tables"`
}

type modelJSON struct {
	Name             string  `json:"name"`
	QoSTarget        float64 `json:"qos_target_ms"`
	LargestBatchSize int     `json:"largest_batch_size"`
}

//go:embed shipped.json
var shippedJSON []byte

// ShippedLibrary returns the profiles that are part of the program: the papers' five models on the
// four instance types of KAIROS's experiments. Each call reads them anew.
func ShippedLibrary() *Library {
	l, err := ReadLibrary("shipped.json", bytes.NewReader(shippedJSON))
	if err != nil {
		panic(err) // embedded, and read by every test
	}
	return l
}

// NewLibrary returns a library of the given models and tables. Model names must be unique, and each
// table must be of one of the models. source says what was measured; command is the command that
// made the tables from it.
func NewLibrary(source, command string, models []ModelInfo, tables []*Table) (*Library, error) {
	l := &Library{
		source: source, command: command, models: map[string]ModelInfo{},
		tables: map[string]map[InstanceType]*Table{},
	}
	for _, m := range models {
		switch _, twice := l.models[m.Name]; {
		case m.Name == "":
			return nil, errors.New("a model has no name")
		case twice:
			return nil, fmt.Errorf("model %q occurs twice", m.Name)
		case m.QoSTarget <= 0:
			return nil, fmt.Errorf("model %q: QoS target %v is not positive", m.Name, m.QoSTarget)
		case m.LargestBatchSize < 1 || m.LargestBatchSize > MaxBatchSize:
			return nil, fmt.Errorf("model %q: largest batch size %d is not within 1..%d", m.Name,
				m.LargestBatchSize, MaxBatchSize)
		}
		l.models[m.Name] = m
		l.tables[m.Name] = map[InstanceType]*Table{}
	}
	for i, t := range tables {
		if t == nil {
			return nil, fmt.Errorf("profile %d is null", i)
		}
		k := t.Key()
		if _, ok := l.models[k.Model]; !ok {
			return nil, fmt.Errorf("a profile is of model %q, which is not among the models %s",
				k.Model, joinNames(l.Models()))
		}
		if _, twice := l.tables[k.Model][k.InstanceType]; twice {
			return nil, fmt.Errorf("the profile of %s on %s occurs twice", k.Model, k.InstanceType)
		}
		l.tables[k.Model][k.InstanceType] = t
	}
	return l, nil
}

// ReadLibrary reads the form that Write writes. Errors name the file (name).
func ReadLibrary(name string, r io.Reader) (*Library, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read latency profiles from %s: %w", name, err)
	}
	var j libraryJSON
	if err := document.JSON(data, &j); err != nil {
		return nil, fmt.Errorf("read latency profiles from %s: %w", name, err)
	}
	if j.Format != libraryFormat {
		return nil, fmt.Errorf("read latency profiles from %s: format is %d, want %d", name,
			j.Format, libraryFormat)
	}
	models := make([]ModelInfo, len(j.Models))
	for i, m := range j.Models {
		models[i] = ModelInfo{m.Name, fromMS(m.QoSTarget), m.LargestBatchSize}
	}
	l, err := NewLibrary(j.Source, j.Command, models, j.Tables)
	if err != nil {
		return nil, fmt.Errorf("read latency profiles from %s: %w", name, err)
	}
	return l, nil
}

// Write writes the library as JSON, models and instance types in alphabetical order.
func (l *Library) Write(w io.Writer) error {
	j := libraryJSON{Format: libraryFormat, Source: l.source, Command: l.command}
	for _, name := range l.Models() {
		m := l.models[name]
		j.Models = append(j.Models, modelJSON{m.Name, toMs(m.QoSTarget), m.LargestBatchSize})
		for _, t := range l.Types(name) {
			j.Tables = append(j.Tables, l.tables[name][t])
		}
	}
	data, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		return fmt.Errorf("write latency profiles: %w", err)
	}
	if _, err := w.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("write latency profiles: %w", err)
	}
	return nil
}

// Source says what was measured.
func (l *Library) Source() string { return l.source }

// Models returns the models in alphabetical order.
func (l *Library) Models() []string { return slices.Sorted(maps.Keys(l.models)) }

// Types returns the instance types that have a profile of a model, in alphabetical order.
func (l *Library) Types(model string) []InstanceType {
	return slices.Sorted(maps.Keys(l.tables[model]))
}

// Model returns the entry of a model. The error for an unknown one lists the models of the library.
func (l *Library) Model(name string) (ModelInfo, error) {
	m, ok := l.models[name]
	if !ok {
		return ModelInfo{}, fmt.Errorf("no latency profile of model %q; there are %s", name,
			joinNames(l.Models()))
	}
	return m, nil
}

// Table returns the profile of a model on an instance type. If there is none, the error lists the
// models or types that have one.
func (l *Library) Table(model string, t InstanceType) (*Table, error) {
	if _, err := l.Model(model); err != nil {
		return nil, err
	}
	table, ok := l.tables[model][t]
	if !ok {
		return nil, fmt.Errorf("no latency profile of %s on instance type %q; there are %s", model,
			t, joinNames(l.Types(model)))
	}
	return table, nil
}
