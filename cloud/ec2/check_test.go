package ec2

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// TestCheck: nothing is wrong, or each thing that is wrong is named; nothing is rented or ended.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config, *tinyEC2, *faults)
		want   []string // a part of each fault, in order
	}{
		{name: "nothing is wrong", change: func(*Config, *tinyEC2, *faults) {}},
		{name: "expired credentials", change: func(_ *Config, _ *tinyEC2, f *faults) {
			f.refuse["GetCallerIdentity"] = []string{"ExpiredToken", "..."}
		}, want: []string{"credentials: sts:GetCallerIdentity: refused: ExpiredToken"}},
		{name: "the template is gone", change: func(_ *Config, e *tinyEC2, _ *faults) {
			e.template = ""
		}, want: []string{"launch template lt-0123456789abcdef0: refused: it has no version 7"}},
		{name: "a template that leaks", change: func(_ *Config, e *tinyEC2, _ *faults) {
			e.template = "<imageId>ami-1</imageId>"
		}, want: []string{"is paid for on"}},
		{name: "a subnet that is not there", change: func(c *Config, _ *tinyEC2, _ *faults) {
			c.Subnets = append(c.Subnets, "subnet-99999999")
		}, want: []string{"subnets: refused: ec2.subnets: subnet-99999999 is not in us-east-1"}},
		{name: "no addresses", change: func(_ *Config, e *tinyEC2, _ *faults) { e.addresses = 3 },
			want: []string{"subnet-0000000a has 3 addresses left"}},
		{name: "types", change: func(c *Config, _ *tinyEC2, _ *faults) {
			c.Types = []profiles.InstanceType{"r5n.large", "m7g.large", "c5.large", "no.such"}
		}, want: []string{"c5.large is offered in us-east-1f, and the subnets are in us-east-1a, " +
			"us-east-1b\nno.such is not offered in us-east-1\nm7g.large has the architecture"}},
		{name: "no right to rent", change: func(_ *Config, _ *tinyEC2, f *faults) {
			f.refuse["CreateFleet"] = []string{"UnauthorizedOperation"}
			f.refuse["RunInstances"] = []string{"UnauthorizedOperation"}
		}, want: []string{"ec2:CreateFleet: ec2:CreateFleet: refused: UnauthorizedOperation",
			"ec2:RunInstances: ec2:RunInstances: refused: UnauthorizedOperation"}},
		{name: "no right to end", change: func(_ *Config, e *tinyEC2, f *faults) {
			e.put(&tinyInstance{state: "running", tags: map[string]string{
				tagFleet: "prod", tagSlot: "r5n.large/on-demand/0/0",
			}})
			f.refuse["TerminateInstances"] = []string{"UnauthorizedOperation"}
		}, want: []string{"ec2:TerminateInstances: ec2:TerminateInstances: refused"}},
		{name: "no right to see", change: func(_ *Config, _ *tinyEC2, f *faults) {
			f.refuse["DescribeInstances"] = []string{"UnauthorizedOperation", "..."}
		}, want: []string{"ec2:DescribeInstances: ec2:DescribeInstances: refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
				c := testConfig(f)
				tt.change(&c, tiny, f)
				before := len(tiny.instances)
				faults := open(t, c).Check(t.Context())
				ok := len(faults) == len(tt.want)
				for i := range min(len(faults), len(tt.want)) {
					ok = ok && strings.Contains(faults[i].String(), tt.want[i])
				}
				if !ok {
					t.Errorf("got %q, want %q", faults, tt.want)
				}
				if len(tiny.instances) != before {
					t.Errorf("launched %v", tiny.instances)
				}
				for _, i := range tiny.instances {
					if i.state != "running" {
						t.Errorf("ended %v", i)
					}
				}
			})
		})
	}
}

// TestPolicy: what AWS tells of the account and the template is in the policy, which grants what
// every call of this package needs, and lets end only what has the fleet's tag.
func TestPolicy(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		p := open(t, testConfig(f))
		scope, err := p.Scope(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		scope.WorkerRole = "muster-worker"
		policy, err := Policy(scope)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "policy.json", string(policy))

		// What the calls need is what they are named by.
		if faults := p.Check(t.Context()); len(faults) > 0 {
			t.Fatal(faults)
		}
		_, _ = p.Offers(t.Context(), p.config.Types)
		i, err := p.Launch(t.Context(), rent.Slot{Kind: rent.Kind{Type: "r5n.large"}}, cloud.Spec{})
		if err != nil || p.Mark(t.Context(), i.ID) != nil || p.Return(t.Context(), i.ID) != nil {
			t.Fatal(err)
		}
		var granted struct {
			Statement []struct {
				Sid, Effect string
				Action      any
				Condition   map[string]map[string]any
			}
		}
		if err := json.Unmarshal(policy, &granted); err != nil {
			t.Fatal(err)
		}
		allowed := map[string]bool{"sts:GetCallerIdentity": true} // which needs no right
		for _, s := range granted.Statement {
			if s.Effect == "Allow" {
				for _, action := range strings.Fields(strings.Trim(fmt.Sprint(s.Action), "[]")) {
					allowed[action] = true
				}
			}
			if s.Sid == "OursOnly" && fmt.Sprint(s.Condition) !=
				"map[StringEquals:map[aws:ResourceTag/muster:fleet:prod]]" {
				t.Errorf("ends what is not ours: %v", s)
			}
		}
		for _, form := range f.asked {
			action := form.Get("Action")
			if !slices.ContainsFunc([]string{"ec2:", "sts:", "pricing:"},
				func(service string) bool { return allowed[service+action] }) {
				t.Errorf("the policy does not grant %s", action)
			}
		}
	})
}

func TestPolicyFaults(t *testing.T) {
	_, err := Policy(PolicyScope{Fleet: "a b", Region: "x", Account: "12"})
	for _, want := range []string{
		`fleet: "a b"`, `region: "x"`, `account: "12", want 12 digits`, "types: none",
		"worker role",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	many := PolicyScope{
		Fleet: "f", Region: "cn-north-1", Account: "123456789012", WorkerRole: "w",
		Types: []profiles.InstanceType{"r5n.large"},
	}
	text, err := Policy(many)
	if err != nil || !strings.Contains(string(text), "arn:aws-cn:ec2:cn-north-1:123456789012:") {
		t.Errorf("got %s, %v", text, err)
	}
	for n := range 400 {
		many.Types = append(many.Types, profiles.InstanceType(fmt.Sprintf("r%d.24xlarge", n)))
	}
	if _, err := Policy(many); err == nil || !strings.Contains(err.Error(), "name fewer types") {
		t.Errorf("a policy above IAM's limit: %v", err)
	}
}
