package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
)

func TestKeysGenerate(t *testing.T) {
	var keys [2]string
	for i := range keys {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"keys", "generate"}, nil, &out,
			io.Discard); err != nil {
			t.Fatal(err)
		}
		keys[i] = out.String()
		if _, err := gossip.ParseKey(strings.TrimSuffix(keys[i], "\n")); err != nil {
			t.Errorf("generate printed %q: %v", keys[i], err)
		}
	}
	if keys[0] == keys[1] {
		t.Errorf("twice the same key")
	}
}

// TestKeysRotateKey is what is refused before anything is sent.
func TestKeysRotateKey(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, short := write("good", gossip.FormatKey(gossip.NewKey())+"\n"), write("short",
		"c2hvcnQ=\n")
	for _, tt := range []struct{ args, want string }{
		{"--key " + short, "want 32 bytes in base64"},
		{"--key " + filepath.Join(dir, "missing"), "no such file"},
		{"--server 10.0.0.7:8001 --key " + good, "unencrypted"},
	} {
		err := run(t.Context(), append([]string{"keys", "rotate"}, strings.Fields(tt.args)...), nil,
			io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			strings.Contains(err.Error(), "c2hvcnQ=") {
			t.Errorf("rotate %s: %v, want %q and no key", tt.args, err, tt.want)
		}
	}
}

func TestFollowRotation(t *testing.T) {
	progress := []*control.KeysProgress{
		{Step: "list", Keys: &control.AgentKeys{Agent: "a", Fingerprints: []string{"01"}}},
		{Step: "list", Keys: &control.AgentKeys{Agent: "b", Fault: "it does not answer"}},
		{Step: "add", Keys: &control.AgentKeys{Agent: "a", Fingerprints: []string{"01", "02"}}},
		{Step: "use", Keys: &control.AgentKeys{Agent: "a", Fingerprints: []string{"02", "01"}}},
		{Step: "only", Keys: &control.AgentKeys{Agent: "a", Fingerprints: []string{"02"}}},
	}
	var out bytes.Buffer
	err := followRotation(&out, func() (*control.KeysProgress, error) {
		if len(progress) == 0 {
			return nil, io.EOF
		}
		p := progress[0]
		progress = progress[1:]
		return p, nil
	})
	want := `a: answers
b: not done (list): it does not answer
a: accepts the new key
a: encrypts with the new key
a: has deleted the other keys

done: 1 agent uses key 02, and no other
put the new key into the settings of these agents before they restart: a
left out; these agents need the new key to join again: b
`
	if err != nil || out.String() != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, out.String(), want)
	}
}
