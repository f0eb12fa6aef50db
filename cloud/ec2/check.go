package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
)

// dryRunPassed is how EC2 says that a dry run would have succeeded.
const dryRunPassed = "DryRunOperation"

// Check implements [cloud.Provider]. It rents nothing: calls that would are made as dry runs. It
// cannot see quotas, nor whether there is capacity.
func (p *Provider) Check(ctx context.Context) []cloud.Fault {
	var faults []cloud.Fault
	found := func(what string, err error) {
		if err != nil {
			faults = append(faults, cloud.Fault{What: what, Why: err.Error()})
		}
	}
	if _, err := p.Account(ctx); err != nil {
		// Nothing else can succeed, and all would say the same.
		return []cloud.Fault{{What: "credentials", Why: err.Error()}}
	}
	found("launch template "+p.config.Template, p.checkTemplate(ctx))
	zones, err := p.subnetZones(ctx)
	found("subnets", err)
	if err == nil {
		found("subnets", p.checkAddresses(ctx))
	}
	list, err := p.List(ctx)
	found("ec2:DescribeInstances", err)
	found("instance types", p.checkTypes(ctx, zones))
	if len(p.config.Types) > 0 && len(zones) > 0 {
		kind := rent.Kind{Type: p.config.Types[0]}
		found("ec2:CreateFleet", p.tryFleet(ctx, kind, zones))
		found("ec2:RunInstances", p.tryRun(ctx, kind, p.config.Subnets[0]))
		_, err := p.askOnDemand(ctx, kind.Type)
		found("pricing:GetProducts (else the catalogue's prices are used)", err)
		found("ec2:DescribeSpotPriceHistory", p.learnSpot(ctx, p.config.Types))
	}
	// Rights to end and to tag can be tried only on an instance.
	for _, i := range list {
		if i.State == rent.Running {
			found("ec2:TerminateInstances", p.tryReturn(ctx, i.ID))
			found("ec2:CreateTags", p.tryMark(ctx, i.ID))
			break
		}
	}
	return faults
}

// Account is the number of the account that the credentials are of.
func (p *Provider) Account(ctx context.Context) (string, error) {
	out, err := p.aws.getCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", err
	}
	return aws.ToString(out.Account), nil
}

// dryRun is nil where EC2 says that the call would have succeeded.
func dryRun(name string, err error) error {
	if other, ok := errors.AsType[*apiError](err); ok && other.code == dryRunPassed {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s: AWS answered a dry run like a call that does something", name)
	}
	return err
}

// trial is the slot that dry runs ask for.
func trial(kind rent.Kind) rent.Slot { return rent.Slot{Kind: kind} }

func (p *Provider) tryFleet(ctx context.Context, kind rent.Kind, zones map[string]string) error {
	overrides, _ := p.launchTargets(kind, zones, nil)
	in := p.fleetRequest(trial(kind), cloud.Spec{}, overrides, "")
	in.ClientToken, in.DryRun = nil, aws.Bool(true)
	_, err := p.aws.createFleet(ctx, in)
	return dryRun("ec2:CreateFleet", err)
}

// tryRun asks for the rights that CreateFleet needs of whoever calls it, and that its own dry run
// does not look at.
func (p *Provider) tryRun(ctx context.Context, kind rent.Kind, subnet string) error {
	fleet := p.fleetRequest(trial(kind), cloud.Spec{}, nil, "")
	template := fleet.LaunchTemplateConfigs[0].LaunchTemplateSpecification
	in := &ec2.RunInstancesInput{
		DryRun: aws.Bool(true), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		InstanceType: types.InstanceType(kind.Type), SubnetId: aws.String(subnet),
		LaunchTemplate: &types.LaunchTemplateSpecification{
			LaunchTemplateId: template.LaunchTemplateId, Version: template.Version,
			LaunchTemplateName: template.LaunchTemplateName,
		},
	}
	for _, t := range fleet.TagSpecifications {
		if t.ResourceType != types.ResourceTypeFleet {
			in.TagSpecifications = append(in.TagSpecifications, t)
		}
	}
	_, err := p.aws.runInstances(ctx, in)
	return dryRun("ec2:RunInstances", err)
}

func (p *Provider) tryReturn(ctx context.Context, id string) error {
	_, err := p.aws.terminateInstances(ctx, &ec2.TerminateInstancesInput{
		DryRun: aws.Bool(true), InstanceIds: []string{id},
	})
	return dryRun("ec2:TerminateInstances", err)
}

func (p *Provider) tryMark(ctx context.Context, id string) error {
	_, err := p.aws.createTags(ctx, &ec2.CreateTagsInput{
		DryRun: aws.Bool(true), Resources: []string{id},
		Tags: []types.Tag{tag(tagState, stateDraining)},
	})
	return dryRun("ec2:CreateTags", err)
}

// readTemplate is what the configured version of the launch template holds, and the template's id.
func (p *Provider) readTemplate(ctx context.Context) (*types.ResponseLaunchTemplateData, string,
	error) {
	in := &ec2.DescribeLaunchTemplateVersionsInput{Versions: []string{p.config.TemplateVersion}}
	if strings.HasPrefix(p.config.Template, "lt-") {
		in.LaunchTemplateId = aws.String(p.config.Template)
	} else {
		in.LaunchTemplateName = aws.String(p.config.Template)
	}
	out, err := p.aws.describeLaunchTemplateVersions(ctx, in)
	if err != nil {
		return nil, "", err
	}
	if len(out.LaunchTemplateVersions) != 1 ||
		out.LaunchTemplateVersions[0].LaunchTemplateData == nil {
		return nil, "", fmt.Errorf("%w: it has no version %s", cloud.ErrDenied,
			p.config.TemplateVersion)
	}
	version := out.LaunchTemplateVersions[0]
	return version.LaunchTemplateData, aws.ToString(version.LaunchTemplateId), nil
}

// checkTemplate says what of the template would leak instances, or let others into them.
func (p *Provider) checkTemplate(ctx context.Context) error {
	t, _, err := p.readTemplate(ctx)
	if err != nil {
		return err
	}
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("version %s: %w", p.config.TemplateVersion,
				fmt.Errorf(format, args...)))
		}
	}
	want(aws.ToString(t.ImageId) != "", "it names no image")
	want(t.InstanceInitiatedShutdownBehavior == types.ShutdownBehaviorTerminate,
		"InstanceInitiatedShutdownBehavior is %q, want terminate: else a machine that powers off "+
			"is paid for on", t.InstanceInitiatedShutdownBehavior)
	m := t.MetadataOptions
	want(m != nil && m.HttpTokens == types.LaunchTemplateHttpTokensStateRequired,
		"MetadataOptions.HttpTokens is not required")
	want(m != nil && m.InstanceMetadataTags == types.LaunchTemplateInstanceMetadataTagsStateEnabled,
		"MetadataOptions.InstanceMetadataTags is not enabled: agents read their slot there")
	want(t.InstanceMarketOptions == nil, "it has InstanceMarketOptions, which the fleet decides on")
	for _, n := range t.NetworkInterfaces {
		want(!aws.ToBool(n.AssociatePublicIpAddress), "a network interface has a public address")
	}
	return errors.Join(faults...)
}

// checkAddresses says which subnets have hardly an address left.
func (p *Provider) checkAddresses(ctx context.Context) error {
	out, err := p.aws.describeSubnets(ctx, &ec2.DescribeSubnetsInput{
		Filters: []types.Filter{{Name: aws.String("subnet-id"), Values: p.config.Subnets}},
	})
	if err != nil {
		return err
	}
	const fewest = 8
	var faults []error
	for _, s := range out.Subnets {
		if n := aws.ToInt32(s.AvailableIpAddressCount); n < fewest {
			faults = append(faults, fmt.Errorf("%s has %d addresses left, want %d",
				aws.ToString(s.SubnetId), n, fewest))
		}
	}
	return errors.Join(faults...)
}

// checkTypes says which of the fleet's types are no machines that run Muster, or are not to be had
// in the subnets' zones.
func (p *Provider) checkTypes(ctx context.Context, zones map[string]string) error {
	if len(p.config.Types) == 0 {
		return nil
	}
	if err := p.learnOffered(ctx, p.config.Types); err != nil {
		return err
	}
	var faults []error
	var ask []types.InstanceType
	for _, t := range p.config.Types {
		p.prices.mu.Lock()
		offered := p.prices.offered[t].zones
		p.prices.mu.Unlock()
		if len(offered) == 0 {
			faults = append(faults, fmt.Errorf("%s is not offered in %s", t, p.config.Region))
			continue
		}
		ask = append(ask, types.InstanceType(t))
		if len(zones) > 0 && !slices.ContainsFunc(zoneList(zones),
			func(zone string) bool { return slices.Contains(offered, zone) }) {
			faults = append(faults, fmt.Errorf("%s is offered in %s, and the subnets are in %s", t,
				strings.Join(offered, ", "), strings.Join(zoneList(zones), ", ")))
		}
	}
	if len(ask) == 0 {
		return errors.Join(faults...)
	}
	out, err := p.aws.describeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{
		InstanceTypes: ask,
	})
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	for _, t := range out.InstanceTypes {
		if t.ProcessorInfo != nil && !slices.Contains(t.ProcessorInfo.SupportedArchitectures,
			types.ArchitectureTypeX8664) {
			faults = append(faults,
				fmt.Errorf("%s has the architecture %v, and the profiles are "+
					"of x86_64", t.InstanceType, t.ProcessorInfo.SupportedArchitectures))
		}
	}
	return errors.Join(faults...)
}

// Scope is what a keeper's policy is to be bounded by, as far as AWS tells it.
func (p *Provider) Scope(ctx context.Context) (PolicyScope, error) {
	s := PolicyScope{Fleet: p.config.Fleet, Region: p.config.Region, Types: p.config.Types}
	var err error
	if s.Account, err = p.Account(ctx); err != nil {
		return s, err
	}
	t, id, err := p.readTemplate(ctx)
	if err != nil {
		return s, err
	}
	s.Template, s.Image, s.Groups = id, aws.ToString(t.ImageId), t.SecurityGroupIds
	for _, n := range t.NetworkInterfaces {
		s.Groups = append(s.Groups, n.Groups...)
	}
	return s, nil
}
