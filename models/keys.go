package models

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// What values keys have.
const (
	anyText     = "text"
	trueOrFalse = "true or false"
	share       = "number above 0 and up to 1"
	atLeastOne  = "whole number of at least 1"
	atLeastZero = "whole number of at least 0"
)

// ConfigKeys describes the keys of a model.yaml, in the order in which people read of them.
func ConfigKeys() []document.Key {
	described := new(parser).configKeys(new(Config), new(givenValues))
	return append([]document.Key{document.RequiresKey()}, described...)
}

// describeMilliseconds describes values of up to largest.
func describeMilliseconds(largest time.Duration) string {
	return fmt.Sprintf("ms, a number above 0 and up to %s", milliseconds(largest))
}

// configKeys are those of a model.yaml.
func (p *parser) configKeys(c *Config, g *givenValues) []document.Key {
	return slices.Concat(p.targetKeys(c, g), p.runKeys(c, g), p.rankKeys(c, g), p.modelKeys(c, g),
		p.captureConfigKeys(c, g))
}

// rankKeys are those that say what a query of a ranker consists of. A file with one of them asks
// for rolesFormat.
func (p *parser) rankKeys(c *Config, g *givenValues) []document.Key {
	return []document.Key{
		{
			Name: "sent_once", Type: "list of names, or `false`",
			Default: "the inputs that the names of the model's dimensions tell",
			Meaning: "the inputs of the user, which a query has once beside many candidates " +
				"([ranking](ranking.md)). With `false` names of dimensions tell nothing.",
			Read: func(key string, v *yaml.Node) { p.sentOnce(key, v, c, g) },
		},
		{
			Name: "ragged", Type: "list",
			Default: "the inputs that the names of the model's inputs and dimensions tell",
			Meaning: "features of several values a row or user.",
			Read:    func(key string, v *yaml.Node) { p.readRagged(key, v, c, g) },
			Keys:    p.featureKeys(new(roles.Feature)), Of: "[]",
		},
		{
			Name:    "size_of",
			Type:    "name of an input, or `NAME:DIMENSION` with a whole number from 0 on",
			Default: "the first dimension of inputs of role `row`",
			Meaning: "what counts as the size of a query. Queries are neither split nor merged by another " +
				"dimension than the first.",
			Read: func(key string, v *yaml.Node) { p.sizeOf(key, v, c, g) },
		},
	}
}

// featureKeys are those of a ragged feature.
func (p *parser) featureKeys(f *roles.Feature) []document.Key {
	index := func(form roles.Form, meaning string) document.Key {
		return document.Key{
			Name: string(form), Type: "name of an input", Meaning: meaning,
			Read: func(key string, n *yaml.Node) {
				if f.Index != "" {
					p.Fault(n, "%s: %s is given, too, expected one of %s, %s and %s", key, f.Form,
						roles.Lengths, roles.Offsets, roles.RowSplits)
				}
				f.Form = form
				p.text(key, n, &f.Index)
			},
		}
	}
	return []document.Key{
		{
			Name: "values", Type: "name of an input",
			Meaning: "that with the values. It must be given.",
			Read:    func(key string, n *yaml.Node) { p.text(key, n, &f.Values) },
		},
		index(roles.Lengths,
			"that with the number of values of each row (TorchRec); this, `offsets` or "+
				"`row_splits` must be given."),
		index(roles.Offsets, "that with where the values of each row begin (PyTorch)."),
		index(roles.RowSplits,
			"that with where they begin, and at last where all end (TensorFlow)."),
		{
			Name: "weights", Type: "name of an input",
			Meaning: "that with a weight for each value.",
			Read:    func(key string, n *yaml.Node) { p.text(key, n, &f.Weights) },
		},
		{
			Name: "per", Type: "`row` or `user`", Default: "`row`",
			Meaning: "whose the values are.",
			Read: func(key string, n *yaml.Node) {
				if f.Per = roles.Role(n.Value); f.Per != roles.Row && f.Per != roles.User {
					p.addFault(key, n, fmt.Sprintf("%q or %q", roles.Row, roles.User))
				}
			},
		},
		{
			Name: "keys", Type: atLeastOne, Default: "1",
			Meaning: "of how many features the values are.",
			Read: func(key string, n *yaml.Node) {
				if i, ok := p.readInteger(key, n, tensor.MaxCount); ok {
					f.Keys = int(i)
				}
			},
		},
		{
			Name: "layout", Type: "`key_major` or `row_major`", Default: "`row_major`",
			Meaning: "of several `keys`: whether all values of the first feature come first (TorchRec), or " +
				"those of the first row.",
			Read: func(key string, n *yaml.Node) {
				switch n.Value {
				case "key_major":
					f.KeyMajor = true
				case "row_major":
				default:
					p.addFault(key, n, `"key_major" or "row_major"`)
				}
			},
		},
		{
			Name: "last_offset", Type: trueOrFalse, Default: "`false`",
			Meaning: "whether `offsets` end with the number of values, so that there is one more than rows.",
			Read:    func(key string, n *yaml.Node) { p.readBoolean(key, n, &f.LastOffset) },
		},
		{
			Name: "table", Type: anyText,
			Meaning: "the embedding table of the values, for information.",
			Read:    func(key string, n *yaml.Node) { p.text(key, n, &f.Table) },
		},
	}
}

// targetKeys are those that say which queries are taken, and within which time.
func (p *parser) targetKeys(c *Config, g *givenValues) []document.Key {
	defaults := DefaultConfig()
	return []document.Key{
		{
			Name: "qos_target_ms", Type: describeMilliseconds(longestQoSTarget),
			Default: milliseconds(defaults.QoSTarget).String(),
			Meaning: "the latency target. A query that takes longer is late.",
			Read: func(key string, v *yaml.Node) {
				g.target = v
				p.readMilliseconds(key, v, longestQoSTarget, &c.QoSTarget)
			},
		},
		{
			Name: "qos_percentile", Type: "%, a number above 0 and up to 100",
			Default: fmt.Sprint(defaults.QoSPercentile),
			Meaning: "the percentage of queries that should meet the target.",
			Read:    func(key string, v *yaml.Node) { p.readFloat(key, v, 100, &c.QoSPercentile) },
		},
		{
			Name: "deadline_ms",
			Type: "ms, a number of at least `qos_target_ms` and up to " +
				milliseconds(longestDeadline).String(),
			Default: fmt.Sprintf("%d x `qos_target_ms`", deadlineTargets),
			Meaning: "a query without a timeout of its own is dropped after this time. It is also " +
				"the longest timeout that a client can ask for, if it is above a minute.",
			Read: func(key string, v *yaml.Node) {
				g.deadline = v
				p.readMilliseconds(key, v, longestDeadline, &c.Deadline)
			},
		},
		{
			Name: "late", Type: fmt.Sprintf("`%s` or `%s`", LateServe, LateReject),
			Default: "`" + string(defaults.Late) + "`",
			Meaning: "what happens to a query that can no longer meet the target: with `serve` it is " +
				"served when a lane would otherwise idle, if that is [worth " +
				"it](distribution.md#above-the-limit); with `reject` it is refused.",
			Read: func(key string, v *yaml.Node) {
				switch c.Late = LatePolicy(v.Value); c.Late {
				case LateServe, LateReject:
				default:
					p.addFault(key, v, fmt.Sprintf("%q or %q", LateServe, LateReject))
				}
			},
		},
		{
			Name: "largest_batch_size", Type: fmt.Sprintf("whole number, 1 to %d",
				largestBatchSize),
			Default: fmt.Sprintf("%d, of a ranker %d", defaults.LargestBatchSize, largestRanking),
			Meaning: "a query with more items is refused.",
			Read: func(key string, v *yaml.Node) {
				if i, ok := p.readInteger(key, v, largestBatchSize); ok {
					c.LargestBatchSize, c.StatesBatchSize = int(i), true
				}
			},
		},
	}
}

// runKeys are those that say how queries run.
func (p *parser) runKeys(c *Config, g *givenValues) []document.Key {
	defaults := DefaultConfig()
	return []document.Key{
		{
			Name: "rows_independent", Type: trueOrFalse,
			Default: "whether the graph proves it",
			Meaning: "whether each row of the outputs depends on the same row of the inputs alone. " +
				"Then a large batch may run in pieces, so that it can be cancelled sooner, and " +
				"queries may be split and merged.",
			Read: func(key string, v *yaml.Node) {
				c.StatesIndependence = true
				p.readBoolean(key, v, &c.RowsIndependent)
			},
		},
		{
			Name: "split", Type: trueOrFalse, Default: "`rows_independent`",
			Meaning: "whether a leader may have a large query run as two or three " +
				"[parts](internals/wire.md#parts-of-a-query) on several lanes. It splits queries of " +
				"a version only if all agents that hold it allow it.",
			Read: func(key string, v *yaml.Node) {
				g.split = v
				p.readBoolean(key, v, &g.splits)
				c.KeepWhole = !g.splits
			},
		},
		{
			Name: "merge", Type: fmt.Sprintf("`%s` or `%s`", names.MergeDeadline, names.MergeNone),
			Default: fmt.Sprintf("`%s` if `rows_independent`, else `%s`", names.MergeDeadline,
				names.MergeNone),
			Meaning: "how lanes run several waiting queries as one. With `deadline` a lane takes the " +
				"most urgent query and adds others that wait, if that saves a tenth of their time " +
				"and makes no query late; it waits for at most 2 ms, and only for queries that the " +
				"leader has sent to run together. If such a run fails, its queries run again one by " +
				"one.",
			Read: func(key string, v *yaml.Node) {
				g.merging = v
				if c.Merge = names.MergePolicy(v.Value); c.Merge.Current().Check() != nil {
					p.addFault(key, v, fmt.Sprintf("one of %v", names.MergePolicies()))
					c.Merge = ""
				}
			},
		},
		{
			Name: "tf32", Type: trueOrFalse, Default: fmt.Sprint(defaults.TF32),
			Meaning: "whether a GPU computes in [TF32](gpu.md#precision): faster, and less precise.",
			Read:    func(key string, v *yaml.Node) { p.readBoolean(key, v, &c.TF32) },
		},
		{
			Name: "warm_up", Type: "list of whole numbers, 1 to `largest_batch_size`",
			Default: "`" + strings.ReplaceAll(fmt.Sprint(defaults.WarmUp), " ", ", ") +
				"` without what is too large",
			Meaning: "batch sizes that run before a version serves; with `[]` none do.",
			Read: func(key string, v *yaml.Node) {
				g.warmUp = v
				c.WarmUp = []int{}
				for _, i := range p.readIntegers(key, v, "a list of batch sizes",
					largestBatchSize) {
					c.WarmUp = append(c.WarmUp, int(i))
				}
			},
		},
		{
			Name: "versions", Type: "`all`, a list of versions such as `[3, 5]`, or a mapping",
			Default: "`{latest: 1}`",
			Meaning: "which versions are served.",
			Read:    func(key string, v *yaml.Node) { p.versions(key, v, &c.Versions) },
			Keys:    p.versionKeys(new(VersionPolicy)),
		},
	}
}

// modelKeys are those that say what a model is.
func (p *parser) modelKeys(c *Config, g *givenValues) []document.Key {
	return []document.Key{
		{
			Name: "inputs", Type: "list", Default: "those of the model",
			Meaning: "what is said of inputs must agree with the model.",
			Read:    func(key string, v *yaml.Node) { p.readPorts(key, v, true, &g.inputs) },
			Keys:    p.portKeys(new(TensorSpec), true), Of: "[]",
		},
		{
			Name: "outputs", Type: "list", Default: "those of the model",
			Meaning: "what is said of outputs must agree with the model.",
			Read:    func(key string, v *yaml.Node) { p.readPorts(key, v, false, &g.outputs) },
			Keys:    p.portKeys(new(TensorSpec), false), Of: "[]",
		},
		{
			Name: "family", Type: "name, as a model has it",
			Meaning: "shared by models that answer the same question ([families](families.md)).",
			Read:    func(key string, v *yaml.Node) { p.text(key, v, &c.Family) },
		},
		{
			Name: "accuracy", Type: share,
			Meaning: "how well the model answers beside the best of its family.",
			Read:    func(key string, v *yaml.Node) { p.readFloat(key, v, 1, &c.Accuracy) },
		},
		{
			Name: "min_accuracy", Type: share, Default: "0.8 of the best variant's accuracy",
			Meaning: "the least accuracy of a variant that answers for the family. A variant below " +
				"it answers under its own name only. Of what the files of a family, and `muster " +
				"place`, state, the largest counts in the whole fleet. Agents of before the key do " +
				"not serve a model whose file has it: upgrade all of them first.",
			Read: func(key string, v *yaml.Node) { p.readFloat(key, v, 1, &c.MinAccuracy) },
		},
		{
			Name: "target_accuracy", Type: share,
			Meaning: "the mean accuracy of the family's answers that plans aim at; as " +
				"`min_accuracy` otherwise.",
			Read: func(key string, v *yaml.Node) { p.readFloat(key, v, 1, &c.TargetAccuracy) },
		},
		{
			Name: "score", Type: share,
			Meaning: "how well the model answers, in terms of `metric`, which it needs.",
			Read: func(key string, v *yaml.Node) {
				g.score = v
				p.readFloat(key, v, 1, &c.Score)
			},
		},
		{
			Name: "metric", Type: knownMetrics(),
			Meaning: "what `score` is: the area under the ROC curve, or the share of the ten best of " +
				"100 items that the model has among its ten best.",
			Read: func(key string, v *yaml.Node) {
				g.metric = v
				if _, ok := metrics[Metric(v.Value)]; !ok || v.Kind != yaml.ScalarNode {
					p.addFault(key, v, knownMetrics())
					return
				}
				c.Metric = Metric(v.Value)
			},
		},
		{
			Name: "measured", Type: "mapping", Meaning: "how the score was measured.",
			Read: func(key string, v *yaml.Node) {
				g.measured = v
				p.readMeasurement(key, v, &c.Measured)
			},
			Keys: p.measurementKeys(new(Measurement)),
		},
		{
			Name: "tables", Type: "list",
			Meaning: "the embedding tables of a generated model, for information. `muster models " +
				"generate` writes it.",
			Read: func(key string, v *yaml.Node) {
				p.readList(key, v, "a list of tables",
					func(key string, v *yaml.Node) { p.readTable(key, v, c) })
			},
			Keys: p.tableKeys(new(EmbeddingTable)), Of: "[]",
		},
		{
			Name: "generated", Type: "mapping",
			Meaning: "how a model was generated. `muster models generate` writes it.",
			Read: func(key string, v *yaml.Node) {
				c.Generated = &Provenance{}
				p.readMapping(key, v, p.provenanceKeys(c.Generated))
			},
			Keys: p.provenanceKeys(new(Provenance)),
		},
	}
}

func (p *parser) versionKeys(policy *VersionPolicy) []document.Key {
	return []document.Key{{
		Name: "latest", Type: atLeastOne, Meaning: "how many of the newest versions are served.",
		Read: func(key string, n *yaml.Node) {
			if i, ok := p.readInteger(key, n, math.MaxInt32); ok {
				policy.Latest = int(i)
			}
		},
	}}
}

func (p *parser) portKeys(port *TensorSpec, isInput bool) []document.Key {
	keys := []document.Key{
		{
			Name: "name", Type: anyText, Meaning: "the tensor's. It must be given.",
			Read: func(key string, n *yaml.Node) { p.text(key, n, &port.Name) },
		},
		{
			Name: "data_type", Type: "data type of the Open Inference Protocol, such as `FP32`",
			Default: "the model's", Meaning: "that of the elements.",
			Read: func(key string, n *yaml.Node) {
				if port.DataType = tensor.DataType(n.Value); !port.DataType.Valid() {
					p.addFault(key, n,
						"a data type of the Open Inference Protocol, such as FP32 or INT64")
				}
			},
		},
		{
			Name: "shape", Type: "list of whole numbers of at least 0, or -1: it varies",
			Default: "the model's",
			Meaning: "the dimensions. The first is the batch size, so -1.",
			Read:    func(key string, n *yaml.Node) { port.Shape = p.readShape(key, n) },
		},
		{
			Name: "role", Type: "`row`, `user` or `query`",
			Default: "what the names of the model's dimensions tell",
			Meaning: "what the first dimension stands for in a [ranker](ranking.md): the candidates, the " +
				"user, or nothing that others have too.",
			Read: func(key string, n *yaml.Node) {
				switch port.Role = roles.Role(n.Value); port.Role {
				case roles.Row, roles.User, roles.Query:
				default:
					p.addFault(key, n, fmt.Sprintf("%q, %q or %q", roles.Row, roles.User,
						roles.Query))
				}
			},
		},
	}
	if !isInput {
		return keys
	}
	return append(keys, document.Key{
		Name: "id_bounds", Type: "list of whole numbers of at least 1",
		Default: "those of the embedding tables, where the model's graph says in which of them an " +
			"input's ids are looked up",
		Meaning: "the numbers of ids: one for all, or one for each position of the second dimension. " +
			"An id must be at least 0 and less than that, else the query is refused with the input, " +
			"the position and the id. By default, as in ONNX, -1 is a table's last row.",
		Read: func(key string, n *yaml.Node) {
			port.IDBounds = p.readIntegers(key, n, "a list of the numbers of ids", math.MaxInt64)
		},
	})
}

func (p *parser) tableKeys(t *EmbeddingTable) []document.Key {
	count := func(into *int64) func(string, *yaml.Node) {
		return func(key string, n *yaml.Node) {
			if i, ok := p.readInteger(key, n, math.MaxInt64); ok {
				*into = i
			}
		}
	}
	return []document.Key{
		{
			Name: "name", Type: anyText, Meaning: "the table's.",
			Read: func(key string, n *yaml.Node) { p.text(key, n, &t.Name) },
		},
		{Name: "rows", Type: atLeastOne, Meaning: "how many it has.", Read: count(&t.Rows)},
		{Name: "dim", Type: atLeastOne, Meaning: "numbers in a row.", Read: count(&t.Dim)},
		{
			Name: "lookups", Type: atLeastOne,
			Meaning: "how many of its ids each row of a query looks up.", Read: count(&t.Lookups),
		},
	}
}

func (p *parser) provenanceKeys(g *Provenance) []document.Key {
	text := func(into *string) func(string, *yaml.Node) {
		return func(key string, n *yaml.Node) { p.text(key, n, into) }
	}
	return []document.Key{
		{
			Name: "generator", Type: anyText, Meaning: "the program and the version of its output.",
			Read: text(&g.Generator),
		},
		{
			Name: "architecture", Type: anyText, Meaning: "that of the model, such as `ncf`.",
			Read: text(&g.Architecture),
		},
		{
			Name: "scale", Type: "fraction, such as `1/16`",
			Meaning: "the factor of the tables' numbers of rows.", Read: text(&g.Scale),
		},
		{
			Name: "seed", Type: atLeastZero, Meaning: "that of the random weights.",
			Read: func(key string, n *yaml.Node) { p.readSeed(key, n, &g.Seed) },
		},
		{
			Name: "from", Type: anyText, Meaning: "the model of which this one is a variant.",
			Read: text(&g.From),
		},
		{
			Name: "variant", Type: anyText, Meaning: "how it was made of that, such as `int8`.",
			Read: text(&g.Variant),
		},
	}
}

func (p *parser) measurementKeys(m *Measurement) []document.Key {
	return []document.Key{
		{
			Name: "against", Type: anyText,
			Meaning: "the file of labelled rows, or the model whose answers were the truth. It must " +
				"be given.",
			Read: func(key string, n *yaml.Node) { p.text(key, n, &m.Against) },
		},
		{
			Name: "rows", Type: atLeastOne, Meaning: "how many were asked. It must be given.",
			Read: func(key string, n *yaml.Node) {
				if i, ok := p.readInteger(key, n, math.MaxInt64); ok {
					m.Rows = i
				}
			},
		},
		{
			Name: "seed", Type: atLeastZero, Meaning: "that of the rows, if they are random.",
			Read: func(key string, n *yaml.Node) { p.readSeed(key, n, &m.Seed) },
		},
		{
			Name: "error", Type: "number, 0 to 1", Default: "0",
			Meaning: "the standard error of the score.",
			Read: func(key string, n *yaml.Node) {
				// A score of 1 for every row has no error.
				if n.Kind != yaml.ScalarNode || (n.Tag != "!!int" && n.Tag != "!!float") ||
					n.Decode(&m.Error) != nil || !(m.Error >= 0 && m.Error <= 1) {
					p.addFault(key, n, "a number from 0 to 1")
				}
			},
		},
	}
}
