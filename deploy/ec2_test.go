package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/cloud/ec2"
	"github.com/muster-serve/muster/cloud/policy"
)

// TestReturn: a rented machine powers off once its agent has ended by itself; not when it failed, and
// not when it is being stopped or restarted.
func TestReturn(t *testing.T) {
	for _, tt := range []struct {
		name, result, code, job string
		off                     bool
	}{
		{"drained", "success", "exited", "0", true},
		{"drained, an older systemd", "success", "exited", "", true},
		{"failed", "exit-code", "exited", "0", false},
		{"drained for SIGHUP", "exit-code", "exited", "0", false},
		{"dead of SIGPIPE", "success", "killed", "0", false},
		{"killed for its memory", "oom-kill", "killed", "0", false},
		{"restarted", "success", "exited", "417", false},
		{"without systemd", "", "", "0", false},
	} {
		dir := t.TempDir()
		const systemctl = "#!/bin/sh\n" +
			`if [ "$1" = poweroff ]; then touch "$DIR/off"; else echo "$JOB"; fi` + "\n"
		err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(systemctl), 0o755)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "ec2/return.sh")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "DIR="+dir,
			"SERVICE_RESULT="+tt.result, "EXIT_CODE="+tt.code, "JOB="+tt.job)
		out, err := cmd.CombinedOutput()
		_, missing := os.Stat(filepath.Join(dir, "off"))
		if (missing == nil) != tt.off || err != nil {
			t.Errorf("%s: powered off: %t, %v, want %t\n%s", tt.name, missing == nil, err, tt.off, out)
		}
	}
}

// TestSecretsAreTriedAgain: the service of the secrets does not fail where a try does, and ends once one
// succeeds. Before systemd 254 muster.service would not start after a failure, whatever Restart= says.
func TestSecretsAreTriedAgain(t *testing.T) {
	unit := read(t, "ec2/muster-secrets.service")
	setting := func(key string) string {
		found := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindStringSubmatch(unit)
		if found == nil {
			return ""
		}
		return found[1]
	}
	if again := setting("Restart"); again != "" || setting("TimeoutStartSec") != "infinity" ||
		setting("Type") != "oneshot" || setting("Before") != "muster.service" {
		t.Errorf("the service of the secrets has Restart=%s, or another type, time or order:\n%s",
			again, unit)
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "secrets.sh")
	for name, text := range map[string]string{
		"secrets.sh": `echo >>"$DIR/tries"; [ "$(wc -l <"$DIR/tries")" -ge 3 ]`,
		"sleep":      `exit 0`,
	} {
		err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)
		if err != nil {
			t.Fatal(err)
		}
	}
	line := strings.ReplaceAll(setting("ExecStart"), "/usr/lib/muster/secrets.sh", script)
	// systemd's quotes and a shell's are the same here.
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
	if tries := read(t, filepath.Join(dir, "tries")); len(tries) != 3 {
		t.Errorf("%d tries, want 3", len(tries))
	}
}

// TestEC2Files: what a reader of docs/ec2.md is given can be read by what it is for, and fits
// together.
func TestEC2Files(t *testing.T) {
	fleet, _, err := policy.Read("ec2/fleet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := ec2.Settings(*fleet.EC2).Validate(); err != nil {
		t.Error(err)
	}
	var template struct {
		LaunchTemplateName string
		LaunchTemplateData struct {
			InstanceInitiatedShutdownBehavior string
			MetadataOptions                   struct{ HttpTokens, InstanceMetadataTags string }
			TagSpecifications                 []struct {
				ResourceType string
				Tags         []struct{ Key, Value string }
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, "ec2/launch-template.json")), &template); err != nil {
		t.Fatal(err)
	}
	data := template.LaunchTemplateData
	if template.LaunchTemplateName != fleet.EC2.Template ||
		data.InstanceInitiatedShutdownBehavior != "terminate" ||
		data.MetadataOptions.HttpTokens != "required" ||
		data.MetadataOptions.InstanceMetadataTags != "enabled" ||
		data.TagSpecifications[0].Tags[0].Value != fleet.Fleet {
		t.Errorf("the launch template is %+v", template)
	}
	var policy struct{ Statement []struct{ Resource []string } }
	if err := json.Unmarshal([]byte(read(t, "ec2/worker-policy.json")), &policy); err != nil {
		t.Fatal(err)
	}
	secrets := read(t, "ec2/secrets.sh")
	for _, resource := range policy.Statement[0].Resource {
		name := resource[strings.LastIndex(resource, "/")+1:]
		if !strings.Contains(secrets, name) {
			t.Errorf("secrets.sh does not fetch %s", name)
		}
	}
	var data2 struct {
		WriteFiles []struct{ Path, Content string } `yaml:"write_files"`
		RunCmd     []string                         `yaml:"runcmd"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "ec2/user-data.yaml")), &data2); err != nil {
		t.Fatal(err)
	}
	settings := regexp.MustCompile(`(?:fs\.\w+Var\(|lists\.Var\(fs, )[^,]+, "([a-z0-9-]+)"`)
	known := map[string]bool{}
	for _, found := range settings.FindAllStringSubmatch(read(t, "../cmd/muster/settings.go"), -1) {
		known[found[1]] = true
	}
	for name, text := range map[string]string{
		"user-data.yaml": data2.WriteFiles[0].Content, "keeper.yaml": read(t, "ec2/keeper.yaml"),
	} {
		var agent map[string]any
		if err := yaml.Unmarshal([]byte(text), &agent); err != nil {
			t.Fatal(err)
		}
		for key := range agent {
			if !known[key] {
				t.Errorf("%s: an agent has no setting %s", name, key)
			}
		}
		if rents := agent["rent"] != nil; rents != (name == "keeper.yaml") ||
			(agent["leader"] == "never") == rents || (agent["rented"] == "ec2") == rents {
			t.Errorf("%s: %v", name, agent)
		}
	}
	// The image has the units and scripts that user data and units name.
	image := read(t, "ec2/muster.pkr.hcl")
	for _, name := range []string{
		"return.sh", "secrets.sh", "muster-secrets.service", "rented.conf",
	} {
		if read(t, "ec2/"+name); !strings.Contains(image, " ec2/"+name) {
			t.Errorf("the image lacks %s", name)
		}
	}
}

// TestImageUploads: Packer uploads a folder only into one that exists, and what is as large as models
// not into /tmp, which is memory on Amazon Linux 2023.
func TestImageUploads(t *testing.T) {
	image := read(t, "ec2/muster.pkr.hcl")
	made, folders := map[string]bool{}, 0
	for _, text := range strings.Split(image, "  provisioner ")[1:] {
		for _, found := range regexp.MustCompile(`mkdir -p ([^"&]*)`).FindAllStringSubmatch(text, -1) {
			for _, dir := range strings.Fields(found[1]) {
				for ; dir != "/"; dir = filepath.Dir(dir) {
					made[dir] = true
				}
			}
		}
		if !strings.HasPrefix(text, `"file"`) {
			continue
		}
		from := regexp.MustCompile(`source += (.*)`).FindStringSubmatch(text)
		to := regexp.MustCompile(`destination += "(.*)"`).FindStringSubmatch(text)
		if from == nil || to == nil {
			t.Fatalf("no source or destination in %s", text)
		}
		if strings.HasPrefix(to[1], "/tmp/") {
			t.Errorf("%s is uploaded into memory, %s", from[1], to[1])
		}
		if dir := filepath.Dir(to[1]); !made[dir] { // "a" of "a/"
			t.Errorf("%s is uploaded into %s, which nothing has made", from[1], dir)
		}
		if !strings.HasSuffix(from[1], `/"`) {
			continue
		}
		if folders++; !strings.HasSuffix(to[1], "/") {
			t.Errorf("the folder %s is uploaded to %s, want a slash at its end", from[1], to[1])
		}
	}
	if folders != 2 {
		t.Errorf("%d folders are uploaded, want 2", folders)
	}
}
