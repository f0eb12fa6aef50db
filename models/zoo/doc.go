// Package zoo generates recommendation models with the architectures of DeepRecSys and
// deterministic random weights. It writes a model as a folder of the model repository,
// `<dir>/<model>/`, with one version and a model.yaml that describes it.
//
// The scale sets only the number of rows of the embedding tables, and so the size in memory. The
// amount of computation for a query does not depend on it.
package zoo
