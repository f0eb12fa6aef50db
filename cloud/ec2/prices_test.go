package ec2

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// text has the offers, one a line.
func text(offers []cloud.Offer) string {
	var b strings.Builder
	for _, o := range offers {
		fmt.Fprintf(&b, "%s %s %g\n", o.Kind, o.Zone, o.Price)
	}
	return b.String()
}

const allOffers = `r5n.large us-east-1a 0.149
r5n.large@spot us-east-1a 0.0412
r5n.large us-east-1b 0.149
r5n.large@spot us-east-1b 0.0612
g4dn.xlarge us-east-1b 0.526
`

// TestOffers: the prices are AWS's, where the subnets are and the types are offered. They are asked
// for once a day, those of spot each 5 min, and the next process has the day's.
func TestOffers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
		c := testConfig(f)
		c.StateDir = t.TempDir()
		types := []profiles.InstanceType{"r5n.large", "g4dn.xlarge", "c5.large", "no.such"}
		ask := func(p *Provider, want string, products, history int) {
			t.Helper()
			offers, err := p.Offers(t.Context(), types)
			if err != nil || text(offers) != want {
				t.Errorf("got %v\n%swant\n%s", err, text(offers), want)
			}
			if n, m := len(f.calls("GetProducts")), len(f.calls("DescribeSpotPriceHistory")); n !=
				products || m != history {
				t.Errorf("asked for the price list %d and for spot prices %d times, want %d and %d",
					n, m, products, history)
			}
		}
		p := open(t, c)
		ask(p, allOffers, 2, 1)
		ask(p, allOffers, 2, 1)
		time.Sleep(keepSpot + time.Second)
		tiny.spot["r5n.large us-east-1a"] = "0.05"
		dearer := strings.Replace(allOffers, "0.0412", "0.05", 1)
		ask(p, dearer, 2, 2)
		ask(open(t, c), dearer, 2, 3)
		time.Sleep(keepOnDemand)
		ask(p, dearer, 4, 4)

		// What is listed has the prices.
		for n, market := range []rent.Market{rent.OnDemand, rent.Spot} {
			s := slot("r5n.large", n, 0)
			s.Market = market
			i, err := p.Launch(t.Context(), s, cloud.Spec{})
			if want := []float64{0.149, 0.05}[n]; err != nil || i.Price != want {
				t.Errorf("%s: got $%g, %v, want $%g", s, i.Price, err, want)
			}
		}
	})
}

// TestPricesThatAWSDoesNotTell: the catalogue's stand in on demand, and the log says so; of spot
// there are none.
func TestPricesThatAWSDoesNotTell(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		c := testConfig(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Amz-Target") != "" {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, `{"__type":"AccessDeniedException","Message":"not you"}`)
				return
			}
			f.ServeHTTP(w, r)
		}))
		f.refuse["DescribeSpotPriceHistory"] = []string{"UnauthorizedOperation", "..."}
		var log strings.Builder
		c.Log = logTo(&log)
		c.Prices = map[profiles.InstanceType]float64{"r5n.large": 0.2}
		p := open(t, c)
		for range 3 {
			offers, err := p.Offers(t.Context(), []profiles.InstanceType{"r5n.large"})
			const want = "r5n.large us-east-1a 0.2\nr5n.large us-east-1b 0.2\n"
			if err != nil || text(offers) != want {
				t.Errorf("got %v\n%s", err, text(offers))
			}
		}
		if n := strings.Count(log.String(), "AWS gives no valid price"); n != 1 {
			t.Errorf("said %d times: %s", n, &log)
		}
		for _, want := range []string{"the catalogue's", "not you", "cannot read spot prices"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q: %s", want, &log)
			}
		}
	})
}

// TestUnansweredOffers: without an answer on where types are offered there are no prices,
// rather than too few.
func TestUnansweredOffers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		for _, action := range []string{"DescribeInstanceTypeOfferings", "DescribeSubnets"} {
			f.refuse[action] = []string{"InternalError", "..."}
			offers, err := open(t, testConfig(f)).Offers(t.Context(),
				[]profiles.InstanceType{"r5n.large"})
			if err == nil || offers != nil || !strings.Contains(err.Error(), action) {
				t.Errorf("%s: got %v, %v", action, offers, err)
			}
			delete(f.refuse, action)
		}
	})
}

// TestParsePrices: of an entry of AWS's price list only a price in $/hr above 0 counts, and two
// that differ are none.
func TestParsePrices(t *testing.T) {
	entry := func(dimensions string) string {
		return `{"terms":{"OnDemand":{"T":{"priceDimensions":{` + dimensions + `}}}}}`
	}
	hours := func(usd string) string {
		return `"D` + usd + `":{"unit":"Hrs","pricePerUnit":{"USD":"` + usd + `"}}`
	}
	for _, tt := range []struct {
		name string
		list []string
		want float64
		says string
	}{
		{"one", []string{entry(hours("0.526"))}, 0.526, ""},
		{"one, and what is paid already", []string{entry(hours("0.526") + "," + hours("0"))}, 0.526,
			""},
		{"the same twice", []string{entry(hours("0.526")), entry(hours("0.5260"))}, 0.526, ""},
		{"none", nil, 0, "0 entries"},
		{"two", []string{entry(hours("0.5") + "," + hours("0.6"))}, 0, "[0.5 0.6]"},
		{"another currency", []string{entry(`"D":{"unit":"Hrs","pricePerUnit":{"CNY":"3"}}`)}, 0,
			"want one in USD"},
		{"by quantity", []string{entry(`"D":{"unit":"Quantity","pricePerUnit":{"USD":"3"}}`)}, 0,
			"want one in USD"},
		{"absurd", []string{entry(hours("1e9") + "," + hours("NaN") + "," + hours("-1"))}, 0,
			"want one in USD"},
		{"no JSON", []string{"<html>"}, 0, "price list"},
	} {
		got, err := parsePrices(tt.list)
		if got != tt.want || (err == nil) != (tt.says == "") ||
			err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %g, %v", tt.name, got, err)
		}
	}
}

// TestKeptPrices: a file of prices that is damaged is not used, and said.
func TestKeptPrices(t *testing.T) {
	for _, content := range []string{"{", `{"r5n.large": {"usd_per_hour": -1}}`} {
		c := testConfig(nil)
		c.StateDir = t.TempDir()
		file := filepath.Join(c.StateDir, "ec2-prices-us-east-1.json")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		noSettings(t)
		if p := open(t, c); len(p.prices.onDemand) > 0 {
			t.Errorf("%s: uses %v", content, p.prices.onDemand)
		}
	}
}
