package worker

import (
	"strconv"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/models"
)

// Describe returns the worker's part of this agent's description: its lanes and the models that are
// ready. The caller owns it.
func (w *Worker) Describe() *control.Member {
	m := w.describeLanes()
	for _, s := range w.repository.Index() {
		if s.State != models.Ready {
			continue
		}
		if held := w.describeModel(s); held != nil {
			m.Models = append(m.Models, held)
		}
	}
	return m
}

// describeLanes returns a description with the lanes only, which is all that the key of a latency
// profile depends on.
func (w *Worker) describeLanes() *control.Member {
	info := w.config.Executor.Info()
	return &control.Member{
		InstanceType: string(w.config.InstanceType()), Provider: string(info.Provider),
		Executor: info.Executor,
		Lanes:    uint32(w.config.Lanes), Cores: uint32(w.config.Cores / w.config.Lanes),
	}
}

// describeModel returns the description of a ready version; nil if it has been unloaded meanwhile.
func (w *Worker) describeModel(s models.Status) *control.Model {
	loaded, err := w.repository.Acquire(s.Model, s.Version)
	if err != nil {
		return nil
	}
	defer loaded.Release()
	newest := false
	if served, err := w.repository.Acquire(s.Model, 0); err == nil {
		newest = served.Version.Number == s.Version
		served.Release()
	}
	config := &loaded.Version.Config
	return &control.Model{
		Name: s.Model, Version: s.Version, Newest: newest,
		Metadata:         w.Metadata(loaded.Version),
		QosTargetNs:      int64(config.QoSTarget),
		QosPercentile:    config.QoSPercentile / 100,
		DeadlineNs:       int64(config.Deadline),
		LargestBatchSize: uint32(config.LargestBatchSize),
		RejectLate:       config.Late == models.LateReject,
		Checksum:         loaded.Model.checksum,
		Splits:           config.Splits(),
		Merge:            string(config.Merging()),
	}
}

// Metadata returns the inference protocol's metadata of a version that this agent holds.
func (w *Worker) Metadata(v *models.Version) *inference.ModelMetadataResponse {
	resp := &inference.ModelMetadataResponse{
		Name:     v.Model,
		Platform: w.platform(),
		Inputs:   tensorMetadata(v.Inputs),
		Outputs:  tensorMetadata(v.Outputs),
		Properties: oip.Properties{
			QoSTarget:        v.Config.QoSTarget,
			QoSPercentile:    v.Config.QoSPercentile,
			Deadline:         v.Config.Deadline,
			LargestBatchSize: v.Config.LargestBatchSize,
			IDBounds:         idBounds(v.Inputs),
		}.Map(),
	}
	for _, status := range w.repository.Index() {
		if status.Model == v.Model && status.State == models.Ready {
			resp.Versions = append(resp.Versions, strconv.FormatInt(status.Version, 10))
		}
	}
	return resp
}

// platform names the executor as other servers of the protocol do.
func (w *Worker) platform() string {
	if info := w.config.Executor.Info(); info.Executor != "onnx" {
		return info.Executor
	}
	return "onnxruntime_onnx"
}

func tensorMetadata(ports []models.Port) []*inference.ModelMetadataResponse_TensorMetadata {
	metadata := make([]*inference.ModelMetadataResponse_TensorMetadata, len(ports))
	for i, p := range ports {
		metadata[i] = &inference.ModelMetadataResponse_TensorMetadata{
			Name: p.Name, Datatype: string(p.DataType), Shape: p.Shape,
		}
	}
	return metadata
}

func idBounds(ports []models.Port) map[string][]int64 {
	bounds := map[string][]int64{}
	for _, p := range ports {
		if len(p.IDBounds) > 0 {
			bounds[p.Name] = p.IDBounds
		}
	}
	return bounds
}
