// Packcuda makes a folder of the CUDA build of ONNX Runtime and NVIDIA's libraries, from wheels of
// PyPI. It takes the libraries that ONNX Runtime's CUDA provider needs, or loads while it runs, and
// the licences; it checks that the folder is complete: each library finds what it needs in it, but
// for the driver and what every Linux has. scripts/fetch-onnxruntime-cuda.sh downloads the wheels,
// whose SHA-256 pip checks, and calls this program.
package main

import (
	"archive/zip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-serve/muster/runtime/internal/dynlib"
	"github.com/muster-serve/muster/runtime/internal/ortlib"
)

// roots are the libraries without which there is no CUDA build.
var roots = []string{
	"libonnxruntime.so." + ortlib.Version, "libonnxruntime_providers_shared.so",
	ortlib.CUDAProvider,
}

// unneeded are the wheels' libraries that nothing of ours loads: other interfaces to cuBLAS and
// cuFFT, a compiler without an optimization, TensorRT's provider, and Python's.
var unneeded = regexp.MustCompile(`^(libnvblas|libcufftw|libnvrtc(-builtins)?\.alt|` +
	`libonnxruntime_providers_tensorrt|onnxruntime_pybind11)`)

// system are what every Linux with the packages of deploy/nfpm-cuda.yaml has, and the driver.
var system = []string{
	"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1",
	"libstdc++.so.6", "ld-linux-x86-64.so.2", "libz.so.1", "libcuda.so.1",
}

func main() {
	wheels := flag.String("wheels", "", "folder of the wheels")
	requirements := flag.String("requirements", "", "pip's list of them")
	to := flag.String("to", "", "folder to make; what it held before is removed")
	flag.Parse()
	if err := pack(*wheels, *requirements, *to); err != nil {
		fmt.Fprintln(os.Stderr, "packcuda:", err)
		os.Exit(1)
	}
}

// pack makes the folder to of the wheels that the requirements name. It is made beside and moved to
// its place when it is complete, with the requirements in it, so that it can be told whose it is.
func pack(wheels, requirements, to string) error {
	list, err := os.ReadFile(requirements)
	if err != nil {
		return err
	}
	fresh := to + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(fresh) // after an error
	for _, r := range required(string(list)) {
		wheel, err := wheelOf(wheels, r)
		if err != nil {
			return err
		}
		if err := extractLibraries(wheel, r.name, fresh); err != nil {
			return err
		}
	}
	if err := check(fresh); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(fresh, "requirements.txt"), list, 0o644); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(to), os.Rename(fresh, to))
}

// A requirement is a line of pip's list.
type requirement struct{ name, version string }

// required reads pip's list.
func required(list string) (all []requirement) {
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+)==(\S+)`).FindAllStringSubmatch(list,
		-1) {
		all = append(all, requirement{m[1], m[2]})
	}
	return all
}

// wheelOf returns the path of a requirement's wheel.
func wheelOf(dir string, r requirement) (string, error) {
	pattern := fmt.Sprintf("%s-%s-*.whl", strings.ReplaceAll(r.name, "-", "_"), r.version)
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d files %s, want one", dir, len(found), pattern)
	}
	return found[0], nil
}

// extractLibraries writes a wheel's libraries into a folder, and its licences into the folder's
// licenses.
func extractLibraries(wheel, name, to string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("%s: %w", wheel, err)
	}
	defer z.Close()
	licences := 0
	for _, f := range z.File {
		switch base := path.Base(f.Name); {
		case strings.Contains(base, ".so") && !unneeded.MatchString(base):
			err = extractFile(f, filepath.Join(to, base))
		case slices.Contains([]string{"LICENSE", "License.txt", "ThirdPartyNotices.txt"}, base):
			licences++
			err = extractFile(f, filepath.Join(to, "licenses", name, base))
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", wheel, f.Name, err)
		}
	}
	if licences == 0 {
		return fmt.Errorf("%s has no licence", wheel)
	}
	return nil
}

func extractFile(from *zip.File, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	r, err := from.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// check reports what is missing in the folder.
func check(dir string) error {
	folder, err := dynlib.Read(dir)
	if err != nil {
		return err
	}
	var missing []string
	for _, root := range roots {
		if _, here := folder.Needs[root]; !here {
			missing = append(missing, root)
		}
	}
	missing = append(missing, folder.Missing(func(name string) bool {
		return slices.Contains(system, name)
	})...)
	if len(missing) > 0 {
		return fmt.Errorf("the libraries in %s are not complete: %s", dir,
			strings.Join(missing, ", "))
	}
	return nil
}
