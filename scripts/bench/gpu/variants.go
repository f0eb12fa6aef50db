package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// A variant is how a variant of a model does on the card at a batch size.
type variant struct {
	Model string  `json:"model"`
	Batch int     `json:"batch_size"`
	US    float64 `json:"us"`
	// Whole is the time of the model that it is a variant of, in turns, and Apart how far its
	// answers are from those of that model on the CPU, as a share of the largest value.
	Whole float64 `json:"whole_us"`
	Apart float64 `json:"apart"`
}

// measureVariants measures each model as FP16, in 8 bits and in TF32 on the card, in turns with the
// model.
func (r *run) measureVariants(ctx context.Context) error {
	card, err := runtime.OpenONNX(runtime.Config{LibraryPath: r.library, Provider: runtime.CUDA})
	if err != nil {
		return err
	}
	cpu, err := runtime.OpenONNX(runtime.Config{LibraryPath: r.library, Provider: runtime.CPU})
	if err != nil {
		return err
	}
	var all []variant
	fmt.Println("model        batch       us  whole us  whole/variant   apart")
	for _, name := range names {
		whole, err := models.ReadVersion(r.modelsPath(), name, 1)
		if err != nil {
			return err
		}
		for _, kind := range []string{"fp16", "int8", "tf32"} {
			v, err := r.makeVariant(ctx, whole, kind)
			if err != nil {
				return err
			}
			of, err := r.measureVariant(ctx, card, cpu, v, whole)
			if err != nil {
				return err
			}
			all = append(all, of...)
		}
	}
	r.results["variants"] = all
	return nil
}

// makeVariant returns a model's variant of a kind. tf32 is the model itself with that setting.
func (r *run) makeVariant(ctx context.Context, whole *models.Version,
	kind string) (*models.Version, error) {
	name := whole.Model + "-" + kind
	if kind == "tf32" {
		v := *whole
		v.Model, v.Config.TF32 = name, true
		return &v, nil
	}
	args := []string{"models", "quantize", filepath.Join(r.modelsPath(), whole.Model, "1",
		"model.onnx"),
		"--overwrite", "--onnxruntime-lib", r.library}
	if kind == "fp16" {
		args = append(args, "--fp16")
	}
	if _, err := harness.Output(ctx, "", r.muster, args...); err != nil {
		return nil, err
	}
	return models.ReadVersion(r.modelsPath(), name, 1)
}

func (r *run) measureVariant(ctx context.Context, card, cpu *runtime.ONNX, v,
	whole *models.Version) (
	all []variant, err error) {
	var on []runtime.Model
	defer func() {
		for _, m := range on {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, load := range []struct {
		x *runtime.ONNX
		v *models.Version
	}{{card, v}, {card, whole}, {cpu, whole}} {
		m, err := load.x.Load(ctx, load.v)
		if err != nil {
			return nil, err
		}
		on = append(on, m)
	}
	random := rand.New(rand.NewPCG(7, 8))
	for _, batch := range []int{1, 64, 256, 1000} {
		inputs, err := runtime.RandomInputs(random, whole, batch)
		if err != nil {
			return nil, err
		}
		off, err := apart(ctx, on[0], on[2], inputs)
		if err != nil {
			return nil, err
		}
		times := make([][]float64, 2)
		for range r.rounds {
			for i := range times {
				us, err := loop(ctx, on[i], inputs, r.time/2)
				if err != nil {
					return nil, err
				}
				times[i] = append(times[i], us...)
			}
		}
		one := variant{v.Model, batch, harness.Quantile(times[0], .5),
			harness.Quantile(times[1], .5), off}
		all = append(all, one)
		fmt.Printf("%-12s %5d %8.0f  %8.0f  %13.2f  %.1e\n", one.Model, batch, one.US, one.Whole,
			one.Whole/one.US, one.Apart)
	}
	return all, nil
}
