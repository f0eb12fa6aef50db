package agent

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/profiles"
)

// identityTimeout bounds the call to EC2's metadata service. On EC2 the service answers within
// milliseconds; elsewhere a network may drop the packets without an answer.
const identityTimeout = time.Second

// newName returns a new name for an agent: its display name if that is set, else the host's name,
// which people recognize, and a random id, so that other agents do not confuse a restarted agent
// with its former process.
func newName(display string) string {
	name := cmp.Or(display, hostName())
	const longest = 40 // of what people recognize: names travel in gossip
	name = name[:min(len(name), longest)]
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails
	return name + "-" + hex.EncodeToString(id[:])
}

// hostName is the host's name, or "agent" if that is unknown or cannot be a display name.
func hostName() string {
	host, err := os.Hostname()
	if err != nil || host == "" || validateDisplayName(host) != nil {
		return "agent"
	}
	return host
}

// instanceType returns the configured instance type, else the answer of ask, which may be nil, else
// a name made of the CPU's model and the number of cores. It blocks at most until ctx ends.
func (c Config) instanceType(ctx context.Context,
	ask func(context.Context) (profiles.InstanceType, error)) profiles.InstanceType {
	if c.InstanceType != "" {
		return profiles.InstanceType(c.InstanceType)
	}
	if ask != nil {
		if t, err := ask(ctx); err == nil {
			return t
		}
	}
	return profiles.Local(cpuModel("/proc/cpuinfo"), c.coresOrDefault())
}

// askEC2 asks the instance metadata service, version 2, once and without retries.
func askEC2(ctx context.Context, metadata imds.Options) (profiles.InstanceType, error) {
	metadata.Retryer = aws.NopRetryer{}
	metadata.EnableFallback = aws.FalseTernary // no version 1
	out, err := imds.New(metadata).GetMetadata(ctx, &imds.GetMetadataInput{Path: "instance-type"})
	if err != nil {
		return "", err
	}
	defer out.Content.Close()
	text, err := io.ReadAll(io.LimitReader(out.Content, largestInstanceType+1))
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(text))
	if name == "" {
		return "", fmt.Errorf("empty instance type")
	}
	return profiles.InstanceType(name), validateInstanceType(name)
}

// cpuModel returns the "model name" in file, which has the format of /proc/cpuinfo; "cpu" if the
// file has none.
func cpuModel(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return "cpu"
	}
	defer f.Close()
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		if key, value, found := strings.Cut(scanner.Text(), ":"); found &&
			strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "cpu"
}
