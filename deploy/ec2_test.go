package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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

// TestEC2Files: the image has the units and scripts that user data and units name. `make moto` makes
// the stack.
func TestEC2Files(t *testing.T) {
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
