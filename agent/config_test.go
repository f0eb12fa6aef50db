package agent

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/leader/match"
)

// TestFleetSettings: settings with which an agent could meet nobody, or too many, are refused.
func TestFleetSettings(t *testing.T) {
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.GossipAddress = "0.0.0.0:7946" },
			"gossip: address \"0.0.0.0:7946\" is not loopback"},
		{func(c *Config) { c.GossipAddress = c.GRPCAddress }, "is that of grpc too"},
		{func(c *Config) { c.GossipKey = "c2hvcnQ=" }, "gossip-key: "},
		{func(c *Config) { c.Join = []string{"nowhere"} }, "join: address \"nowhere\""},
		{func(c *Config) { c.Advertise = strings.Repeat("x", 123) },
			"advertise: host of 123 characters"},
		{func(c *Config) { c.Advertise = "0.0.0.0" },
			"advertise: 0.0.0.0 stands for all addresses of a machine"},
		{func(c *Config) { c.Advertise = "[::]:7946" }, "advertise: :: stands for all addresses"},
		{func(c *Config) { c.Advertise = "[::]" }, "advertise: :: stands for all addresses"},
		{func(c *Config) { c.Advertise = "10.0.0.1:0" }, "advertise: \"10.0.0.1:0\": port 0"},
		{func(c *Config) { c.Advertise = ":7946" }, "advertise: \":7946\": the host is missing"},
		{func(c *Config) { c.Leader = "perhaps" }, "leader: \"perhaps\""},
		{func(c *Config) { c.Policy = "best" }, "policy: \"best\""},
		{func(c *Config) { c.Executor = "emulated" }, "instance-type: empty"},
		{func(c *Config) { c.Profile = "shipped" }, "profile: \"shipped\", want none"},
		{func(c *Config) { c.Provider, c.GPU = "cpu", "1" }, "gpu: \"1\" with gpu-memory 0, want neither"},
		{func(c *Config) { c.GPUMemory = -1 }, "gpu-memory: -1"},
		{func(c *Config) { c.InstanceType = "two words" }, "instance-type: \"two words\""},
		{func(c *Config) { c.Layout = "rm2:" }, "layout: layout \"rm2:\""},
		{func(c *Config) { c.Layout = "rm2" }, "rm2 has no lanes, want :LANESxCORES"},
		{func(c *Config) { c.Layout = "-" }, "layout: \"-\": holds nothing"},
		{func(c *Config) { c.Layout = "rm2/3:1x1" }, "rm2/3 names a version"},
		{func(c *Config) { c.Layout = "rm2:4000x1" }, "4000 cores, and the machine has"},
		{func(c *Config) { c.Layout, c.Lanes = "rm2:1x1", 1 }, "so lanes and cores must not"},
	} {
		config := DefaultConfig()
		tt.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q in it", err, tt.want)
		}
	}
}

// TestLongestAdvertised: the longest host that may be advertised is one that others take.
func TestLongestAdvertised(t *testing.T) {
	config := DefaultConfig()
	config.Advertise = strings.Repeat("x", 122)
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
	address, err := config.advertisedGRPC("127.0.0.1:65535")
	if err != nil {
		t.Fatal(err)
	}
	said := members.Meta{Versions: control.Spoken, Address: address}
	if heard, err := members.DecodeMeta(said.Encode(), control.Spoken); err != nil ||
		heard != said {
		t.Errorf("others hear %+v, %v, want %+v", heard, err, said)
	}
}

// TestGossipKeyFileIsPrivate: who can read the key can join the fleet.
func TestGossipKeyFileIsPrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(file, []byte(gossip.FormatKey(bytes.Repeat([]byte{1}, gossip.KeySize))),
		0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{
		0o600: "", 0o640: "", 0o644: "mode 0644, want 0600", 0o606: "mode 0606",
	} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Config{GossipKey: file}.gossipKeys()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("mode %v: got %v, want %q", mode, err, want)
		}
	}
}

// TestFormerPolicy: an agent whose settings name a policy that Muster had says so, and serves by the
// default.
func TestFormerPolicy(t *testing.T) {
	var log bytes.Buffer
	config := DefaultConfig()
	config.Policy = "drs"
	a, err := New(config, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if a.config.Policy != match.DefaultPolicy || !strings.Contains(log.String(), "level=WARN") ||
		!strings.Contains(log.String(), "policy=drs default=horizon") {
		t.Errorf("takes %q, logged %q", a.config.Policy, &log)
	}
}
