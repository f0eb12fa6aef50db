package ec2

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-serve/muster/profiles"
)

// A PolicyScope says for what a keeper may rent. What it leaves empty is not bounded.
type PolicyScope struct {
	Fleet    string
	Region   string
	Account  string // 12 digits
	Types    []profiles.InstanceType
	Template string // the launch template's id; "" is any
	Image    string // the id of the template's image; "" is any
	Groups   []string
	// WorkerRole is the name of the role that the template's instance profile gives workers.
	WorkerRole string
}

var account = regexp.MustCompile(`^\d{12}$`)

// A statement is one of an IAM policy, with its keys in the order in which people write them.
type statement struct {
	Sid       string
	Effect    string
	Action    any // a string or several
	Resource  any
	Condition map[string]map[string]any `json:",omitempty"`
}

// Policy is the IAM policy of a keeper, as JSON: it may see instances and prices, rent what carries
// the fleet's tag, of the fleet's types, from its launch template, and end only what carries the
// tag. A policy cannot bound how many are rented.
func Policy(s PolicyScope) ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	partition := "aws"
	switch {
	case strings.HasPrefix(s.Region, "cn-"):
		partition = "aws-cn"
	case strings.HasPrefix(s.Region, "us-gov-"):
		partition = "aws-us-gov"
	}
	orAny := func(value string) string {
		if value == "" {
			return "*"
		}
		return value
	}
	arn := func(rest string) string {
		return "arn:" + partition + ":ec2:" + s.Region + ":" + s.Account + ":" + rest
	}
	types := slices.Sorted(slices.Values(s.Types))
	image := "arn:" + partition + ":ec2:" + s.Region + "::image/" + orAny(s.Image)
	needed := []string{image, arn("launch-template/" + orAny(s.Template)), arn("subnet/*")}
	for _, group := range s.Groups {
		needed = append(needed, arn("security-group/"+group))
	}
	if len(s.Groups) == 0 {
		needed = append(needed, arn("security-group/*"))
	}
	when := func(operator, key string, value any) map[string]map[string]any {
		return map[string]map[string]any{operator: {key: value}}
	}
	rent := []string{"ec2:CreateFleet", "ec2:RunInstances"}
	list := []statement{{
		Sid: "See", Effect: "Allow", Resource: "*", Action: []string{
			"ec2:DescribeInstances", "ec2:DescribeInstanceTypes",
			"ec2:DescribeInstanceTypeOfferings", "ec2:DescribeLaunchTemplateVersions",
			"ec2:DescribeSubnets", "ec2:DescribeSpotPriceHistory", "pricing:GetProducts",
		},
	}, {
		Sid: "RentOnlyTagged", Effect: "Allow", Action: rent,
		Resource: []string{
			arn("fleet/*"), arn("instance/*"), arn("volume/*"), arn("network-interface/*"),
			arn("spot-instances-request/*"),
		},
		Condition: when("StringEquals", "aws:RequestTag/"+tagFleet, s.Fleet),
	}, {
		Sid: "OnlyTheseTypes", Effect: "Deny", Action: "ec2:RunInstances",
		Resource:  arn("instance/*"),
		Condition: when("StringNotEquals", "ec2:InstanceType", types),
	}}
	if s.Template != "" {
		list = append(list, statement{
			Sid: "OnlyOurTemplate", Effect: "Deny", Action: "ec2:RunInstances",
			Resource: arn("instance/*"),
			Condition: when("ArnNotLike", "ec2:LaunchTemplate",
				arn("launch-template/"+s.Template)),
		})
	}
	list = append(list, statement{
		Sid: "UseWhatItNeeds", Effect: "Allow", Action: rent, Resource: needed,
	}, statement{
		Sid: "TagWhileRenting", Effect: "Allow", Action: "ec2:CreateTags", Resource: arn("*/*"),
		Condition: when("StringEquals", "ec2:CreateAction",
			[]string{"CreateFleet", "RunInstances"}),
	}, statement{
		Sid: "OursOnly", Effect: "Allow",
		Action:    []string{"ec2:TerminateInstances", "ec2:CreateTags"},
		Resource:  arn("instance/*"),
		Condition: when("StringEquals", "aws:ResourceTag/"+tagFleet, s.Fleet),
	}, statement{
		Sid: "GiveWorkersTheirRole", Effect: "Allow", Action: "iam:PassRole",
		Resource: "arn:" + partition + ":iam::" + s.Account + ":role/" + s.WorkerRole,
		Condition: when("StringEquals", "iam:PassedToService",
			map[bool]string{false: "ec2.amazonaws.com", true: "ec2.amazonaws.com.cn"}[partition ==
				"aws-cn"]),
	})
	text, err := json.MarshalIndent(struct {
		Version   string
		Statement []statement
	}{"2012-10-17", list}, "", "  ")
	if err != nil {
		return nil, err
	}
	const largest = 6144 // of a managed policy, without white space
	if small, _ := json.Marshal(json.RawMessage(text)); len(small) > largest {
		return nil, fmt.Errorf("the policy has %d characters, and IAM takes %d: name fewer types",
			len(small), largest)
	}
	return append(text, '\n'), nil
}

// validate returns all that is wrong with the scope.
func (s PolicyScope) validate() error {
	var faults []error
	if !fleetName.MatchString(s.Fleet) {
		faults = append(faults, fmt.Errorf("fleet: %q, want 1 to 63 letters, digits, '.', '_' "+
			"and '-'", s.Fleet))
	}
	if !regionName.MatchString(s.Region) {
		faults = append(faults, fmt.Errorf("region: %q, want one such as us-east-1", s.Region))
	}
	if !account.MatchString(s.Account) {
		faults = append(faults, fmt.Errorf("account: %q, want 12 digits", s.Account))
	}
	if len(s.Types) == 0 {
		faults = append(faults, errors.New("types: none, want those that the fleet may rent"))
	}
	if s.WorkerRole == "" {
		faults = append(faults, errors.New("worker role: empty, want the role's name"))
	}
	return errors.Join(faults...)
}
