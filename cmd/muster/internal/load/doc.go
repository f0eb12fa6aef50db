// Package load reads what flags say about a load: models and their shares of the queries, arrivals,
// batch sizes, and files of inputs. `muster bench` sends such a load; `muster sim` and `muster
// plan` read shares and tell files from names with it.
package load
