package ec2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// The tags of an instance of ours. All but tagState go with the call that launches it.
const (
	tagFleet   = "muster:fleet"   // the fleet's name
	tagSlot    = "muster:slot"    // as rent.Slot writes it
	tagBy      = "muster:by"      // the fleet's identity, see rent.Instance
	tagVersion = "muster:version" // of the desired state that asked for it
	tagState   = "muster:state"   // stateDraining, once Mark was called

	stateDraining = "draining"
)

// Settings say where and from what a fleet's instances are launched: the part ec2 of fleet.yaml.
type Settings struct {
	Region string `json:"region"`
	// Template is the launch template's id (lt-...) or name.
	Template string `json:"template"`
	// TemplateVersion is a number: $Latest and $Default change under a fleet's feet.
	TemplateVersion string `json:"template_version"`
	// Subnets are ids, one or more of each zone to rent in.
	Subnets []string `json:"subnets"`
}

var (
	regionName  = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d$`)
	subnetID    = regexp.MustCompile(`^subnet-[0-9a-f]{8,17}$`)
	templateRef = regexp.MustCompile(`^[a-zA-Z0-9().\-/_]{3,128}$`)
	fleetName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
)

// Validate returns all faults, joined; each names the setting, what it is and what is wanted.
func (s Settings) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if !regionName.MatchString(s.Region) {
		fault("ec2.region: %q, want a region such as us-east-1", s.Region)
	}
	if !templateRef.MatchString(s.Template) {
		fault("ec2.template: %q, want a launch template's id (lt-...) or name", s.Template)
	}
	if n, err := strconv.ParseUint(s.TemplateVersion, 10, 31); err != nil || n == 0 {
		fault("ec2.template_version: %q, want the number of a version, from 1 on: $Latest and "+
			"$Default would change what is rented without anybody deciding it", s.TemplateVersion)
	}
	if len(s.Subnets) == 0 {
		fault("ec2.subnets: none, want at least one id (subnet-...)")
	}
	for i, id := range s.Subnets {
		if !subnetID.MatchString(id) {
			fault("ec2.subnets: %q, want an id such as subnet-0123456789abcdef0", id)
		} else if slices.Index(s.Subnets, id) < i {
			fault("ec2.subnets: %s is there twice", id)
		}
	}
	return errors.Join(faults...)
}

// Config is what a Provider is made with.
type Config struct {
	Settings
	// Fleet is the fleet's name: 1 to 63 letters, digits, dots, underscores and hyphens.
	Fleet string
	// Types are those that the fleet may rent: Check asks for them.
	Types []profiles.InstanceType
	// Prices are the catalogue's in $/hr, for when AWS does not tell them.
	Prices map[profiles.InstanceType]float64
	// StateDir is where prices are kept over a restart; "" keeps them in memory alone.
	StateDir string
	Log      *slog.Logger

	// Endpoint is the URL of all services, for tests; "" are AWS's own.
	Endpoint string

	client aws.HTTPClient // nil: the SDK's own
}

// newRetryer tries again, mostTries times in all, and asks less often once AWS has throttled. With
// a client of its own, as in virtual time, it does not ask less often: there the SDK would wait for
// less than a nanosecond, for ever.
func (c Config) newRetryer() aws.Retryer {
	tries := func(o *retry.StandardOptions) { o.MaxAttempts = maxTries }
	if c.client != nil {
		return retry.NewStandard(tries)
	}
	return retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) {
		o.StandardOptions = append(o.StandardOptions, tries)
	})
}

// A Provider implements [cloud.Provider].
type Provider struct {
	config Config
	log    *slog.Logger
	aws    services
	prices priceBook

	mu       sync.Mutex
	zones    map[string]string // by subnet; nil until they were asked for
	barred   map[offerKey]time.Time
	attempts map[rent.Slot]attempt
}

// An offerKey is a place where a kind may be had. It is the one key of what is remembered of these.
type offerKey struct {
	rent.Kind
	zone string
}

const (
	callTimeout = 30 * time.Second
	maxCalls    = 4
	maxTries    = 5
	pageSize    = 1000
)

// Open makes a provider. It reads files (credentials, settings of AWS's own tools) but calls
// nobody: Check tells whether the calls succeed.
func Open(ctx context.Context, c Config) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !fleetName.MatchString(c.Fleet) {
		return nil, fmt.Errorf("fleet: %q, want 1 to 63 letters, digits, '.', '_' and '-'", c.Fleet)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	loaded, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		config: c, log: c.Log, aws: servicesOf(loaded, c.Region),
		barred:   map[offerKey]time.Time{},
		attempts: map[rent.Slot]attempt{},
	}
	p.prices.open(c.StateDir, c.Region, c.Log)
	return p, nil
}

// load reads the settings and credentials of AWS's own tools.
func (c Config) load(ctx context.Context) (aws.Config, error) {
	options := []func(*config.LoadOptions) error{
		config.WithRegion(c.Region), config.WithRetryer(c.newRetryer),
	}
	if c.client != nil {
		options = append(options, config.WithHTTPClient(c.client))
	}
	if c.Endpoint != "" {
		options = append(options, config.WithBaseEndpoint(c.Endpoint))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return loaded, fmt.Errorf("settings of AWS: %w", err)
	}
	loaded.Credentials = aws.NewCredentialsCache(namedCredentials{loaded.Credentials})
	return loaded, nil
}

// awsCall is one call of AWS, with an error of package cloud's.
type awsCall[In, Out any] func(context.Context, In) (Out, error)

// limitCall is a call of a client's, of which as many as calls holds run at a time, each within
// callTimeout.
func limitCall[In, Out, Opt any](calls chan struct{}, name string,
	do func(context.Context, In, ...func(*Opt)) (Out, error)) awsCall[In, Out] {
	return func(ctx context.Context, in In) (Out, error) {
		select {
		case calls <- struct{}{}:
		case <-ctx.Done():
			var none Out
			return none, fmt.Errorf("%s: %w", name, ctx.Err())
		}
		defer func() { <-calls }()
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		out, err := do(ctx, in)
		return out, outcome(name, err)
	}
}

// services are the calls that this package makes. They are functions, and no field has a client's
// type: what a type of a client is reached by at run time, the linker keeps all of its methods for,
// which are 34 MB of ec2's 700.
type services struct {
	describeInstances  awsCall[*ec2.DescribeInstancesInput, *ec2.DescribeInstancesOutput]
	createFleet        awsCall[*ec2.CreateFleetInput, *ec2.CreateFleetOutput]
	createTags         awsCall[*ec2.CreateTagsInput, *ec2.CreateTagsOutput]
	terminateInstances awsCall[*ec2.TerminateInstancesInput,
		*ec2.TerminateInstancesOutput]
	describeSubnets               awsCall[*ec2.DescribeSubnetsInput, *ec2.DescribeSubnetsOutput]
	describeInstanceTypeOfferings awsCall[*ec2.DescribeInstanceTypeOfferingsInput,
		*ec2.DescribeInstanceTypeOfferingsOutput]
	describeInstanceTypes awsCall[*ec2.DescribeInstanceTypesInput,
		*ec2.DescribeInstanceTypesOutput]
	describeSpotPriceHistory awsCall[*ec2.DescribeSpotPriceHistoryInput,
		*ec2.DescribeSpotPriceHistoryOutput]
	describeLaunchTemplateVersions awsCall[*ec2.DescribeLaunchTemplateVersionsInput,
		*ec2.DescribeLaunchTemplateVersionsOutput]
	runInstances      awsCall[*ec2.RunInstancesInput, *ec2.RunInstancesOutput]
	getProducts       awsCall[*pricing.GetProductsInput, *pricing.GetProductsOutput]
	getCallerIdentity awsCall[*sts.GetCallerIdentityInput, *sts.GetCallerIdentityOutput]
}

// servicesOf are those of a configuration.
func servicesOf(loaded aws.Config, region string) services {
	calls := make(chan struct{}, maxCalls)
	to := ec2.NewFromConfig(loaded)
	prices := pricing.NewFromConfig(loaded, func(o *pricing.Options) {
		o.Region = priceRegion(region)
	})
	return services{
		describeInstances:  limitCall(calls, "ec2:DescribeInstances", to.DescribeInstances),
		createFleet:        limitCall(calls, "ec2:CreateFleet", to.CreateFleet),
		createTags:         limitCall(calls, "ec2:CreateTags", to.CreateTags),
		terminateInstances: limitCall(calls, "ec2:TerminateInstances", to.TerminateInstances),
		describeSubnets:    limitCall(calls, "ec2:DescribeSubnets", to.DescribeSubnets),
		describeInstanceTypeOfferings: limitCall(calls, "ec2:DescribeInstanceTypeOfferings",
			to.DescribeInstanceTypeOfferings),
		describeInstanceTypes: limitCall(calls, "ec2:DescribeInstanceTypes",
			to.DescribeInstanceTypes),
		describeSpotPriceHistory: limitCall(calls, "ec2:DescribeSpotPriceHistory",
			to.DescribeSpotPriceHistory),
		describeLaunchTemplateVersions: limitCall(calls, "ec2:DescribeLaunchTemplateVersions",
			to.DescribeLaunchTemplateVersions),
		runInstances: limitCall(calls, "ec2:RunInstances", to.RunInstances),
		getProducts:  limitCall(calls, "pricing:GetProducts", prices.GetProducts),
		getCallerIdentity: limitCall(calls, "sts:GetCallerIdentity",
			sts.NewFromConfig(loaded).GetCallerIdentity),
	}
}

// List implements [cloud.Provider].
func (p *Provider) List(ctx context.Context) ([]rent.Instance, error) {
	found, err := p.describeInstances(ctx, types.Filter{
		Name: aws.String("tag:" + tagFleet), Values: []string{p.config.Fleet},
	})
	if err != nil {
		return nil, err
	}
	list := make([]rent.Instance, 0, len(found))
	for _, i := range found {
		ours, err := p.toInstance(i)
		if err != nil {
			p.log.Warn("Muster ignores an instance that has the fleet's tag",
				"instance", aws.ToString(i.InstanceId), "error", err)
			continue
		}
		list = append(list, ours)
	}
	slices.SortFunc(list, func(a, b rent.Instance) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// describeInstances asks for all instances that the filter lets through, page by page. One page
// without an answer is an error: an unanswered list is unknown, never empty.
func (p *Provider) describeInstances(ctx context.Context, filter types.Filter) ([]types.Instance,
	error) {
	var found []types.Instance
	in := &ec2.DescribeInstancesInput{
		Filters: []types.Filter{filter}, MaxResults: aws.Int32(pageSize),
	}
	for {
		out, err := p.aws.describeInstances(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, r := range out.Reservations {
			found = append(found, r.Instances...)
		}
		if aws.ToString(out.NextToken) == "" {
			return found, nil
		}
		in.NextToken = out.NextToken
	}
}

// toInstance is what the fleet calls an instance of EC2's. It refuses one whose tags are not
// as Launch writes them.
func (p *Provider) toInstance(i types.Instance) (rent.Instance, error) {
	tags := tagsOf(i.Tags)
	if got := tags[tagFleet]; got != p.config.Fleet {
		return rent.Instance{}, fmt.Errorf("tag %s is %q, want %q", tagFleet, got, p.config.Fleet)
	}
	slot, err := rent.ParseSlotTag(tags[tagSlot])
	if err != nil {
		return rent.Instance{}, fmt.Errorf("tag %s: %w", tagSlot, err)
	}
	ours := rent.Instance{
		ID: aws.ToString(i.InstanceId), Slot: slot, By: tags[tagBy],
		Drained: tags[tagState] == stateDraining,
		// EC2's own tag; where a fleet changes to another template, that has another version.
		Template: tags["aws:ec2launchtemplate:version"],
	}
	if i.Placement != nil {
		ours.Zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	if i.LaunchTime != nil {
		ours.Age = max(0, time.Since(*i.LaunchTime))
	}
	if ours.State, err = stateOf(i.State); err != nil {
		return rent.Instance{}, err
	}
	ours.Price = p.prices.knownPrice(slot.Kind, ours.Zone, p.config.Prices)
	return ours, nil
}

func tagsOf(list []types.Tag) map[string]string {
	tags := make(map[string]string, len(list))
	for _, t := range list {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return tags
}

func stateOf(s *types.InstanceState) (rent.InstanceState, error) {
	if s == nil {
		return 0, errors.New("EC2 gives no state")
	}
	switch s.Name {
	case types.InstanceStateNamePending:
		return rent.Pending, nil
	case types.InstanceStateNameRunning:
		return rent.Running, nil
	// A stopped instance costs its disk and serves nothing. The template's machines end when they
	// are stopped; where somebody has stopped one by hand, it counts as going.
	case types.InstanceStateNameShuttingDown, types.InstanceStateNameStopping,
		types.InstanceStateNameStopped:
		return rent.Stopping, nil
	case types.InstanceStateNameTerminated:
		return rent.Gone, nil
	}
	return 0, fmt.Errorf("EC2 gives the state %q, which Muster does not know", s.Name)
}

// Mark implements [cloud.Provider].
func (p *Provider) Mark(ctx context.Context, ids ...string) error {
	ours, err := p.ownLiveIDs(ctx, ids)
	if err != nil || len(ours) == 0 {
		return err
	}
	_, err = p.aws.createTags(ctx, &ec2.CreateTagsInput{
		Resources: ours, Tags: []types.Tag{tag(tagState, stateDraining)},
	})
	return err
}

// Return implements [cloud.Provider].
func (p *Provider) Return(ctx context.Context, ids ...string) error {
	ours, err := p.ownLiveIDs(ctx, ids)
	if err != nil || len(ours) == 0 {
		return err
	}
	_, err = p.aws.terminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ours})
	return err
}

// ownLiveIDs asks EC2 for the ids and returns those that have not ended. It refuses all of them if
// one is not of this fleet. EC2 knows an ended instance for about an hour, so an id that it does
// not know is none to end; nor is one so new that it does not know it yet, which the next list has.
func (p *Provider) ownLiveIDs(ctx context.Context, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var ours []string
	const maxValues = 200 // of a filter
	for some := range slices.Chunk(ids, maxValues) {
		// By a filter: a call that names an unknown id fails for all of them.
		found, err := p.describeInstances(ctx, types.Filter{
			Name: aws.String("instance-id"), Values: some,
		})
		if err != nil {
			return nil, err
		}
		for _, i := range found {
			one, err := p.toInstance(i)
			if err != nil {
				return nil, fmt.Errorf("%w: instance %s is not of the fleet %s: %w",
					cloud.ErrDenied, aws.ToString(i.InstanceId), p.config.Fleet, err)
			}
			if one.State == rent.Pending || one.State == rent.Running ||
				i.State.Name == types.InstanceStateNameStopped {
				ours = append(ours, one.ID)
			}
		}
	}
	slices.Sort(ours)
	return ours, nil
}

func tag(key, value string) types.Tag {
	return types.Tag{Key: aws.String(key), Value: aws.String(value)}
}

// subnetZones are the zones of the configured subnets, by subnet. They do not change, so they are
// asked for once.
func (p *Provider) subnetZones(ctx context.Context) (map[string]string, error) {
	p.mu.Lock()
	known := p.zones
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	// By a filter: a call that names an unknown id fails for all of them, and says only the first.
	out, err := p.aws.describeSubnets(ctx, &ec2.DescribeSubnetsInput{
		Filters: []types.Filter{{Name: aws.String("subnet-id"), Values: p.config.Subnets}},
	})
	if err != nil {
		return nil, err
	}
	zones := map[string]string{}
	for _, s := range out.Subnets {
		zones[aws.ToString(s.SubnetId)] = aws.ToString(s.AvailabilityZone)
	}
	for _, id := range p.config.Subnets {
		if zones[id] == "" {
			return nil, fmt.Errorf(
				"%w: ec2.subnets: %s is not in %s, or this account may not see it",
				cloud.ErrDenied, id, p.config.Region)
		}
	}
	p.mu.Lock()
	p.zones = zones
	p.mu.Unlock()
	return zones, nil
}

// zoneList are the zones of the subnets, sorted, each once.
func zoneList(zones map[string]string) []string {
	return slices.Compact(slices.Sorted(maps.Values(zones)))
}
