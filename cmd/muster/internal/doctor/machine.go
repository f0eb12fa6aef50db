package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/runtime/cgroup"
	"github.com/muster-serve/muster/runtime/isolate"
)

// A Host is the machine that Machine looks at.
type Host struct {
	Root fs.FS // of its file system: os.DirFS("/")
	Now  time.Time
	// Listen reports why nothing can listen on an address; nil if something can.
	Listen func(address string) error
	// Resolve returns the addresses of a host's name.
	Resolve func(ctx context.Context, host string) ([]string, error)
}

// This returns the machine of this process.
func This() Host {
	return Host{
		Root: os.DirFS("/"), Now: time.Now(),
		Listen: func(address string) error {
			l, err := net.Listen("tcp", address)
			if err == nil {
				err = l.Close()
			}
			return err
		},
		Resolve: net.DefaultResolver.LookupHost,
	}
}

const (
	gib = 1 << 30
	// certificateMargin is how long before its end a certificate is warned of. Chosen: two weeks
	// are enough to make new ones without haste.
	certificateMargin = 14 * 24 * time.Hour
	// diskMargin is the free space below which a file system is warned of, in bytes and as a share.
	// Chosen: a model is some GiB, and file systems slow down when they are nearly full.
	diskMargin, diskMarginShare = gib, .05
)

// Machine returns what it finds of the machine for an agent with these settings. running says that
// an agent runs there, so its ports are in use. It blocks at most until ctx ends.
func Machine(ctx context.Context, h Host, c agent.Config, running bool) []Finding {
	var f findings
	if err := c.Validate(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			f.add("settings", Fault, "muster config check FILE names the lines", "%s", line)
		}
	}
	h.checkCores(&f, c)
	h.checkMemory(&f, c)
	h.checkHugePages(&f)
	checkClock(&f)
	h.checkAddresses(ctx, &f, c, running)
	h.checkCertificates(&f, c)
	checkDisk(&f, "state-dir", c.StateDir)
	checkDisk(&f, "model-dir", c.ModelDir)
	h.checkGPU(&f, c)
	return f
}

func (h Host) checkCores(f *findings, c agent.Config) {
	cores, why := isolate.Cores()
	quota := cgroup.CPUQuota(h.Root)
	switch {
	case quota > 0 && quota < 1:
		f.add("cores", Warning, "give the container one whole CPU or more",
			"a quota of %.2g CPUs: each run stands still for a part of the time", quota)
	case c.Cores > cores:
		f.add("cores", Warning, "leave --cores out, or raise the quota",
			"--cores %d, but %s leave %d", c.Cores, why, cores)
	default:
		f.add("cores", OK, "", "%d, by %s", cores, why)
	}
}

func (h Host) checkMemory(f *findings, c agent.Config) {
	available := cgroup.AvailableMemory(h.Root)
	if available <= 0 { // no control group has a limit
		text, _ := fs.ReadFile(h.Root, "proc/meminfo")
		available = cgroup.NumberAfter(string(text), "MemAvailable:") << 10 // it is in kB
	}
	if available <= 0 {
		f.add("memory", Unknown, "", "it cannot be read here")
		return
	}
	models := sizeOf(c.ModelDir)
	found := fmt.Sprintf("%.1f GiB available, models of %.1f GiB on disk",
		float64(available)/gib, float64(models)/gib)
	if models > available && c.ModelData != "mapped" && c.ModelControl != "leader" {
		f.add("memory", Warning, "--model-data mapped, --model-control leader, smaller variants, or "+
			"more memory", "%s", found)
		return
	}
	f.add("memory", OK, "", "%s", found)
}

// sizeOf sums the sizes of the files below a folder.
func sizeOf(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // what cannot be read does not count
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

func (h Host) checkHugePages(f *findings) {
	text, err := fs.ReadFile(h.Root, "sys/kernel/mm/transparent_hugepage/enabled")
	switch {
	case err != nil:
		f.add("huge pages", Unknown, "", "this kernel does not say")
	case strings.Contains(string(text), "[never]"):
		f.add("huge pages", Warning,
			"echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
			"never: lookups in large tables take longer")
	default:
		f.add("huge pages", OK, "", "%s", strings.TrimSpace(string(text)))
	}
}

func (h Host) checkAddresses(ctx context.Context, f *findings, c agent.Config, running bool) {
	for _, a := range []struct{ flag, address string }{
		{"http", c.HTTPAddress}, {"grpc", c.GRPCAddress}, {"metrics", c.MetricsAddress},
		{"gossip", c.GossipAddress},
	} {
		err := h.Listen(a.address)
		switch {
		case err == nil:
			f.add("port", OK, "", "--%s %s is free", a.flag, a.address)
		case running:
			f.add("port", OK, "", "--%s %s is in use, and an agent runs", a.flag, a.address)
		default:
			f.add("port", Fault, "end what listens there, or set --"+a.flag, "--%s %s: %v", a.flag,
				a.address, err)
		}
	}
	for _, seed := range c.Join {
		host, _, err := net.SplitHostPort(seed)
		if err == nil && net.ParseIP(host) == nil {
			_, err = h.Resolve(ctx, host)
		}
		if err != nil {
			f.add("dns", Fault, "correct --join, or the name's record", "--join %s: %v", seed, err)
			continue
		}
		f.add("dns", OK, "", "--join %s has an address", seed)
	}
}

func (h Host) checkCertificates(f *findings, c agent.Config) {
	for _, file := range []struct{ flag, path string }{
		{"tls-cert", c.Security.CertFile}, {"tls-ca", c.Security.CAFile},
		{"tls-client-ca", c.Security.ClientCAFile},
	} {
		if file.path == "" {
			continue
		}
		text, err := os.ReadFile(file.path)
		if err != nil {
			f.add("certificate", Fault, "correct --"+file.flag, "%v", err)
			continue
		}
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" {
				continue
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				f.add("certificate", Fault, "make it anew", "%s: %v", file.path, err)
				continue
			}
			h.checkCertificate(f, file.path, cert)
		}
	}
}

func (h Host) checkCertificate(f *findings, path string, cert *x509.Certificate) {
	left := cert.NotAfter.Sub(h.Now)
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	of := cert.Subject.CommonName
	if len(hosts) > 0 {
		of += " (" + strings.Join(hosts, ", ") + ")"
	}
	found := fmt.Sprintf("%s, of %s, until %s", path, of, cert.NotAfter.Format(time.DateOnly))
	remedy := "make a new one (docs/security.md); agents read it without a restart"
	switch {
	case h.Now.Before(cert.NotBefore):
		f.add("certificate", Fault, "set the clock", "%s begins at %s only", path,
			cert.NotBefore.Format(time.DateTime))
	case left <= 0:
		f.add("certificate", Fault, remedy, "%s: it has ended", found)
	case left < certificateMargin:
		f.add("certificate", Warning, remedy, "%s: %d days are left", found, int(left.Hours()/24))
	default:
		f.add("certificate", OK, "", "%s", found)
	}
}

func checkDisk(f *findings, flag, dir string) {
	existing := dir
	for {
		if _, err := os.Stat(existing); err == nil || !errors.Is(err, fs.ErrNotExist) ||
			existing == filepath.Dir(existing) {
			break
		}
		existing = filepath.Dir(existing)
	}
	if existing != dir && flag == "model-dir" {
		f.add("disk", Fault, "name yours with --model-dir, or muster models generate ncf",
			"--model-dir %s does not exist", dir)
		return
	}
	free, all, err := diskSpace(existing)
	switch {
	case err != nil:
		f.add("disk", Unknown, "", "--%s %s: %v", flag, dir, err)
	case free < diskMargin || float64(free) < diskMarginShare*float64(all):
		f.add("disk", Warning, "free some, or use another disk", "--%s %s: %.1f of %.1f GiB are free",
			flag, dir, float64(free)/gib, float64(all)/gib)
	default:
		f.add("disk", OK, "", "--%s %s: %.1f GiB are free", flag, dir, float64(free)/gib)
	}
}

func (h Host) checkGPU(f *findings, c agent.Config) {
	_, err := fs.Stat(h.Root, "dev/nvidia0")
	switch has := err == nil; {
	case !has && c.Provider == "cuda":
		f.add("gpu", Fault, "install the driver (docs/gpu.md), or leave --provider out",
			"--provider cuda, but the machine shows no NVIDIA card")
	case has && c.Provider == "cpu":
		f.add("gpu", Warning, "leave --provider out to use it", "a card, and --provider cpu")
	case has:
		f.add("gpu", OK, "", "the machine shows an NVIDIA card")
	default:
		f.add("gpu", OK, "", "none")
	}
}
