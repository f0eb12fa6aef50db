package models

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/models/onnx"
)

// AddFile puts a copy of a model file, with its external data, into the repository dir as the next
// version of a model, and returns its number. It creates dir and the model's folder if they do not
// exist. The version appears with all files or not at all. A file that is no model is an error.
func AddFile(dir, model, path string) (number int64, err error) {
	if err := checkName(model); err != nil {
		return 0, err
	}
	signature, err := onnx.ReadSignature(path)
	if err != nil {
		return 0, err
	}
	folder := filepath.Join(dir, model)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	number = 1
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && n >= number {
			number = n + 1
		}
	}
	// Agents ignore hidden folders, so they do not see the unfinished version.
	temporary, err := os.MkdirTemp(folder, ".adding-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	version := filepath.Join(temporary, "version")
	if err := copyFile(path, filepath.Join(version, ModelFile)); err != nil {
		return 0, err
	}
	for _, d := range signature.Data {
		if err := copyFile(filepath.Join(filepath.Dir(path), d.Location),
			filepath.Join(version, d.Location)); err != nil {
			return 0, err
		}
	}
	return number, os.Rename(version, filepath.Join(folder, strconv.FormatInt(number, 10)))
}

// copyFile copies a regular file to a path, whose folder it creates. Nothing may be at the path.
func copyFile(from, to string) (err error) {
	in, _, err := files.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err != nil {
		err = fmt.Errorf("copy %s: %w", from, err)
	}
	return errors.Join(err, out.Close())
}

// Batches says how many rows a query of the version may have, and why if it has none.
func (v *Version) Batches() string {
	if v.Batchless {
		return "no: each query is one item, and runs alone"
	}
	text := fmt.Sprintf("up to %d rows a query", v.Config.LargestBatchSize)
	if v.Roles != nil && !v.Roles.CanSplit() {
		return text + ", neither split nor merged"
	}
	if v.Config.RowsIndependent && v.Roles != nil && !v.Roles.CanMerge() {
		return text + ", split"
	}
	if v.Config.InferredIndependence {
		return text + ", split and merged: the graph proves that rows are independent"
	}
	if v.Config.RowsIndependent {
		return text + ", split and merged"
	}
	return text + "; rows_independent: true would have them split and merged"
}
