package fleetcmd

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/cloud/ec2"
	"github.com/muster-serve/muster/cloud/plugin"
)

const ec2Fleet = `fleet: prod
limits:
  max_price_usd_per_hour: 6
  types: {r5n.large: {max: 4}, g4dn.xlarge: {max: 1}}
ec2: {region: us-east-1, template: lt-0123456789abcdef0, template_version: "7",
  subnets: [subnet-0000000a]}
`

// TestMain has this test's program be muster-ec2 where a command starts it.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "muster-ec2" {
		os.Exit(plugin.Serve(ec2.Program()))
	}
	os.Exit(m.Run())
}

// withEC2 has commands find muster-ec2 in PATH, and AWS at url.
func withEC2(t *testing.T, url string) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(own, filepath.Join(dir, "muster-ec2")); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_CA_BUNDLE": "",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
		"AWS_PROFILE": "", "AWS_MAX_ATTEMPTS": "1", "AWS_ENDPOINT_URL": url, "PATH": dir,
	} {
		t.Setenv(name, value)
	}
}

// run executes `muster fleet NAME ARGUMENTS` with a fleet.yaml of this content as the first argument.
func runWith(t *testing.T, content, name string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := policyCommand()
	if name == "check" {
		cmd = checkCommand()
	}
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage = true
	cmd.SetArgs(append([]string{file}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestPolicyCommand: without AWS the policy has what the file says; with it, what AWS says.
func TestPolicyCommand(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`<ErrorResponse><Error><Code>ExpiredToken</Code>` +
			`<Message>the security token included in the request is expired</Message></Error>` +
			`</ErrorResponse>`))
	}))
	defer server.Close()
	withEC2(t, server.URL)

	out, err := runWith(t, ec2Fleet, "policy", "--account", "123456789012", "--worker-role", "w")
	for _, want := range []string{
		`"aws:RequestTag/muster:fleet": "prod"`, `"g4dn.xlarge",`, "arn:aws:iam::123456789012:role/w",
		"launch-template/lt-0123456789abcdef0", "us-east-1::image/*",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("want %s, got %v %s", want, err, out)
		}
	}
	for name, tt := range map[string]struct {
		content, command string
		args             []string
		want             string
	}{
		"expired credentials": {ec2Fleet, "policy", nil, "the credentials have expired"},
		"how to do without":   {ec2Fleet, "policy", nil, "with --account NUMBER"},
		"a wrong account":     {ec2Fleet, "policy", []string{"--account", "x"}, "want 12 digits"},
		"check": {ec2Fleet, "check", nil,
			"credentials: sts:GetCallerIdentity: refused: ExpiredToken"},
		"another provider": {strings.Split(ec2Fleet, "ec2:")[0] +
			"process: {dir: /tmp/x, models: /tmp/y}\n", "policy", nil, "others need no rights"},
	} {
		if out, err := runWith(t, tt.content, tt.command, tt.args...); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v %s, want %s", name, err, out, tt.want)
		}
	}
}

// TestCheckSaysOnce: what the provider refuses at once is one fault, not one of each call.
func TestCheckSaysOnce(t *testing.T) {
	withEC2(t, "http://127.0.0.1:0")
	_, err := runWith(t, strings.Replace(ec2Fleet, "us-east-1", "nowhere", 1), "check")
	const want = `provider ec2: muster-ec2: ec2.region: "nowhere", want a region such as us-east-1`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestNoProgram: without muster-ec2, the commands that need it say once where it is to be.
func TestNoProgram(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	for _, name := range []string{"check", "policy"} {
		if out, err := runWith(t, ec2Fleet, name); err == nil ||
			strings.Count(err.Error(), "no program muster-ec2 in") != 1 ||
			!strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%s: got %v %s", name, err, out)
		}
	}
}
