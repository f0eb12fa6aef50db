// Command image makes a container image of Muster without a container engine: a layer of Debian's
// packages that its binary needs, a layer of the binary, and an SBOM, written as an OCI layout with
// one image for each architecture. The same files give the same image, to the last byte.
//
//	image -out build/image/muster -version 0.1.0 amd64=build/image/amd64 arm64=build/image/arm64
//
// Each folder holds the program muster; in debs/ the packages; in wheels.txt, as pip has them, where
// the program's other libraries come from; and, for GPUs, these libraries in cuda/. Layers are made
// there, too.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is who the image's processes are, as in images without a distribution.
const user = 65532

// epoch is the time of everything in the image.
var epoch = time.Unix(0, 0)

func main() {
	out := flag.String("out", "", "folder of the OCI layout, made anew; its name is the image's")
	version := flag.String("version", "dev", "version of the image, its tag too")
	flag.Parse()
	if err := run(*out, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(out, version string, of []string) error {
	if out == "" || len(of) == 0 {
		return errors.New("want -out and at least one ARCH=FOLDER")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, each := range of {
		arch, dir, ok := strings.Cut(each, "=")
		if !ok {
			return fmt.Errorf("%q: want ARCH=FOLDER", each)
		}
		platform := v1.Platform{OS: "linux", Architecture: arch}
		image, bill, err := newImage(dir, filepath.Base(out), version, platform)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		size, err := compressedSize(image)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %.1f MB compressed\n", arch, float64(size)/1e6)
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
				MediaType: types.OCIManifestSchema1, Platform: &platform,
			}},
			mutate.IndexAddendum{Add: bill, Descriptor: v1.Descriptor{
				MediaType: types.OCIManifestSchema1, ArtifactType: sbomType,
				Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
			}})
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	// The layout's own index has one entry, the image of all architectures, by its tag.
	at, err := layout.Write(out, empty.Index)
	if err != nil {
		return err
	}
	return at.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version,
	}))
}

func compressedSize(image v1.Image) (size int64, err error) {
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			return 0, err
		}
		size += n
	}
	return size, nil
}

// newImage makes the image of one architecture, and the manifest that holds its SBOM.
func newImage(dir, name, version string, platform v1.Platform) (image, bill v1.Image, err error) {
	debs, err := filepath.Glob(filepath.Join(dir, "debs", "*.deb"))
	if err != nil || len(debs) == 0 {
		return nil, nil, fmt.Errorf("%s/debs: %d packages, %w", dir, len(debs), err)
	}
	program := filepath.Join(dir, "muster")
	layers := []struct {
		name  string
		write func(*tar.Writer) error
		level int
	}{
		{"base", func(w *tar.Writer) error { return writeBase(w, debs) }, gzip.BestCompression},
		{"cuda", nil, gzip.BestSpeed}, // most of it is compressed already
		{"app", func(w *tar.Writer) error { return writeApp(w, program) }, gzip.BestCompression},
	}
	env := []string{
		"PATH=/usr/bin", "SSL_CERT_FILE=/" + rootsPath,
		"MUSTER_MODEL_DIR=/var/lib/muster/models", "MUSTER_STATE_DIR=/var/lib/muster/state",
	}
	libraries, err := filepath.Glob(filepath.Join(dir, "cuda", "*.so*"))
	if err != nil {
		return nil, nil, err
	}
	if len(libraries) > 0 {
		layers[1].write = func(w *tar.Writer) error {
			return errors.Join(writeFiles(w, "usr/lib/muster/cuda/", libraries...),
				writeFolder(w, "usr/share/doc/muster-cuda/", filepath.Join(dir, "cuda", "licenses")))
		}
		// What has NVIDIA's runtime bring the driver into the container.
		env = append(env, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	}
	image = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON)
	for _, l := range layers {
		if l.write == nil {
			continue
		}
		layer, err := newLayer(filepath.Join(dir, l.name+".tar.gz"), l.level, l.write)
		if err != nil {
			return nil, nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture,
		v1.Time{Time: epoch}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user), Entrypoint: []string{"/" + programPath},
		Cmd: []string{"agent"}, StopSignal: "SIGTERM", WorkingDir: "/var/lib/muster",
		Env: env,
		Labels: map[string]string{
			"org.opencontainers.image.title":    name,
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/muster-serve/muster",
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, nil, err
	}
	if err := checkImage(image, platform.Architecture); err != nil {
		return nil, nil, err
	}
	sbom, err := newSBOM(dir, name, version, debs)
	if err != nil {
		return nil, nil, err
	}
	subject, err := image.Digest()
	if err != nil {
		return nil, nil, err
	}
	size, err := image.Size()
	if err != nil {
		return nil, nil, err
	}
	bill = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	if bill, err = mutate.AppendLayers(bill, static.NewLayer(sbom, sbomType)); err != nil {
		return nil, nil, err
	}
	bill = mutate.Subject(bill, v1.Descriptor{
		MediaType: types.OCIManifestSchema1, Digest: subject, Size: size,
	}).(v1.Image)
	return image, bill, os.WriteFile(filepath.Join(dir, "sbom.cdx.json"), sbom, 0o644)
}

// newLayer makes a layer of what write writes, in a file.
func newLayer(file string, level int, write func(*tar.Writer) error) (v1.Layer, error) {
	packed, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	gz, err := gzip.NewWriterLevel(packed, level)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(gz)
	if err := errors.Join(write(w), w.Close(), gz.Close(), packed.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
}

const (
	programPath = "usr/bin/muster"
	rootsPath   = "etc/ssl/certs/ca-certificates.crt"
)

// writeBase writes the files of packages, without what only people read and the many character sets
// that nothing here converts, and what their installation would have made.
func writeBase(w *tar.Writer, debs []string) error {
	seen := map[string]bool{}
	var roots bytes.Buffer
	for _, deb := range debs {
		data, err := exec.Command("dpkg-deb", "--fsys-tarfile", deb).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", deb, err)
		}
		for r := tar.NewReader(bytes.NewReader(data)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			} else if err != nil {
				return fmt.Errorf("%s: %w", deb, err)
			}
			name := strings.TrimPrefix(h.Name, "./")
			if name == "" || seen[name] || isLeftOut(name, h.Typeflag) {
				continue
			}
			seen[name] = true
			content, err := io.ReadAll(r)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", deb, name, err)
			}
			if strings.HasPrefix(name, "usr/share/ca-certificates/mozilla/") {
				if strings.HasSuffix(name, ".crt") {
					roots.Write(content)
				}
				continue // they go into one file
			}
			clean := &tar.Header{
				Name: name, Linkname: h.Linkname, Typeflag: h.Typeflag, Mode: h.Mode, Size: h.Size,
				ModTime: epoch,
			}
			if err := writeFile(w, clean, content); err != nil {
				return err
			}
		}
	}
	home := fmt.Sprintf("nonroot:x:%d:%d:nonroot:/var/lib/muster:/sbin/nologin\n", user, user)
	for _, file := range []struct{ name, text string }{
		{"etc/group", fmt.Sprintf("root:x:0:\nnonroot:x:%d:\n", user)},
		{"etc/nsswitch.conf", "hosts: files dns\n"},
		{"etc/passwd", "root:x:0:0:root:/root:/sbin/nologin\n" + home},
		{rootsPath, roots.String()},
	} {
		h := &tar.Header{
			Name: file.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(file.text)),
			ModTime: epoch,
		}
		if err := writeFile(w, h, []byte(file.text)); err != nil {
			return err
		}
	}
	return nil
}

// isLeftOut reports whether a file of a package is not needed. Licences are.
func isLeftOut(name string, kind byte) bool {
	for _, prefix := range []string{
		"usr/share/man", "usr/share/lintian", "usr/share/bug", "usr/share/locale", "usr/sbin",
		"etc/update-motd.d", "usr/share/base-files",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.Contains(name, "/gconv/") || strings.HasPrefix(name, "usr/share/doc/") &&
		kind != tar.TypeDir && path.Base(name) != "copyright"
}

// writeApp writes the program, and folders that its user may write to where nothing is mounted.
func writeApp(w *tar.Writer, program string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	for _, dir := range []string{"var/lib/muster/", "var/lib/muster/models/", "var/lib/muster/state/"} {
		h := &tar.Header{
			Name: dir, Typeflag: tar.TypeDir, Mode: 0o755, Uid: user, Gid: user, ModTime: epoch,
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
	}
	return writeFile(w, &tar.Header{
		Name: programPath, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content)),
		ModTime: epoch,
	}, content)
}

// writeFiles writes files into a folder of the image.
func writeFiles(w *tar.Writer, folder string, files ...string) error {
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := writeFile(w, &tar.Header{
			Name: folder + filepath.Base(file), Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(content)), ModTime: epoch,
		}, content); err != nil {
			return err
		}
	}
	return nil
}

// writeFolder writes the files of a folder into one of the image, with those in its folders.
func writeFolder(w *tar.Writer, folder, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(from, filepath.Dir(file))
		if err != nil {
			return err
		}
		return writeFiles(w, path.Join(folder, filepath.ToSlash(below))+"/", file)
	})
}

func writeFile(w *tar.Writer, h *tar.Header, content []byte) error {
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// fieldsOf returns fields of a package's control file.
func fieldsOf(deb string, fields ...string) ([]string, error) {
	args := []string{"--show", "--showformat=${" + strings.Join(fields, "}\\n${") + "}", deb}
	text, err := exec.Command("dpkg-deb", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", deb, err)
	}
	return slices.Collect(strings.Lines(string(text))), nil
}
