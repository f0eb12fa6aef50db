package serve

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/triton"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// ModelConfig answers with a model's settings in Triton's form, as far as this agent knows them: of
// a family, or a model that only other agents hold, what the fleet knows of it.
func (s service) ModelConfig(_ context.Context, req *inference.ModelConfigRequest) (
	*inference.ModelConfigResponse, error) {
	if f := s.config.Gateway.Family(req.GetName()); f != nil {
		if why, _ := f.Refuses(req.GetVersion(), 0); why != "" {
			return nil, outcome.Invalid("%s", why)
		}
		m := proto.CloneOf(f.Variants[0].Model)
		m.Name, m.LargestBatchSize = f.Name, f.LargestBatchSize()
		return &inference.ModelConfigResponse{Config: configOf(m, nil)}, nil
	}
	loaded, err := s.config.Worker.Acquire(req.GetName(), req.GetVersion())
	if err == nil {
		defer loaded.Release()
		held := s.config.Worker.Held(loaded)
		v := loaded.Version
		config := configOf(held, v.Config.Triton)
		config.VersionPolicy = policyOf(v.Config.Versions)
		if v.Steps == nil {
			config.DefaultModelFilename = filepath.Base(v.Path)
		}
		config.ModelWarmup = warmUpOf(v)
		info := s.config.Worker.Info()
		group := &triton.ModelInstanceGroup{
			Name: held.Name, Kind: triton.ModelInstanceGroup_KIND_CPU,
			Count: int32(s.config.Worker.Lanes().Stats().Lanes),
		}
		if info.Provider == runtime.CUDA {
			group.Kind = triton.ModelInstanceGroup_KIND_GPU
		}
		config.InstanceGroup = []*triton.ModelInstanceGroup{group}
		return &inference.ModelConfigResponse{Config: config}, nil
	}
	if s.alone.Load() || errors.Is(err, outcome.ErrInvalid) {
		return nil, err
	}
	number, err := worker.ParseVersion(req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	held, _, err := s.fleetModel(req.GetName(), number)
	if err != nil {
		return nil, s.whileStarting(err)
	}
	return &inference.ModelConfigResponse{Config: configOf(held, nil)}, nil
}

// configOf returns the settings that an agent's description of a model tells, and for all else
// those of the model's config.pbtxt, which may be nil.
func configOf(m *control.Model, file *triton.ModelConfig) *triton.ModelConfig {
	config := &triton.ModelConfig{}
	if file != nil {
		config = proto.CloneOf(file)
	}
	config.Name, config.Platform = m.GetName(), m.GetMetadata().GetPlatform()
	config.Backend, config.MaxBatchSize = "", 0
	if config.Platform == "onnxruntime_onnx" {
		config.Backend = "onnxruntime"
	}
	properties, _ := oip.ParseProperties(m.GetMetadata().GetProperties()) // an agent's own
	dims := func(p *inference.ModelMetadataResponse_TensorMetadata) []int64 { return p.GetShape() }
	if !properties.Batchless && properties.Roles == nil { // Triton has no batches of some inputs
		config.MaxBatchSize = int32(m.GetLargestBatchSize())
		dims = withoutBatch
	}
	inputs, outputs := config.Input, config.Output
	config.Input, config.Output = nil, nil
	for _, p := range m.GetMetadata().GetInputs() {
		in := &triton.ModelInput{}
		if i := slices.IndexFunc(inputs, func(in *triton.ModelInput) bool {
			return in.GetName() == p.GetName()
		}); i >= 0 {
			in = inputs[i]
		}
		in.Name, in.DataType, in.Dims = p.GetName(), dataTypeOf(p), dims(p)
		in.Optional = slices.Contains(properties.Optional, p.GetName())
		config.Input = append(config.Input, in)
	}
	for _, p := range m.GetMetadata().GetOutputs() {
		out := &triton.ModelOutput{}
		if i := slices.IndexFunc(outputs, func(out *triton.ModelOutput) bool {
			return out.GetName() == p.GetName()
		}); i >= 0 {
			out = outputs[i]
		}
		out.Name, out.DataType, out.Dims = p.GetName(), dataTypeOf(p), dims(p)
		config.Output = append(config.Output, out)
	}
	merges := names.MergePolicy(m.GetMerge()).Merges()
	if _, batches := config.SchedulingChoice.(*triton.ModelConfig_DynamicBatching); batches !=
		merges {
		switch {
		case merges && config.GetEnsembleScheduling() == nil:
			config.SchedulingChoice = &triton.ModelConfig_DynamicBatching{
				DynamicBatching: &triton.ModelDynamicBatching{},
			}
		case batches:
			config.SchedulingChoice = nil
		}
	}
	return config
}

// withoutBatch returns the shape of a tensor as a ModelConfig has it.
func withoutBatch(p *inference.ModelMetadataResponse_TensorMetadata) []int64 {
	return p.GetShape()[min(1, len(p.GetShape())):]
}

// dataTypeOf returns the data type of a tensor as a ModelConfig has it.
func dataTypeOf(p *inference.ModelMetadataResponse_TensorMetadata) triton.DataType {
	name := p.GetDatatype()
	if tensor.DataType(name) == tensor.Bytes {
		name = "STRING"
	}
	return triton.DataType(triton.DataType_value["TYPE_"+name])
}

func policyOf(p models.VersionPolicy) *triton.ModelVersionPolicy {
	switch {
	case p.All:
		return &triton.ModelVersionPolicy{
			PolicyChoice: &triton.ModelVersionPolicy_All_{All: &triton.ModelVersionPolicy_All{}},
		}
	case p.Specific != nil:
		return &triton.ModelVersionPolicy{PolicyChoice: &triton.ModelVersionPolicy_Specific_{
			Specific: &triton.ModelVersionPolicy_Specific{Versions: p.Specific},
		}}
	}
	return &triton.ModelVersionPolicy{PolicyChoice: &triton.ModelVersionPolicy_Latest_{
		Latest: &triton.ModelVersionPolicy_Latest{NumVersions: uint32(max(1, p.Latest))},
	}}
}

// warmUpOf returns the queries that run before the version serves: one of each batch size.
func warmUpOf(v *models.Version) []*triton.ModelWarmup {
	var all []*triton.ModelWarmup
	for _, batch := range v.Config.WarmUp {
		all = append(all, &triton.ModelWarmup{
			Name: "batch size " + strconv.Itoa(batch), BatchSize: uint32(batch),
		})
	}
	return all
}
