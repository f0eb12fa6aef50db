package worker

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/models"
)

// Describe returns the worker's part of this agent's description: its lanes and the models that are
// ready and whose checksums are known. apart says of those that name a family and do not fit into
// it why. The caller owns both.
func (w *Worker) Describe() (m *control.Member, apart map[string]string) {
	m = w.describeLanes()
	var newest []*models.Version
	for _, s := range w.repository.Index() {
		if s.Failed && len(m.Problems) < maxProblems {
			m.Problems = append(m.Problems, &control.ModelProblem{
				Model: s.Model, Version: s.Version, Serves: s.State == models.Ready,
				Reason: cutReason(s.Reason),
			})
		}
		if s.State != models.Ready || w.layouts != nil && !w.layouts.isAnnounced(s.Model) {
			continue
		}
		held, v := w.describeModel(s)
		if held == nil {
			continue
		}
		m.Models = append(m.Models, held)
		if held.Newest {
			newest = append(newest, v)
		}
	}
	families, apart := models.Families(newest)
	for _, f := range families {
		for _, v := range f.Variants {
			i := slices.IndexFunc(m.Models, func(held *control.Model) bool {
				return held.Newest && held.Name == v.Model
			})
			if v.Model != f.Name {
				m.Models[i].Family = f.Name
			}
		}
	}
	if w.layouts != nil {
		m.Loadable = w.describeLoadable(newest)
	}
	return m, apart
}

// maxProblems and maxReason bound the versions of which a description says why they cannot be
// loaded, and the bytes of each reason: all agents keep the descriptions of all. Chosen: a mistake
// that breaks more versions shows as well by some of them.
const maxProblems, maxReason = 64, 1 << 10

// cutReason returns a reason that is short enough for a description.
func cutReason(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason] + "..."
	}
	return strings.ToValidUTF8(reason, "?")
}

// Load returns how many queries wait for lanes, and the remaining time of each lane.
func (w *Worker) Load() (waiting int, remaining []time.Duration) {
	stats := w.lanes.Stats()
	return stats.Waiting, stats.RemainingByLane
}

// describeLoadable returns the descriptions of the models that this agent does not hold and could
// load: they fit into its memory, and no load of the files that there are has failed. held are the
// versions that it holds. What does not fit into its family could be loaded under its own name.
func (w *Worker) describeLoadable(held []*models.Version) (all []*control.Model) {
	memory := w.layouts.memoryForModels()
	could := slices.Clone(held)
	for _, d := range w.repository.OnDisk() {
		is := func(v *models.Version) bool { return v.Model == d.Version.Model }
		if !slices.ContainsFunc(held, is) && d.Problem == nil && (memory == 0 ||
			d.Bytes <= memory) {
			could = append(could, d.Version)
		}
	}
	families, apart := models.Families(could)
	for _, v := range could[len(held):] {
		m := w.describeVersion(v)
		for _, f := range families {
			if f.Name == v.Config.Family && f.Name != v.Model && apart[v.Model] == "" {
				m.Family = f.Name
			}
		}
		all = append(all, m)
	}
	return all
}

// describeLanes returns a description with the lanes only, which is all that the key of a latency
// profile depends on.
func (w *Worker) describeLanes() *control.Member {
	info := w.config.Executor.Info()
	m := &control.Member{
		InstanceType: string(w.config.Host.InstanceType()), Provider: string(info.Provider),
		Executor: info.Executor,
		Lanes:    uint32(w.config.Lanes), Cores: uint32(w.config.Cores / w.config.Lanes),
		Parts: w.describeParts(),
	}
	if len(m.Parts) > 0 {
		last := m.Parts[len(m.Parts)-1]
		m.Lanes = last.First + last.Lanes
	}
	return m
}

// describeModel returns the description of a ready version, without its family, and the version;
// nil if it has been unloaded meanwhile, or its checksum is not known, or that of the version that
// serves by default: a model of which no version is the newest could not be asked for.
func (w *Worker) describeModel(s models.Status) (*control.Model, *models.Version) {
	loaded, err := w.repository.Acquire(s.Model, s.Version)
	if err != nil {
		return nil, nil
	}
	defer loaded.Release()
	held := w.Held(loaded)
	if held.Checksum == "" {
		return nil, nil
	}
	if served, err := w.repository.Acquire(s.Model, 0); err == nil {
		defer served.Release()
		if served.Model.checksum.knownSum() == "" {
			return nil, nil
		}
		held.Newest = served.Version.Number == s.Version
	}
	return held, loaded.Version
}

// Held returns the description of a version that this agent holds, which the caller owns. Newest is
// not set.
func (w *Worker) Held(loaded *LoadedVersion) *control.Model {
	held := w.describeVersion(loaded.Version)
	held.Checksum = loaded.Model.checksum.knownSum()
	return held
}

func (w *Worker) describeVersion(v *models.Version) *control.Model {
	config := &v.Config
	statesFor := ""
	if config.MinAccuracy > 0 || config.TargetAccuracy > 0 {
		statesFor = config.Family
	}
	return &control.Model{
		Name: v.Model, Version: v.Number,
		Metadata:         w.Metadata(v),
		QosTargetNs:      int64(config.QoSTarget),
		QosPercentile:    config.QoSPercentile / 100,
		DeadlineNs:       int64(config.Deadline),
		LargestBatchSize: uint32(config.LargestBatchSize),
		RejectLate:       config.Late == models.LateReject,
		Splits:           v.Splits() && v.Roles == nil,
		SplitsByRoles:    v.Splits() && v.Roles != nil,
		Merge:            string(v.Merging()),
		Accuracy:         config.Accuracy,
		MinAccuracy:      config.MinAccuracy,
		TargetAccuracy:   config.TargetAccuracy,
		StatesFor:        statesFor,
		Capture:          captureOf(&config.Capture),
	}
}

// captureOf says what is kept of a version's queries; nil: nothing.
func captureOf(c *models.Capture) *control.Capture {
	if c.Share == 0 {
		return nil
	}
	return &control.Capture{Share: c.Share, LeaveOut: c.LeaveOut, Hash: c.Hash}
}

// Metadata returns the inference protocol's metadata of a version that this agent holds, without
// its family, which depends on other agents.
func (w *Worker) Metadata(v *models.Version) *inference.ModelMetadataResponse {
	properties := oip.Properties{
		QoSTarget:        v.Config.QoSTarget,
		QoSPercentile:    v.Config.QoSPercentile,
		Deadline:         v.Config.Deadline,
		LargestBatchSize: v.Config.LargestBatchSize,
		IDBounds:         idBounds(v.Inputs),
		Labels:           labelsOf(v.Outputs),
		Optional:         optionalOf(v.Inputs),
		Batchless:        v.Batchless,
		RowsIndependent:  v.IndependentBy(),
		Roles:            v.Roles,
	}
	if a := v.Config.Accuracy; a > 0 {
		properties.Accuracy = map[string]float64{v.Model: a}
	}
	if s := v.Config.Score; s > 0 {
		properties.Score = map[string]float64{v.Model: s}
	}
	resp := &inference.ModelMetadataResponse{
		Name:       v.Model,
		Platform:   w.platformOf(v),
		Inputs:     tensorMetadata(v.Inputs),
		Outputs:    tensorMetadata(v.Outputs),
		Properties: properties.Map(),
	}
	for _, status := range w.repository.Index() {
		if status.Model == v.Model && status.State == models.Ready {
			resp.Versions = append(resp.Versions, strconv.FormatInt(status.Version, 10))
		}
	}
	return resp
}

// platformOf names what runs a version as other servers of the protocol do.
func (w *Worker) platformOf(v *models.Version) string {
	if len(v.Steps) > 0 {
		return "ensemble"
	}
	if info := w.config.Executor.Info(); info.Executor != "onnx" {
		return info.Executor
	}
	return "onnxruntime_onnx"
}

func tensorMetadata(ports []models.TensorSpec) []*inference.ModelMetadataResponse_TensorMetadata {
	metadata := make([]*inference.ModelMetadataResponse_TensorMetadata, len(ports))
	for i, p := range ports {
		metadata[i] = &inference.ModelMetadataResponse_TensorMetadata{
			Name: p.Name, Datatype: string(p.DataType), Shape: p.Shape,
		}
	}
	return metadata
}

func idBounds(ports []models.TensorSpec) map[string][]int64 {
	bounds := map[string][]int64{}
	for i := range ports {
		p := &ports[i]
		if b := p.Bounds(); len(b) > 0 {
			bounds[p.Name] = b
		}
	}
	return bounds
}

func optionalOf(ports []models.TensorSpec) (names []string) {
	for i := range ports {
		if ports[i].Optional {
			names = append(names, ports[i].Name)
		}
	}
	return names
}

// maxLabels bounds the bytes of an output's labels in the metadata, which goes to all agents.
// Chosen: some hundred classes of usual names.
const maxLabels = 4 << 10

func labelsOf(ports []models.TensorSpec) map[string][]string {
	labels := map[string][]string{}
	for i := range ports {
		p := &ports[i]
		bytes := 0
		for _, l := range p.Labels {
			bytes += len(l) + 3 // quotes and a comma
		}
		if bytes > 0 && bytes <= maxLabels {
			labels[p.Name] = p.Labels
		}
	}
	return labels
}
