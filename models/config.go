package models

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/triton"
)

// A LatePolicy says what happens to a late query: one that can no longer be answered within its
// model's QoS target.
type LatePolicy string

// The late policies.
const (
	// LateServe runs late queries when a lane would otherwise be idle.
	LateServe LatePolicy = "serve"
	// LateReject rejects late queries.
	LateReject LatePolicy = "reject"
)

// A VersionPolicy chooses which of the versions on disk are served. If All is set, the other fields
// are ignored; if Specific is not nil, Latest is. The zero value serves the newest version.
type VersionPolicy struct {
	// All serves every version.
	All bool
	// Specific lists the versions to serve.
	Specific []int64
	// Latest is how many of the newest versions are served; 0 means 1.
	Latest int
}

// A EmbeddingTable is an embedding table of a generated model.
type EmbeddingTable struct {
	Name string
	Rows int64
	Dim  int64
	// Lookups is how many ids of the table each row of a query looks up.
	Lookups int64
}

// Provenance is how a model was generated. The same values give the same model; without From, to
// the byte on every machine.
type Provenance struct {
	Generator    string // the program and the version of its output, such as "muster zoo 1"
	Architecture string
	Scale        string // the factor of the tables' numbers of rows, a fraction such as "1/16"
	Seed         uint64
	// From is the model of which this one is a variant, and Variant is how it was made, such as
	// "int8". Both are empty for a model that is no variant.
	From    string
	Variant string
}

// A Metric is what a score says about a model's answers.
type Metric string

// The metrics.
const (
	// AUC is the area under the ROC curve: how often a row labelled 1 is rated above one labelled
	// 0.
	AUC Metric = "auc"
	// Top10 is the share of the ten best of 100 items that the model has among its ten best.
	Top10 Metric = "top10"
)

// metrics are all metrics, with the score of a model that knows nothing.
var metrics = map[Metric]float64{AUC: .5, Top10: .1}

// Accuracy returns the accuracy of a model with the given score, in (0, 1], in a family whose best
// score is best: 1 for the best, and almost 0 for a model that guesses. m is a known metric.
func (m Metric) Accuracy(score, best float64) float64 {
	chance := metrics[m]
	if best <= chance {
		return 1
	}
	return min(1, max(.0001, (score-chance)/(best-chance)))
}

// A Measurement says how a score was measured. The zero value means that it is not known.
type Measurement struct {
	// Against is the file of labelled rows, or the model whose answers were the truth.
	Against string
	Rows    int64
	// Seed is that of the rows; 0 for those of a file.
	Seed uint64
	// Error is the standard error of the score.
	Error float64
}

// A Config holds the settings of a model, as model.yaml gives them. A key that model.yaml leaves
// out has its value in DefaultConfig.
type Config struct {
	// Requires is the number of the format that the file says it needs, see document.Format; 0: it
	// does not say.
	Requires uint64
	// QoSTarget is the latency within which QoSPercentile percent of the
	// queries should be answered; default 100 ms, at most an hour.
	QoSTarget     time.Duration
	QoSPercentile float64 // in (0, 100]; default 99
	// Deadline is the time after its arrival at which a query without a timeout of its own is
	// dropped; at least QoSTarget, default 10 x QoSTarget. Longer timeouts of clients count as a
	// minute, or as Deadline if that is more.
	Deadline time.Duration
	// LargestBatchSize bounds a query's batch size; in [1, 2^20], default 1000. Where the settings
	// do not say it (StatesBatchSize), it is 4096 for a version with roles.
	LargestBatchSize int
	StatesBatchSize  bool
	// RowsIndependent is whether each row of the outputs depends only on the same row of the
	// inputs. A large batch may then run in pieces. Default false.
	// Where the settings say nothing, it is whether the graph proves it. StatesIndependence is whether
	// they say something, and InferredIndependence whether the graph does.
	RowsIndependent                          bool
	StatesIndependence, InferredIndependence bool
	// KeepWhole is whether a query must run on one lane (`split: false`). Default false: see
	// Splits.
	KeepWhole bool
	// Merge is how several waiting queries run as one; see [Config.Merging]. Default "".
	Merge names.MergePolicy
	// TF32 is whether a GPU rounds the factors of FP32 products to TF32, whose precision is that of
	// FP16. Default false.
	TF32 bool
	// Late is what happens to late queries; default LateServe.
	Late LatePolicy
	// WarmUp lists the batch sizes that run before a version serves, each in
	// [1, LargestBatchSize]; default 1 and 64, or LargestBatchSize if that is less than 64. With an
	// empty list nothing runs.
	WarmUp []int
	// Versions chooses which versions are served; default the newest.
	Versions VersionPolicy
	// Family is the name of a group of models that answer the same question with different
	// accuracy; empty if the model is in none.
	Family string
	// Accuracy is the model's quality within its family, in (0, 1]; 0 if unknown.
	Accuracy float64
	// MinAccuracy is the least accuracy of a variant that answers for the family, and
	// TargetAccuracy the mean accuracy of the family's answers that renting aims at, both in
	// (0, 1]; 0: nothing is stated. Of what a family's models state the largest counts.
	MinAccuracy, TargetAccuracy float64
	// Score is the model's quality in terms of Metric, in (0, 1]; 0 if unknown. Metric is then
	// empty.
	Score  float64
	Metric Metric
	// Measured is how Score was measured.
	Measured Measurement
	// Ragged, SizeOf and SentOnce, and the roles of Inputs and Outputs, say what a query of a
	// ranker consists of; see package roles. Without any of them the names of the model's
	// dimensions tell it, unless NeverSentOnce is set.
	Ragged        []roles.Feature
	SizeOf        SizeDimension
	SentOnce      []string // inputs of the user
	NeverSentOnce bool
	// Capture says what is kept of queries and answers. Default: nothing.
	Capture Capture
	// Inputs and Outputs may name some or all inputs and outputs of the model, to add id bounds and
	// shapes. Data types and shapes that they give must agree with the model's.
	Inputs  []TensorSpec
	Outputs []TensorSpec
	// Batchless is whether the tensors have no batch dimension although their first one may be
	// dynamic (`max_batch_size: 0` in config.pbtxt).
	Batchless bool
	// ModelFile is the name of a version's model file; "" means model.onnx.
	ModelFile string
	// Triton is the model's config.pbtxt, else nil; Ensemble its ensemble_scheduling, nil for a
	// model that is a file. They must not be changed.
	Triton   *triton.ModelConfig
	Ensemble *triton.ModelEnsembling
	// Notes say what a user's files have that has no effect, for the log.
	Notes []string
	// Tables are the embedding tables of a generated model, for information.
	Tables []EmbeddingTable
	// Generated is the provenance of a generated model, else nil.
	Generated *Provenance
}

// Splits reports whether a leader may have a query run as several parts, on a lane each.
func (c *Config) Splits() bool { return c.RowsIndependent && !c.KeepWhole }

// deadlineTargets is how many QoS targets the default Deadline is, so that a query that is a little
// late is still answered.
const deadlineTargets = 10

// Bounds of a Config.
const (
	longestQoSTarget = time.Hour
	longestDeadline  = 24 * time.Hour
	largestBatchSize = 1 << 20
)

// DefaultConfig returns the configuration of a model without a model.yaml.
func DefaultConfig() Config {
	c := Config{
		QoSTarget: 100 * time.Millisecond, QoSPercentile: 99, LargestBatchSize: 1000,
		Late: LateServe,
	}
	c.setDefaults()
	return c
}

// Merging is how several waiting queries run as one: Merge, or what takes the place of a former
// policy, or where Merge is empty the default, which is names.MergeDeadline if rows are
// independent. Otherwise nothing can be merged.
func (c *Config) Merging() names.MergePolicy {
	switch {
	case c.Merge != "":
		return c.Merge.Current()
	case c.RowsIndependent:
		return names.MergeDeadline
	}
	return names.MergeNone
}

// setDefaults sets the defaults that depend on other settings, where Deadline is 0 and WarmUp nil.
func (c *Config) setDefaults() {
	if c.Deadline == 0 {
		c.Deadline = deadlineTargets * c.QoSTarget
	}
	if c.WarmUp == nil {
		c.WarmUp = []int{1}
		if n := min(64, c.LargestBatchSize); n > 1 {
			c.WarmUp = append(c.WarmUp, n)
		}
	}
}

// Validate reports every setting that is out of its range.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.QoSTarget > 0 && c.QoSTarget <= longestQoSTarget,
		"QoS target is %v, expected more than 0 and at most %v", c.QoSTarget, longestQoSTarget)
	check(c.QoSPercentile > 0 && c.QoSPercentile <= 100,
		"QoS percentile is %v, expected more than 0 and at most 100", c.QoSPercentile)
	check(c.Deadline >= c.QoSTarget && c.Deadline <= longestDeadline,
		"deadline is %v, expected at least the QoS target of %v and at most %v", c.Deadline,
		c.QoSTarget, longestDeadline)
	check(c.LargestBatchSize >= 1 && c.LargestBatchSize <= largestBatchSize,
		"largest batch size is %d, expected 1 to %d", c.LargestBatchSize, largestBatchSize)
	check(c.Late == LateServe || c.Late == LateReject, "late is %q, expected %q or %q", c.Late,
		LateServe, LateReject)
	check(c.Merge == "" || c.Merge.IsFormer() || slices.Contains(names.MergePolicies(), c.Merge),
		"merge is %q, expected one of %v", c.Merge, names.MergePolicies())
	check(c.RowsIndependent || !c.Merge.Merges(),
		"merge is %q, expected %q because rows are not independent", c.Merge, names.MergeNone)
	for _, n := range c.WarmUp {
		check(n >= 1 && n <= c.LargestBatchSize,
			"warm-up batch size is %d, expected 1 to the largest batch size of %d", n,
			c.LargestBatchSize)
	}
	for _, v := range c.Versions.Specific {
		check(v >= 1, "version is %d, expected at least 1", v)
	}
	check(c.Versions.Latest >= 0, "latest versions are %d, expected at least 1", c.Versions.Latest)
	if c.Family != "" {
		check(checkName(c.Family) == nil, "family is %.64q, expected a name as a model has it",
			c.Family)
	}
	check(c.Accuracy >= 0 && c.Accuracy <= 1, "accuracy is %v, expected more than 0 and at most 1",
		c.Accuracy)
	check(c.MinAccuracy >= 0 && c.MinAccuracy <= 1 && c.TargetAccuracy >= 0 &&
		c.TargetAccuracy <= 1,
		"min_accuracy is %v and target_accuracy %v, expected more than 0 and "+
			"at most 1", c.MinAccuracy, c.TargetAccuracy)
	check(c.MinAccuracy == 0 && c.TargetAccuracy == 0 || c.Family != "",
		"min_accuracy and target_accuracy are given without a family")
	check(c.Score >= 0 && c.Score <= 1, "score is %v, expected more than 0 and at most 1", c.Score)
	if c.Metric != "" {
		_, ok := metrics[c.Metric]
		check(ok, "metric is %q, expected %s", c.Metric, knownMetrics())
	}
	check((c.Score > 0) == (c.Metric != ""), "score is %v and metric %q, expected both or none",
		c.Score, c.Metric)
	check(c.Measured == Measurement{} || c.Score > 0, "measured is given without a score")
	check(c.Measured.Error >= 0 && c.Measured.Error <= 1,
		"error of the score is %v, expected 0 to 1", c.Measured.Error)
	for _, p := range c.Inputs {
		for i, b := range p.IDBounds {
			check(b >= 1, "id bound %d of input %q is %d, expected at least 1", i, p.Name, b)
		}
	}
	return errors.Join(errs...)
}

// knownMetrics lists the metrics for an error.
func knownMetrics() string {
	var names []string
	for _, m := range slices.Sorted(maps.Keys(metrics)) {
		names = append(names, strconv.Quote(string(m)))
	}
	return strings.Join(names, " or ")
}
