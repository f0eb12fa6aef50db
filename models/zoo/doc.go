// Package zoo generates recommendation models, ready to be served: the architectures of DeepRecSys
// with deterministic weights. A model is a folder of the model repository, `<dir>/<model>/`, with
// one version and a model.yaml that describes it.
//
// A model's cost of computation is in its dimensions, lookups and MLPs; a scale changes only how
// many rows its embedding tables have.
package zoo
