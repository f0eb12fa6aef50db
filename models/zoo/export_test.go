package zoo

import "github.com/muster-serve/muster/models"

// A Tensor tells a test where a weight lies in the data file.
type Tensor struct {
	Name   string
	Shape  []int64
	Offset int64
}

// DataFile is the name of the file with the weights.
const DataFile = dataFile

// Tensors lists the weights of a model.
func Tensors(model string, options Options) ([]Tensor, error) {
	p, err := newPlan(model, options)
	if err != nil {
		return nil, err
	}
	var all []Tensor
	for _, w := range p.weights {
		all = append(all, Tensor{w.name, w.shape, w.offset})
	}
	return all, nil
}

// Config is what model.yaml would say of a model.
func Config(model string, options Options) (models.Config, error) {
	p, err := newPlan(model, options)
	if err != nil {
		return models.Config{}, err
	}
	return p.config, nil
}
