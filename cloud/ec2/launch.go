package ec2

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
)

// An attempt is what is remembered of a slot's tokens. EC2 counts an answer without an instance as
// an answer: the token is spent, and asking with it again brings the same answer, or, with other
// parameters, IdempotentParameterMismatch. So each such answer moves the slot to its next token.
type attempt struct {
	n     int       // which token
	doubt time.Time // since when nobody knows what the token brought; zero: there is no doubt
	last  time.Time
}

const (
	// settle is how long after an answer that leaves open what a token brought an instance of it
	// would be listed. EC2 lists a new instance within seconds.
	settle = 2 * time.Minute
	// keepAttempt is how long EC2 may know a token, at least: a day after its instance has ended.
	keepAttempt = 25 * time.Hour
	// barredFor is for how long a zone is not asked again for a type that it does not offer.
	barredFor = 24 * time.Hour
)

// tokenOf is the client token of a slot's n-th attempt.
func tokenOf(fleet string, slot rent.Slot, n int) string {
	token := cloud.Token(fleet, slot)
	if n == 0 {
		return token
	}
	sum := sha256.Sum256([]byte(token + "/" + strconv.Itoa(n)))
	return hex.EncodeToString(sum[:16])
}

// Launch implements [cloud.Provider].
func (p *Provider) Launch(ctx context.Context, slot rent.Slot, spec cloud.Spec) (
	rent.Instance, error) {
	zones, err := p.subnetZones(ctx)
	if err != nil {
		return rent.Instance{}, err
	}
	overrides, asked := p.launchTargets(slot.Kind, zones, spec.Zones)
	if len(overrides) == 0 {
		return rent.Instance{}, &cloud.ErrShort{
			Kind: slot.Kind, Zones: zoneList(zones),
			Why: "no subnet of the fleet is in a zone that is left to ask",
		}
	}
	n := p.tokenNumber(slot)
	out, err := p.aws.createFleet(ctx,
		p.fleetRequest(slot, spec, overrides, tokenOf(p.config.Fleet, slot, n)))
	if other, ok := errors.AsType[*apiError](err); ok {
		switch classOf(other.code) {
		case mismatch:
			return p.adoptInstance(ctx, slot, n, err)
		case short, unoffered: // nothing was launched, as where each zone says so
			p.spendToken(slot, n)
			return rent.Instance{}, &cloud.ErrShort{Kind: slot.Kind, Zones: asked, Why: other.text}
		}
	}
	if err != nil {
		return rent.Instance{}, err
	}
	// An answer may have both: errors of some zones, and the instance of another.
	for _, set := range out.Instances {
		if len(set.InstanceIds) > 0 {
			p.trustToken(slot, n)
			return p.checkLaunched(ctx, slot, spec, set)
		}
	}
	if len(out.Errors) == 0 {
		return p.adoptInstance(ctx, slot, n,
			errors.New("ec2:CreateFleet: the answer has neither an instance nor an error"))
	}
	p.spendToken(slot, n)
	return rent.Instance{}, p.refusalError(slot.Kind, zones, asked, out.Errors)
}

// fleetRequest is the call for one instance, in whichever of the subnets has it. All of it follows
// from the slot and the spec, since EC2 refuses a token that comes with other parameters.
func (p *Provider) fleetRequest(slot rent.Slot, spec cloud.Spec,
	overrides []types.FleetLaunchTemplateOverridesRequest, token string) *ec2.CreateFleetInput {
	template := &types.FleetLaunchTemplateSpecificationRequest{
		Version: aws.String(p.config.TemplateVersion),
	}
	if strings.HasPrefix(p.config.Template, "lt-") {
		template.LaunchTemplateId = aws.String(p.config.Template)
	} else {
		template.LaunchTemplateName = aws.String(p.config.Template)
	}
	in := &ec2.CreateFleetInput{
		Type: types.FleetTypeInstant, ClientToken: aws.String(token),
		LaunchTemplateConfigs: []types.FleetLaunchTemplateConfigRequest{{
			LaunchTemplateSpecification: template, Overrides: overrides,
		}},
		TargetCapacitySpecification: &types.TargetCapacitySpecificationRequest{
			TotalTargetCapacity:       aws.Int32(1),
			DefaultTargetCapacityType: types.DefaultTargetCapacityTypeOnDemand,
		},
		TagSpecifications: p.launchTags(slot, spec),
	}
	if slot.Market == rent.Spot {
		in.TargetCapacitySpecification.DefaultTargetCapacityType =
			types.DefaultTargetCapacityTypeSpot
		in.SpotOptions = &types.SpotOptionsRequest{
			AllocationStrategy: types.SpotAllocationStrategyPriceCapacityOptimized,
		}
	} else {
		in.OnDemandOptions = &types.OnDemandOptionsRequest{
			AllocationStrategy: types.FleetOnDemandAllocationStrategyPrioritized,
		}
	}
	return in
}

// launchTags are those of all that a launch makes and that the call can tag. Requests for spot
// instances have theirs from the launch template.
func (p *Provider) launchTags(slot rent.Slot, spec cloud.Spec) []types.TagSpecification {
	tags := []types.Tag{
		tag(tagFleet, p.config.Fleet), tag(tagSlot, slot.String()),
		tag("Name", "muster "+p.config.Fleet+" "+slot.String()),
	}
	if spec.By != "" {
		tags = append(tags, tag(tagBy, spec.By))
	}
	if spec.Version != 0 {
		tags = append(tags, tag(tagVersion, strconv.FormatUint(spec.Version, 10)))
	}
	var all []types.TagSpecification
	for _, resource := range []types.ResourceType{
		types.ResourceTypeFleet, types.ResourceTypeInstance, types.ResourceTypeVolume,
		types.ResourceTypeNetworkInterface,
	} {
		all = append(all, types.TagSpecification{ResourceType: resource, Tags: tags})
	}
	return all
}

// launchTargets names the type and the subnets to ask, the preferred zones first, and those zones.
func (p *Provider) launchTargets(kind rent.Kind, zones map[string]string, wanted []string) (
	list []types.FleetLaunchTemplateOverridesRequest, asked []string) {
	if len(wanted) == 0 {
		wanted = zoneList(zones)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, zone := range wanted {
		if now.Before(p.barred[offerKey{kind, zone}]) {
			continue
		}
		for _, subnet := range slices.Sorted(maps.Keys(zones)) {
			if zones[subnet] != zone {
				continue
			}
			one := types.FleetLaunchTemplateOverridesRequest{
				InstanceType: types.InstanceType(kind.Type), SubnetId: aws.String(subnet),
			}
			if kind.Market == rent.OnDemand {
				one.Priority = aws.Float64(float64(len(list)))
			}
			list = append(list, one)
			asked = append(asked, zone)
		}
	}
	return list, slices.Compact(asked)
}

// tokenNumber is the number of the slot's token.
func (p *Provider) tokenNumber(slot rent.Slot) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts[slot].n
}

// trustToken notes that the slot's token n has brought an instance.
func (p *Provider) trustToken(slot rent.Slot, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.attempts[slot]; ok && a.n == n {
		p.attempts[slot] = attempt{n: n, last: time.Now()}
	}
}

// spendToken moves the slot from its token n to the next one.
func (p *Provider) spendToken(slot rent.Slot, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.attempts, func(_ rent.Slot, a attempt) bool {
		return now.Sub(a.last) > keepAttempt
	})
	if p.attempts[slot].n == n { // else another call has done it
		p.attempts[slot] = attempt{n: n + 1, last: now}
	}
}

// doubtToken notes that nobody knows what the slot's token n brought, and returns for how long.
func (p *Provider) doubtToken(slot rent.Slot, n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, now := p.attempts[slot], time.Now()
	if a.n != n {
		return 0
	}
	if a.doubt.IsZero() {
		a.doubt = now
	}
	a.last = now
	p.attempts[slot] = a
	return now.Sub(a.doubt)
}

// adoptInstance looks for the instance of a token whose answer does not tell it. Where none is
// listed, the token may have been answered with a shortage when another leader asked: it is given
// up once an instance of it would have been listed.
func (p *Provider) adoptInstance(ctx context.Context, slot rent.Slot, n int, why error) (
	rent.Instance, error) {
	list, err := p.List(ctx)
	if err != nil {
		return rent.Instance{}, fmt.Errorf("%w; and then: %w", why, err)
	}
	ended := false
	for _, i := range list {
		if i.Slot != slot {
			continue
		}
		if i.State == rent.Pending || i.State == rent.Running {
			p.trustToken(slot, n)
			return i, nil
		}
		ended = true
	}
	if ended {
		return rent.Instance{}, fmt.Errorf("%s: %w", slot, cloud.ErrSpent)
	}
	if p.doubtToken(slot, n) > settle {
		p.spendToken(slot, n)
	}
	return rent.Instance{}, fmt.Errorf("%w; no instance of %s is listed yet", why, slot)
}

// checkLaunched looks at the instance that an answer names: the answer is the same for a slot whose
// instance has ended in between. An instance that EC2 does not list yet is a new one.
func (p *Provider) checkLaunched(ctx context.Context, slot rent.Slot, spec cloud.Spec,
	set types.CreateFleetInstance) (rent.Instance, error) {
	id := set.InstanceIds[0]
	found, err := p.describeInstances(ctx, types.Filter{
		Name: aws.String("instance-id"), Values: []string{id},
	})
	if err == nil && len(found) > 0 {
		one, err := p.toInstance(found[0])
		switch {
		case err != nil:
			return rent.Instance{}, fmt.Errorf("instance %s, which EC2 gave for %s: %w", id, slot,
				err)
		case one.State == rent.Gone || one.State == rent.Stopping:
			return rent.Instance{}, fmt.Errorf("%s, instance %s: %w", slot, id, cloud.ErrSpent)
		}
		return one, nil
	}
	// It is rented, whether or not it can be looked at.
	zone := aws.ToString(set.AvailabilityZone)
	if o := set.LaunchTemplateAndOverrides; zone == "" && o != nil && o.Overrides != nil {
		zone = p.zoneOf(o.Overrides)
	}
	return rent.Instance{
		ID: id, Slot: slot, Zone: zone, State: rent.Pending, By: spec.By,
		Price: p.prices.knownPrice(slot.Kind, zone, p.config.Prices),
	}, nil
}

// zoneOf is the zone of what an answer says about a subnet; "" if it says none.
func (p *Provider) zoneOf(o *types.FleetLaunchTemplateOverrides) string {
	if zone := aws.ToString(o.AvailabilityZone); zone != "" {
		return zone
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.zones[aws.ToString(o.SubnetId)]
}

// refusalError makes one error of what the zones answered. Where they differ, what a person must
// mend comes first, then a quota, which is of the whole account.
func (p *Provider) refusalError(kind rent.Kind, zones map[string]string, asked []string,
	answers []types.CreateFleetError) error {
	why := map[errorClass][]string{}
	for _, e := range answers {
		code, zone := aws.ToString(e.ErrorCode), ""
		if e.LaunchTemplateAndOverrides != nil && e.LaunchTemplateAndOverrides.Overrides != nil {
			zone = p.zoneOf(e.LaunchTemplateAndOverrides.Overrides)
		}
		c := classOf(code)
		if c == unoffered {
			p.barZone(kind, zone)
		}
		text := said(code, aws.ToString(e.ErrorMessage))
		if zone != "" {
			text = zone + ": " + text
		}
		if !slices.Contains(why[c], text) {
			why[c] = append(why[c], text)
		}
	}
	text := func(c errorClass) string { return strings.Join(why[c], "; ") }
	for _, is := range []struct {
		class errorClass
		err   error
	}{{denied, cloud.ErrDenied}, {quota, cloud.ErrQuota}, {throttled, cloud.ErrThrottled}} {
		if len(why[is.class]) > 0 {
			return fmt.Errorf("ec2:CreateFleet: %s: %w: %s", kind, is.err, text(is.class))
		}
	}
	// A code that nobody knows came without an instance as well: asking again later is all that
	// can be done.
	var rest []string
	for _, c := range []errorClass{short, unoffered, unclear, mismatch} {
		rest = append(rest, why[c]...)
	}
	return &cloud.ErrShort{Kind: kind, Zones: asked, Why: strings.Join(rest, "; ")}
}

// barZone leaves a zone out for barredFor: it does not offer the kind.
func (p *Provider) barZone(kind rent.Kind, zone string) {
	if zone == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.barred[offerKey{kind, zone}] = time.Now().Add(barredFor)
}
