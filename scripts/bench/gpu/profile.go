package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/gpu"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// profileModels measures all models on the card, and writes their latencies as a file of profiles,
// for an instance type named as the card is.
func (r *run) profileModels(ctx context.Context) error {
	card, err := gpu.Open("", 0)
	if err != nil {
		return err
	}
	words := strings.Fields(strings.ToLower(card.Name))
	instanceType := profiles.InstanceType(words[len(words)-1])
	samples, err := r.sampleModels(ctx, string(instanceType)+".csv", names, "--provider", "cuda",
		"--instance-type", string(instanceType))
	if err != nil {
		return err
	}
	var infos []profiles.ModelInfo
	var tables []*profiles.Table
	for _, model := range names {
		v, err := models.ReadVersion(r.modelsPath(), model, 1)
		if err != nil {
			return err
		}
		infos = append(infos, profiles.ModelInfo{Name: model, QoSTarget: v.Config.QoSTarget,
			LargestBatchSize: v.Config.LargestBatchSize})
		series, err := samples.Series(model, instanceType)
		if err != nil {
			return err
		}
		table, err := series.Table(profiles.Key{Model: model, InstanceType: instanceType,
			Provider: string(runtime.CUDA)})
		if err != nil {
			return err
		}
		tables = append(tables, table)
	}
	library, err := profiles.NewLibrary("runs of the zoo's models on one "+card.Name+
		", as CUDA graphs", "go run ./scripts/bench/gpu --only profile", infos, tables)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := library.Write(&b); err != nil {
		return err
	}
	file := filepath.Join(r.dir, string(instanceType)+".json")
	fmt.Println("profiles of", instanceType, "in", file)
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// sampleModels has muster profile measure models' runs, and writes them to a file in the folder.
func (r *run) sampleModels(ctx context.Context, file string, models []string, args ...string) (
	*profiles.Samples, error) {
	path := filepath.Join(r.dir, file)
	args = append(append([]string{"profile", "--samples", path, "--model-dir", r.modelsPath(),
		"--onnxruntime-lib", r.library}, args...), models...)
	out, err := harness.Output(ctx, "", r.muster, args...)
	if err != nil {
		return nil, err
	}
	fmt.Println(out)
	return profiles.OpenSamples(path)
}
