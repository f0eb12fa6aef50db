package ec2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	pricingtypes "github.com/aws/aws-sdk-go-v2/service/pricing/types"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

const (
	keepOnDemand = 24 * time.Hour
	keepSpot     = 5 * time.Minute
	// keepCatalogue is for how long AWS is not asked again for a price that it did not tell.
	keepCatalogue = time.Hour
	// dearest is above any price of an instance: an answer beyond it was misread.
	dearest = 1000.0 // $/hr
)

// A price is one in $/hr, and when it was told.
type price struct {
	USD float64   `json:"usd_per_hour"`
	At  time.Time `json:"at"`
}

// A priceBook keeps prices and where types are offered. It may be used concurrently.
type priceBook struct {
	file string // "" keeps nothing over a restart
	log  *slog.Logger

	mu       sync.Mutex
	onDemand map[profiles.InstanceType]price
	doubtful map[profiles.InstanceType]time.Time // since when the catalogue's price is used
	offered  map[profiles.InstanceType]zoneOffer
	spot     map[offerKey]price
	spotAt   map[profiles.InstanceType]time.Time // when AWS was asked
}

// zoneOffer is in which zones of the region a type can be had at all.
type zoneOffer struct {
	zones []string
	at    time.Time
}

// open reads the prices that an earlier process kept. A file that cannot be read is
// as good as none.
func (b *priceBook) open(dir, region string, log *slog.Logger) {
	b.log = log
	b.onDemand = map[profiles.InstanceType]price{}
	b.doubtful = map[profiles.InstanceType]time.Time{}
	b.offered = map[profiles.InstanceType]zoneOffer{}
	b.spot = map[offerKey]price{}
	b.spotAt = map[profiles.InstanceType]time.Time{}
	if dir == "" {
		return
	}
	b.file = filepath.Join(dir, "ec2-prices-"+region+".json")
	content, err := os.ReadFile(b.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	kept := map[profiles.InstanceType]price{}
	if err == nil {
		err = json.Unmarshal(content, &kept)
	}
	if err != nil {
		log.Warn("cannot read the stored prices", "file", b.file, "error", err)
		return
	}
	maps.DeleteFunc(kept,
		func(_ profiles.InstanceType, p price) bool { return !isPlausiblePrice(p.USD) })
	b.onDemand = kept
}

// isPlausiblePrice reports whether a price can be one.
func isPlausiblePrice(usd float64) bool { return usd > 0 && usd < dearest && !math.IsNaN(usd) }

// knownPrice is what is known of a kind's price in a zone, without asking: on demand what AWS said
// last, else the catalogue's; for spot the zone's, else the dearest zone's, else that on demand,
// which a spot price is at most. 0 if nobody knows.
func (b *priceBook) knownPrice(kind rent.Kind, zone string,
	catalogue map[profiles.InstanceType]float64) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if kind.Market == rent.Spot {
		if p, ok := b.spot[offerKey{kind, zone}]; ok {
			return p.USD
		}
		most := 0.0
		for key, p := range b.spot {
			if key.Kind == kind {
				most = max(most, p.USD)
			}
		}
		if most > 0 {
			return most
		}
	}
	if p, ok := b.onDemand[kind.Type]; ok {
		return p.USD
	}
	return catalogue[kind.Type]
}

// Offers implements [cloud.Provider]. A price on demand that AWS does not tell is that of the
// catalogue, and the log says so; so is a list of spot prices that AWS does not tell: there are
// none then, or those told last.
func (p *Provider) Offers(ctx context.Context, of []profiles.InstanceType) ([]cloud.Offer, error) {
	subnets, err := p.subnetZones(ctx)
	if err != nil {
		return nil, err
	}
	ours := zoneList(subnets)
	if err := p.learnOffered(ctx, of); err != nil {
		return nil, err
	}
	b := &p.prices
	b.mu.Lock()
	of = slices.DeleteFunc(slices.Clone(of), func(t profiles.InstanceType) bool {
		return !slices.ContainsFunc(b.offered[t].zones,
			func(zone string) bool { return slices.Contains(ours, zone) })
	})
	b.mu.Unlock()
	for _, t := range of {
		if err := p.learnOnDemand(ctx, t); err != nil {
			return nil, err
		}
	}
	if err := p.learnSpot(ctx, of); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		p.log.Warn("cannot read spot prices", "error", err)
	}
	var offers []cloud.Offer
	for _, t := range of {
		b.mu.Lock()
		zones := b.offered[t].zones
		b.mu.Unlock()
		onDemand := rent.Kind{Type: t, Market: rent.OnDemand}
		spot := rent.Kind{Type: t, Market: rent.Spot}
		for _, zone := range zones {
			if !slices.Contains(ours, zone) {
				continue
			}
			if usd := b.knownPrice(onDemand, zone, p.config.Prices); usd > 0 {
				offers = append(offers, cloud.Offer{Kind: onDemand, Zone: zone, Price: usd})
			}
			b.mu.Lock()
			told, ok := b.spot[offerKey{spot, zone}]
			b.mu.Unlock()
			if ok {
				offers = append(offers, cloud.Offer{Kind: spot, Zone: zone, Price: told.USD})
			}
		}
	}
	return offers, nil
}

// learnOffered asks in which zones those types are offered of which it is not known.
func (p *Provider) learnOffered(ctx context.Context, of []profiles.InstanceType) error {
	b, now := &p.prices, time.Now()
	b.mu.Lock()
	var ask []string
	for _, t := range of {
		if o, ok := b.offered[t]; !ok || now.Sub(o.at) > keepOnDemand {
			ask = append(ask, string(t))
		}
	}
	b.mu.Unlock()
	const maxValues = 100
	for some := range slices.Chunk(ask, maxValues) {
		found := map[profiles.InstanceType][]string{}
		in := &ec2.DescribeInstanceTypeOfferingsInput{
			LocationType: types.LocationTypeAvailabilityZone, MaxResults: aws.Int32(pageSize),
			Filters: []types.Filter{{Name: aws.String("instance-type"), Values: some}},
		}
		for {
			out, err := p.aws.describeInstanceTypeOfferings(ctx, in)
			if err != nil {
				return err
			}
			for _, o := range out.InstanceTypeOfferings {
				t := profiles.InstanceType(o.InstanceType)
				found[t] = append(found[t], aws.ToString(o.Location))
			}
			if aws.ToString(out.NextToken) == "" {
				break
			}
			in.NextToken = out.NextToken
		}
		b.mu.Lock()
		for _, t := range some {
			zones := found[profiles.InstanceType(t)]
			slices.Sort(zones)
			b.offered[profiles.InstanceType(t)] = zoneOffer{zones, now}
		}
		b.mu.Unlock()
	}
	return nil
}

// learnOnDemand asks for the price of a type, unless it was told within keepOnDemand. It fails only
// where ctx has ended.
func (p *Provider) learnOnDemand(ctx context.Context, t profiles.InstanceType) error {
	b, now := &p.prices, time.Now()
	b.mu.Lock()
	told, ok := b.onDemand[t]
	fresh := ok && now.Sub(told.At) <= keepOnDemand || now.Sub(b.doubtful[t]) <= keepCatalogue
	b.mu.Unlock()
	if fresh {
		return nil
	}
	usd, err := p.askOnDemand(ctx, t)
	if ctx.Err() != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.doubtful[t] = now
		instead := "none: the type is not rented"
		if ok {
			instead = fmt.Sprintf("$%g/hr, which AWS said on %s", told.USD,
				told.At.UTC().Format(time.DateOnly))
		} else if known := p.config.Prices[t]; known > 0 {
			instead = fmt.Sprintf("$%g/hr, the catalogue's", known)
		}
		b.log.Warn("AWS gives no valid price", "instance_type", string(t), "used", instead,
			"error", err)
		return nil
	}
	b.onDemand[t] = price{usd, now}
	b.storePrices()
	return nil
}

// storePrices writes the prices on demand. Without them the next process asks again, so a fault is
// only told. The caller holds mu.
func (b *priceBook) storePrices() {
	if b.file == "" {
		return
	}
	content, err := json.MarshalIndent(b.onDemand, "", "  ")
	if err == nil {
		err = files.Replace(b.file, append(content, '\n'), 0o644)
	}
	if err != nil {
		b.log.Warn("cannot store prices", "file", b.file, "error", err)
	}
}

// priceRegion is where the price list of a region can be asked for: the service pricing is in few.
func priceRegion(region string) string {
	switch area, _, _ := strings.Cut(region, "-"); area {
	case "cn":
		return "cn-northwest-1"
	case "ap":
		return "ap-south-1"
	case "eu":
		return "eu-central-1"
	}
	return "us-east-1"
}

// askOnDemand asks AWS's price list: Linux, shared tenancy, no licence.
func (p *Provider) askOnDemand(ctx context.Context, t profiles.InstanceType) (float64, error) {
	var filters []pricingtypes.Filter
	for _, f := range [][2]string{
		{"instanceType", string(t)}, {"regionCode", p.config.Region}, {"operatingSystem", "Linux"},
		{"tenancy", "Shared"}, {"preInstalledSw", "NA"}, {"capacitystatus", "Used"},
	} {
		filters = append(filters, pricingtypes.Filter{
			Type: pricingtypes.FilterTypeTermMatch, Field: aws.String(f[0]),
			Value: aws.String(f[1]),
		})
	}
	out, err := p.aws.getProducts(ctx, &pricing.GetProductsInput{
		ServiceCode: aws.String("AmazonEC2"), FormatVersion: aws.String("aws_v1"),
		Filters: filters,
	})
	if err != nil {
		return 0, err
	}
	usd, err := parsePrices(out.PriceList)
	if err != nil {
		return 0, fmt.Errorf("pricing:GetProducts: %s in %s: %w", t, p.config.Region, err)
	}
	return usd, nil
}

// parsePrices reads the one hourly price on demand in a price list, each entry of which is the JSON
// of a product. A product can have other terms, and a price of 0 for what is already paid.
func parsePrices(list []string) (float64, error) {
	found := map[float64]bool{}
	for _, text := range list {
		var product struct {
			Terms struct {
				OnDemand map[string]struct {
					PriceDimensions map[string]struct {
						Unit         string            `json:"unit"`
						PricePerUnit map[string]string `json:"pricePerUnit"`
					} `json:"priceDimensions"`
				}
			} `json:"terms"`
		}
		if err := json.Unmarshal([]byte(text), &product); err != nil {
			return 0, fmt.Errorf("price list: %w", err)
		}
		for _, term := range product.Terms.OnDemand {
			for _, d := range term.PriceDimensions {
				usd, err := strconv.ParseFloat(d.PricePerUnit["USD"], 64)
				if d.Unit == "Hrs" && err == nil && isPlausiblePrice(usd) {
					found[usd] = true
				}
			}
		}
	}
	prices := slices.Sorted(maps.Keys(found))
	if len(prices) != 1 {
		return 0, fmt.Errorf("%d entries with the hourly prices %v, want one in USD", len(list),
			prices)
	}
	return prices[0], nil
}

// learnSpot asks for the spot prices of those types of which they are not fresh.
func (p *Provider) learnSpot(ctx context.Context, of []profiles.InstanceType) error {
	b, now := &p.prices, time.Now()
	b.mu.Lock()
	var ask []types.InstanceType
	for _, t := range of {
		if now.Sub(b.spotAt[t]) > keepSpot {
			ask = append(ask, types.InstanceType(t))
		}
	}
	b.mu.Unlock()
	if len(ask) == 0 {
		return nil
	}
	type row struct {
		key offerKey
		usd float64
		at  time.Time
	}
	newest := map[offerKey]row{}
	in := &ec2.DescribeSpotPriceHistoryInput{
		InstanceTypes: ask, ProductDescriptions: []string{"Linux/UNIX"},
		StartTime: aws.Time(now), // what holds now, and nothing before
	}
	for {
		out, err := p.aws.describeSpotPriceHistory(ctx, in)
		if err != nil {
			return err
		}
		for _, s := range out.SpotPriceHistory {
			usd, err := strconv.ParseFloat(aws.ToString(s.SpotPrice), 64)
			if err != nil || !isPlausiblePrice(usd) {
				continue
			}
			kind := rent.Kind{Type: profiles.InstanceType(s.InstanceType), Market: rent.Spot}
			r := row{offerKey{kind, aws.ToString(s.AvailabilityZone)}, usd, aws.ToTime(s.Timestamp)}
			if before, ok := newest[r.key]; !ok || r.at.After(before.at) {
				newest[r.key] = r
			}
		}
		if aws.ToString(out.NextToken) == "" {
			break
		}
		in.NextToken = out.NextToken
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range ask {
		maps.DeleteFunc(b.spot, func(k offerKey, _ price) bool {
			return k.Type == profiles.InstanceType(t)
		})
		b.spotAt[profiles.InstanceType(t)] = now
	}
	for key, r := range newest {
		b.spot[key] = price{r.usd, now}
	}
	return nil
}
