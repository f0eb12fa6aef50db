package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"github.com/muster-serve/muster/cloud"
)

// A errorClass is what is done about an answer of EC2's.
type errorClass int

const (
	// whether it was done is open; the same call, or the next list, tells
	unclear   errorClass = iota
	short                // there is none of it now
	unoffered            // there never is one of it there
	quota                // the account may have no more
	denied               // a person has to act
	throttled            // asked too often
	mismatch             // the token was used with other parameters
)

// codes are the error codes of EC2, as its API reference lists them.
var codes = map[string]errorClass{
	"InsufficientInstanceCapacity":         short,
	"InsufficientHostCapacity":             short,
	"InsufficientCapacity":                 short,
	"InsufficientCapacityOnOutpost":        short,
	"UnfulfillableCapacity":                short,
	"SpotMaxPriceTooLow":                   short,
	"InsufficientFreeAddressesInSubnet":    short,
	"InsufficientReservedInstanceCapacity": short,

	"Unsupported":             unoffered,
	"InvalidAvailabilityZone": unoffered,
	"UnsupportedOperation":    unoffered,
	// "the requested instance type is not supported in ..."
	"InvalidFleetConfiguration":   unoffered,
	"UnavailableHostRequirements": unoffered,

	"VcpuLimitExceeded":                quota,
	"MaxSpotInstanceCountExceeded":     quota,
	"InstanceLimitExceeded":            quota,
	"SpotInstanceCountLimitExceeded":   quota,
	"MaxSpotFleetRequestCountExceeded": quota,
	"FleetLimitExceeded":               quota,
	"VolumeLimitExceeded":              quota,
	"MaxIOPSLimitExceeded":             quota,
	"NetworkInterfaceLimitExceeded":    quota,
	"AddressLimitExceeded":             quota,
	"ResourceLimitExceeded":            quota,
	"PendingVerification":              quota,

	"UnauthorizedOperation": denied,
	"AccessDenied":          denied,
	"AccessDeniedException": denied,
	"AuthFailure":           denied,
	"AuthFailure.ServiceLinkedRoleCreationNotPermitted": denied,
	"Blocked":                                      denied,
	"ExpiredToken":                                 denied,
	"ExpiredTokenException":                        denied,
	"RequestExpired":                               denied,
	"InvalidClientTokenId":                         denied,
	"UnrecognizedClientException":                  denied,
	"SignatureDoesNotMatch":                        denied,
	"OptInRequired":                                denied,
	"OperationNotPermitted":                        denied,
	"PendingSnapshotLimitExceeded":                 denied,
	"InvalidLaunchTemplateId.NotFound":             denied,
	"InvalidLaunchTemplateId.Malformed":            denied,
	"InvalidLaunchTemplateId.VersionNotFound":      denied,
	"InvalidLaunchTemplateName.NotFoundException":  denied,
	"InvalidLaunchTemplateName.MalformedException": denied,
	"InvalidLaunchTemplateVersion":                 denied,
	"InvalidAMIID.NotFound":                        denied,
	"InvalidAMIID.Unavailable":                     denied,
	"InvalidSubnetID.NotFound":                     denied,
	"InvalidSubnet":                                denied,
	"InvalidGroup.NotFound":                        denied,
	"InvalidSecurityGroupID.NotFound":              denied,
	"InvalidIamInstanceProfile":                    denied,
	"InvalidKeyPair.NotFound":                      denied,
	"InvalidParameterValue":                        denied,
	"InvalidParameterCombination":                  denied,
	"InvalidParameter":                             denied,
	"MissingParameter":                             denied,

	"RequestLimitExceeded":     throttled,
	"Throttling":               throttled,
	"ThrottlingException":      throttled,
	"TooManyRequestsException": throttled,
	"EC2ThrottledException":    throttled,

	"IdempotentParameterMismatch": mismatch,
}

// classOf is the class of an error code; unclear if nobody knows it.
func classOf(code string) errorClass {
	if c, ok := codes[code]; ok {
		return c
	}
	if strings.HasPrefix(code, "InvalidLaunchTemplate") {
		return denied
	}
	return unclear
}

// advice is what a person can do about a code that stops renting.
func advice(code, message string) string {
	switch {
	case slices.Contains([]string{"ExpiredToken", "ExpiredTokenException", "RequestExpired"}, code):
		return "the credentials have expired: renew them, or give the machine an instance profile"
	case strings.Contains(message, "Encoded authorization failure message"):
		return "`aws sts decode-authorization-message` tells which statement refuses it; " +
			"`muster fleet policy` prints the policy that renting needs"
	case slices.Contains([]string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"},
		code):
		return "`muster fleet policy` prints the policy that renting needs"
	case strings.HasPrefix(code, "InvalidLaunchTemplate"):
		return "make the launch template, or correct template and template_version in fleet.yaml"
	case code == "VcpuLimitExceeded" || code == "InstanceLimitExceeded":
		return "raise the quota of running on-demand instances of this family in Service Quotas"
	case code == "MaxSpotInstanceCountExceeded" || code == "SpotInstanceCountLimitExceeded":
		return "raise the quota of spot instance requests of this family in Service Quotas"
	case code == "AuthFailure.ServiceLinkedRoleCreationNotPermitted":
		return "run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once"
	}
	return ""
}

// outcome makes an error of the SDK one that package cloud names, where it has a name; nil for nil.
// Its text has the call, EC2's code and words, and what to do about it.
func outcome(name string, err error) error {
	if err == nil {
		return nil
	}
	var nobody *noCredentials
	if errors.As(err, &nobody) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w: no credentials: %w (give the machine an instance profile, or "+
			"the environment what `aws configure` asks for)", name, cloud.ErrDenied, nobody.error)
	}
	var api smithy.APIError
	if !errors.As(err, &api) {
		return unanswered(name, err)
	}
	text := said(api.ErrorCode(), api.ErrorMessage())
	switch classOf(api.ErrorCode()) {
	case quota:
		return fmt.Errorf("%s: %w: %s", name, cloud.ErrQuota, text)
	case denied:
		return fmt.Errorf("%s: %w: %s", name, cloud.ErrDenied, text)
	case throttled:
		return fmt.Errorf("%s: %w: %s", name, cloud.ErrThrottled, text)
	}
	return &apiError{name: name, code: api.ErrorCode(), text: text}
}

// An apiError is an answer of AWS's that package cloud has no name for.
type apiError struct{ name, code, text string }

func (e *apiError) Error() string { return e.name + ": " + e.text }

// said joins what EC2 said with what to do about it.
func said(code, message string) string {
	text := code
	if message != "" {
		text += ": " + message
	}
	if todo := advice(code, message); todo != "" {
		text += " (" + todo + ")"
	}
	return text
}

// unanswered names an error of a call that brought no answer: no connection, or no time left.
func unanswered(name string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", name, context.Canceled)
	}
	if tries, ok := errors.AsType[*retry.MaxAttemptsError](err); ok {
		return fmt.Errorf("%s: not answered in %d tries: %w", name, tries.Attempt, tries.Err)
	}
	return fmt.Errorf("%s: not answered: %w", name, err)
}

// namedCredentials hands out credentials, and names its errors, which the SDK's own do not tell
// from those of the call that the credentials are for.
type namedCredentials struct{ aws.CredentialsProvider }

type noCredentials struct{ error }

func (e *noCredentials) Unwrap() error { return e.error }

func (v namedCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	got, err := v.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return aws.Credentials{}, &noCredentials{err}
	}
	return got, nil
}
