package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/cmd/muster/internal/doctor"
)

// A leakyServer gives a status and events with secrets in them.
type leakyServer struct {
	control.UnimplementedControlServer
	leak string
}

func (s leakyServer) Status(context.Context, *control.StatusRequest) (*control.FleetStatus,
	error) {
	return &control.FleetStatus{View: &control.View{
		Leadership: &control.Leadership{Epoch: 3, Leader: "vm-1"},
		Members:    []*control.Member{{Name: "vm-1", Software: "0.1.0", Role: s.leak}},
	}}, nil
}

func (s leakyServer) Events(_ *control.EventsRequest,
	to grpc.ServerStreamingServer[control.Event]) error {
	return to.Send(&control.Event{Kind: "refused", Agent: "vm-1", What: s.leak})
}

// TestBundleHasNoSecrets: whatever this process knows of keys, tokens and passwords stands in no
// file of a bundle, although agents repeat it.
func TestBundleHasNoSecrets(t *testing.T) {
	t.Chdir(t.TempDir())
	secrets := map[string]string{
		"a gossip key in the settings":  "c2VjcmV0LWdvc3NpcC1rZXktb2YtMzItYnl0ZXMhISE=",
		"the api key of the command":    "command-api-key-1",
		"a key of the file of keys":     "ads-client-key-22",
		"a password in the access file": "hunter2-of-the-page",
		"a token of the environment":    "environment-token-3",
		"a password of the store":       "store:password4",
	}
	leak := ""
	for _, s := range secrets {
		leak += s + " "
	}
	write(t, "keys", "ads: ads-client-key-22\n")
	write(t, "access.yaml", "clients:\n  ads:\n    password: hunter2-of-the-page\n")
	write(t, "muster.yaml", "gossip-key: "+secrets["a gossip key in the settings"]+"\n"+
		"api-keys: keys\naccess: access.yaml\ninsecure: true\n"+
		"model-store: s3://store:password4@bucket/models\n")
	t.Setenv("MUSTER_API_KEY", secrets["the api key of the command"])
	t.Setenv("CI_DEPLOY_TOKEN", secrets["a token of the environment"])
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(oip.ServerOptions(1 << 20)...)
	control.RegisterControlServer(server, leakyServer{leak: leak})
	go server.Serve(listener) //nolint:errcheck // it ends with Stop
	t.Cleanup(server.Stop)

	_, _, err = execute(t, "debug", "bundle", "--out", "b.tar.gz", "--server",
		listener.Addr().String(), "--insecure")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("b.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "muster-bundle/")] = string(text)
	}
	for _, name := range []string{
		"version.txt", "doctor.json", "settings.yaml", "status.json", "events.jsonl",
	} {
		if files[name] == "" {
			t.Errorf("the bundle has no %s", name)
		}
	}
	if !strings.Contains(files["events.jsonl"], "[removed]") {
		t.Errorf("the events are %q, want what the agent said, without secrets",
			files["events.jsonl"])
	}
	for name, text := range files {
		for what, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s: %s", name, what, text)
			}
		}
	}
}

// TestSecretsOfKeyFile: the lines of a private key are secrets.
func TestSecretsOfKeyFile(t *testing.T) {
	t.Chdir(t.TempDir())
	const key = "TUlHSEFnRUFNQk1HQnlxR1NNNDlBZ0VHQ0NxR1NNNDlBd0VI"
	var e examination
	e.agent.Security.KeyFile = write(t, "tls.key",
		"-----BEGIN PRIVATE KEY-----\n"+key+"\n-----END PRIVATE KEY-----\n")
	if got := e.secrets(); !slices.Contains(got, key) {
		t.Errorf("got %q, want the key in it", got)
	}
}

// TestDoctor: doctor ends with 1 where a model directory is missing, and says what to do.
func TestDoctor(t *testing.T) {
	t.Chdir(t.TempDir())
	out, _, err := execute(t, "doctor", "--json", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
		"--metrics", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--server", "127.0.0.1:1")
	if err == nil || exitStatus(err) != 1 {
		t.Errorf("got %v, want an error of exit status 1", err)
	}
	var all []doctor.Finding
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatal(err)
	}
	faults := map[string]string{}
	for _, f := range all {
		if f.Level == doctor.Fault {
			faults[f.Check] = f.Remedy
		}
	}
	if len(faults) != 2 || !strings.Contains(faults["disk"], "muster models generate") ||
		!strings.Contains(faults["fleet"], "start an agent") {
		t.Errorf("got the faults %v, want those of the model directory and of the fleet", faults)
	}
}
