package ec2

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// TestMoto holds the contract against moto, behind the faults, over sockets, with the SDK's
// adaptive retries. scripts/moto.sh starts moto and says where it is.
func TestMoto(t *testing.T) {
	at := os.Getenv("MOTO_URL")
	if at == "" {
		t.Skip("no MOTO_URL; `make moto` runs this test")
	}
	noSettings(t)
	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	moto, prices := httputil.NewSingleHostReverseProxy(target), newTinyEC2()
	f := newFaults(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" { // moto has no price list
			prices.ServeHTTP(w, r)
			return
		}
		moto.ServeHTTP(w, r)
	}))
	server := httptest.NewServer(f)
	defer server.Close()
	c := testConfig(nil)
	c.client, c.Endpoint = nil, server.URL
	c.Fleet = fmt.Sprintf("moto-%d", time.Now().UnixNano())
	c.Template, c.TemplateVersion = "any", "1"
	c.Subnets, c.Template = motoAccount(t, c)

	t.Run("contract", func(t *testing.T) { contract(t, f, c) })
	t.Run("process", func(t *testing.T) {
		c := c
		c.Fleet += "-process"
		p := openProcess(t, c, server.URL)
		for _, fault := range p.Check(t.Context()) {
			t.Errorf("%s", fault)
		}
		cloudtest.Contract(t, rent.Kind{Type: "r5n.large"}, p, openProcess(t, c, server.URL))
	})
	t.Run("offers", func(t *testing.T) {
		p := open(t, c)
		offers, err := p.Offers(t.Context(), []profiles.InstanceType{"g4dn.xlarge", "no.such"})
		if err != nil {
			t.Fatal(err)
		}
		zones := map[rent.Market]int{}
		for _, o := range offers {
			if o.Type != "g4dn.xlarge" || o.Price <= 0 {
				t.Errorf("offer %+v", o)
			}
			zones[o.Market]++
		}
		if zones[rent.OnDemand] != 3 || zones[rent.Spot] != 3 {
			t.Errorf("offers %v", offers)
		}
	})
	t.Run("check", func(t *testing.T) {
		for _, fault := range open(t, c).Check(t.Context()) {
			t.Errorf("%s", fault)
		}
		c.Template = "lt-00000000000000000"
		faults := fmt.Sprint(open(t, c).Check(t.Context()))
		if !strings.Contains(faults, "InvalidLaunchTemplateId") {
			t.Errorf("a template that is gone: %s", faults)
		}
		_, err := open(t, c).Launch(t.Context(), slot("r5n.large", 7, 0), cloud.Spec{})
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("a template that is gone: %v", err)
		}
	})
}

// motoAccount makes the launch template of docs/ec2.md, and returns it and three subnets.
func motoAccount(t *testing.T, c Config) (subnets []string, template string) {
	c.Subnets = []string{"subnet-00000000"}
	loaded, err := c.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	to := ec2.NewFromConfig(loaded)
	found, err := to.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found.Subnets[:3] {
		subnets = append(subnets, aws.ToString(s.SubnetId))
	}
	images, err := to.DescribeImages(t.Context(),
		&ec2.DescribeImagesInput{Owners: []string{"amazon"}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := to.CreateLaunchTemplate(t.Context(), &ec2.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String(c.Fleet),
		LaunchTemplateData: &types.RequestLaunchTemplateData{
			ImageId:                           images.Images[0].ImageId,
			InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
			MetadataOptions: &types.LaunchTemplateInstanceMetadataOptionsRequest{
				HttpTokens: types.LaunchTemplateHttpTokensStateRequired,
				InstanceMetadataTags: types.
					LaunchTemplateInstanceMetadataTagsStateEnabled,
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return subnets, aws.ToString(made.LaunchTemplate.LaunchTemplateId)
}
