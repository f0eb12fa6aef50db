package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/gpu"
)

const samplesHeader = "model,instance_type,batch_size,sample_ms\n"

// profile measures all models on the card, and writes their latencies as a file of profiles, for an
// instance type named as the card is.
func (r *run) profile(ctx context.Context) error {
	card, err := gpu.Open("", 0)
	if err != nil {
		return err
	}
	words := strings.Fields(strings.ToLower(card.Name))
	instanceType := profiles.InstanceType(words[len(words)-1])
	text := samplesHeader
	for _, model := range names {
		lines, err := r.sample(ctx, model, string(instanceType), runtime.Config{Provider: runtime.CUDA},
			3*r.time)
		if err != nil {
			return err
		}
		text += lines
	}
	samples, err := profiles.ReadSamples("samples", strings.NewReader(text))
	if err != nil {
		return err
	}
	var infos []profiles.ModelInfo
	var tables []*profiles.Table
	for _, model := range names {
		v, err := models.ReadVersion(r.models(), model, 1)
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
		", as CUDA graphs", "go run ./scripts/gpu --only profile", infos, tables)
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

// sampleSizes are the batch sizes of samples.
var sampleSizes = []int{1, 2, 10, 20, 40, 80, 120, 160, 240, 320, 400, 480, 640, 800, 1000}

// sample measures a model's runs, for d at each batch size, and returns lines of a samples file for an
// instance type of that name.
func (r *run) sample(ctx context.Context, model, instanceType string, cfg runtime.Config,
	d time.Duration) (lines string, err error) {
	v, err := models.ReadVersion(r.models(), model, 1)
	if err != nil {
		return "", err
	}
	cfg.LibraryPath = r.library
	x, err := runtime.OpenONNX(cfg)
	if err != nil {
		return "", err
	}
	m, err := x.Load(ctx, v)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	random := rand.New(rand.NewPCG(5, 6))
	var text strings.Builder
	for _, batch := range sampleSizes {
		inputs, err := runtime.RandomInputs(random, v, batch)
		if err != nil {
			return "", err
		}
		us, err := loop(ctx, m, inputs, d)
		if err != nil {
			return "", err
		}
		for _, t := range us[len(us)/5:] { // the first ones are warm-up
			fmt.Fprintf(&text, "%s,%s,%d,%.4f\n", model, instanceType, batch, t/1e3)
		}
	}
	return text.String(), nil
}
