package ec2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// noSettings keeps the settings of this machine's user out of a test.
func noSettings(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_SESSION_TOKEN": "",
		"AWS_PROFILE": "", "AWS_CA_BUNDLE": "", "AWS_CONFIG_FILE": "/dev/null",
		"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
}

func testConfig(back http.Handler) Config {
	return Config{
		Settings: Settings{
			Region: "us-east-1", Template: "lt-0123456789abcdef0", TemplateVersion: "7",
			Subnets: []string{"subnet-0000000a", "subnet-0000000b"},
		},
		Fleet: "prod", Types: []profiles.InstanceType{"r5n.large", "g4dn.xlarge"},
		Prices:   cataloguePrices(),
		Endpoint: "http://ec2.test", client: direct{back},
	}
}

// cataloguePrices are those of the default catalogue.
func cataloguePrices() map[profiles.InstanceType]float64 {
	prices := map[profiles.InstanceType]float64{}
	for _, t := range profiles.DefaultCatalogue().Types() {
		if known, err := profiles.DefaultCatalogue().Lookup(t); err == nil {
			prices[t] = known.PriceUSDPerHour
		}
	}
	return prices
}

func open(t *testing.T, c Config) *Provider {
	t.Helper()
	p, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inVirtualTime runs a test against the package's own EC2, in virtual time.
func inVirtualTime(t *testing.T, test func(*testing.T, *tinyEC2, *faults)) {
	noSettings(t)
	synctest.Test(t, func(t *testing.T) {
		tiny := newTinyEC2()
		test(t, tiny, newFaults(tiny))
	})
}

func slot(t string, ordinal, generation int) rent.Slot {
	return rent.Slot{
		Kind:    rent.Kind{Type: profiles.InstanceType(t)},
		Ordinal: ordinal, Generation: generation,
	}
}

// TestRequest: the call that launches, whole: one instance in any subnet, the preferred zone first,
// tagged in the call.
func TestRequest(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		p := open(t, testConfig(f))
		spot := rent.Slot{
			Kind: rent.Kind{Type: "r5n.large", Market: rent.Spot}, Ordinal: 3, Generation: 1,
		}
		for _, s := range []rent.Slot{slot("r5n.large", 0, 0), spot} {
			spec := cloud.Spec{Zones: []string{"us-east-1b", "us-east-1a"}, By: "f-1", Version: 12}
			if _, err := p.Launch(t.Context(), s, spec); err != nil {
				t.Fatal(err)
			}
		}
		var b strings.Builder
		for _, form := range f.calls("CreateFleet") {
			for _, key := range slices.Sorted(maps.Keys(form)) {
				fmt.Fprintf(&b, "%s = %s\n", key, strings.Join(form[key], " | "))
			}
			b.WriteString("\n")
		}
		golden(t, "create-fleet.txt", b.String())
	})
}

// golden compares got with the file; REWRITE=1 writes it instead.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if os.Getenv("REWRITE") != "" {
		if err := os.WriteFile("testdata/"+name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("testdata/%s differs (REWRITE=1 writes it); got:\n%s", name, got)
	}
}

// TestContract: what every provider promises, and what is EC2's own.
func TestContract(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) { contract(t, f, testConfig(f)) })
}

// TestEveryProvider: what all providers promise.
func TestEveryProvider(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		cloudtest.Contract(t, rent.Kind{Type: "r5n.large"}, open(t, testConfig(f)),
			open(t, testConfig(f)))
	})
}

// contract holds of EC2's provider whoever answers behind the faults. It uses the fleets that the
// config names, with -2 and -3 after their names, too.
func contract(t *testing.T, f *faults, c Config) {
	p := open(t, c)
	ctx := t.Context()
	first := slot("r5n.large", 0, 0)
	spec := cloud.Spec{By: "f-1", Version: 3}

	if list, err := p.List(ctx); err != nil || len(list) != 0 {
		t.Fatalf("an empty fleet lists %v, %v", list, err)
	}
	one, err := p.Launch(ctx, first, spec)
	if err != nil {
		t.Fatal(err)
	}
	if one.ID == "" || one.Slot != first || one.By != "f-1" || one.Zone == "" || one.Price <= 0 ||
		one.State > rent.Running {
		t.Errorf("launched: got %+v", one)
	}
	other := open(t, c) // another leader
	again, err := other.Launch(ctx, first, spec)
	if err != nil || again.ID != one.ID {
		t.Errorf("the same slot again: got %v, %v, want %s", again.ID, err, one.ID)
	}
	// Another version of what is desired makes another request, which EC2 refuses with this token.
	again, err = other.Launch(ctx, first, cloud.Spec{By: "f-1", Version: 4})
	if err != nil || again.ID != one.ID {
		t.Errorf("the same slot of a later version: got %v, %v, want %s", again.ID, err, one.ID)
	}

	f.set(func(f *faults) { f.lose = 1 })
	two, err := p.Launch(ctx, slot("r5n.large", 1, 0), spec)
	if err != nil {
		t.Errorf("an answer is lost once: %v", err)
	}
	f.set(func(f *faults) { f.refuse["CreateFleet"] = []string{"RequestLimitExceeded"} })
	spot := rent.Slot{Kind: rent.Kind{Type: "r5n.large", Market: rent.Spot}}
	three, err := p.Launch(ctx, spot, spec)
	if err != nil {
		t.Errorf("throttled once: %v", err)
	}
	list, err := other.List(ctx)
	ids := map[string]bool{one.ID: true, two.ID: true, three.ID: true}
	for _, i := range list {
		if !ids[i.ID] {
			t.Errorf("lists %+v", i)
		}
	}
	if err != nil || len(list) != len(ids) {
		t.Errorf("lists %v, %v, want %v", list, err, ids)
	}

	shortThenNot(t, f, p, spec)

	stranger := c
	stranger.Fleet += "-2"
	q := open(t, stranger)
	if list, err := q.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("another fleet lists %v, %v", list, err)
	}
	if err := q.Return(ctx, one.ID); !errors.Is(err, cloud.ErrDenied) {
		t.Errorf("another fleet returns an instance of ours: %v", err)
	}
	if err := q.Mark(ctx, one.ID); !errors.Is(err, cloud.ErrDenied) {
		t.Errorf("another fleet marks an instance of ours: %v", err)
	}

	const unknown = "i-0123456789abcdef0"
	if err := p.Mark(ctx, two.ID, unknown); err != nil {
		t.Errorf("mark: %v", err)
	}
	for range 2 { // a second time is no error
		if err := p.Return(ctx, one.ID, unknown); err != nil {
			t.Errorf("return: %v", err)
		}
	}
	list, err = p.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		ended := i.ID == one.ID || i.Slot.Type == "c5n.2xlarge"
		if gone := i.State >= rent.Stopping; gone != ended || i.Drained != (i.ID == two.ID) {
			t.Errorf("after returning %s and marking %s: %+v", one.ID, two.ID, i)
		}
	}
	if _, err := p.Launch(ctx, first, spec); !errors.Is(err, cloud.ErrSpent) {
		t.Errorf("a slot whose instance has ended: %v, want %v", err, cloud.ErrSpent)
	}
	next := first
	next.Generation++
	if i, err := p.Launch(ctx, next, spec); err != nil || i.ID == one.ID {
		t.Errorf("its next generation: %+v, %v", i, err)
	}
}

// shortThenNot: EC2 counts a shortage as an answer, so the slot is asked for with
// its next token later.
func shortThenNot(t *testing.T, f *faults, p *Provider, spec cloud.Spec) {
	ctx, s := t.Context(), slot("c5n.2xlarge", 0, 0)
	f.set(func(f *faults) { f.short["c5n.2xlarge"] = "InsufficientInstanceCapacity" })
	_, err := p.Launch(ctx, s, spec)
	lack, ok := errors.AsType[*cloud.ErrShort](err)
	if !ok || lack.Kind != s.Kind || len(lack.Zones) == 0 ||
		!strings.Contains(lack.Why, lack.Zones[0]+": InsufficientInstanceCapacity") {
		t.Errorf("short: got %v", err)
	}
	f.set(func(f *faults) { clear(f.short) })
	i, err := p.Launch(ctx, s, spec)
	if err != nil || i.Slot != s {
		t.Errorf("there is some again: %+v, %v", i, err)
	}
	if err := p.Return(ctx, i.ID); err != nil {
		t.Error(err)
	}
	if _, err := p.Launch(ctx, s, spec); !errors.Is(err, cloud.ErrSpent) {
		t.Errorf("after its return: %v, want %v", err, cloud.ErrSpent)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, form := range f.asked {
		if form.Get("Action") == "TerminateInstances" && !strings.Contains(form.Encode(), i.ID) {
			t.Errorf("ended another: %v", form)
		}
	}
}

// TestAnswers: each answer of EC2's to a launch becomes the outcome that the leader acts on.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, refuse, short string
		want                error  // nil: none that has a name
		says                string // in the error's text
		isShort             bool
	}{
		{name: "no rights", refuse: "UnauthorizedOperation", want: cloud.ErrDenied,
			says: "muster fleet policy"},
		{name: "no rights in one zone",
			short: "InsufficientInstanceCapacity,UnauthorizedOperation", want: cloud.ErrDenied,
			says: "us-east-1b: UnauthorizedOperation"},
		{name: "expired credentials", refuse: "RequestExpired", want: cloud.ErrDenied,
			says: "the credentials have expired"},
		{name: "expired token", refuse: "ExpiredToken", want: cloud.ErrDenied,
			says: "the credentials have expired"},
		{name: "wrong credentials", refuse: "AuthFailure", want: cloud.ErrDenied,
			says: "AuthFailure: injected"},
		{name: "the template is gone", refuse: "InvalidLaunchTemplateId.NotFound",
			want: cloud.ErrDenied, says: "make the launch template"},
		{name: "the template's version is gone",
			refuse: "InvalidLaunchTemplateId.VersionNotFound", want: cloud.ErrDenied,
			says: "template_version in fleet.yaml"},
		{name: "a code about templates that nobody knows", refuse: "InvalidLaunchTemplateX",
			want: cloud.ErrDenied, says: "InvalidLaunchTemplateX"},
		{name: "quota of processors", short: "VcpuLimitExceeded", want: cloud.ErrQuota,
			says: "raise the quota of running on-demand instances"},
		{name: "quota of spot instances", short: "MaxSpotInstanceCountExceeded",
			want: cloud.ErrQuota, says: "raise the quota of spot instance requests"},
		{name: "quota, by an error", refuse: "InstanceLimitExceeded", want: cloud.ErrQuota,
			says: "InstanceLimitExceeded"},
		{name: "throttled for good", refuse: "RequestLimitExceeded", want: cloud.ErrThrottled,
			says: "RequestLimitExceeded"},
		{name: "EC2 does not answer", refuse: "InternalError", says: "InternalError"},
		{name: "short", short: "InsufficientInstanceCapacity", isShort: true,
			says: "us-east-1a: InsufficientInstanceCapacity: injected"},
		{name: "short, by an error", refuse: "InsufficientInstanceCapacity", isShort: true,
			says: "InsufficientInstanceCapacity: injected"},
		{name: "not offered, by an error", refuse: "Unsupported", isShort: true,
			says: "Unsupported: injected"},
		{name: "short of spot", short: "UnfulfillableCapacity", isShort: true,
			says: "UnfulfillableCapacity"},
		{name: "the price is above the limit", short: "SpotMaxPriceTooLow", isShort: true,
			says: "SpotMaxPriceTooLow"},
		{name: "no addresses", short: "InsufficientFreeAddressesInSubnet", isShort: true,
			says: "InsufficientFreeAddressesInSubnet"},
		{name: "a code that nobody knows", short: "SomethingNew", isShort: true,
			says: "SomethingNew"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
				p := open(t, testConfig(f))
				if tt.refuse != "" {
					f.refuse["CreateFleet"] = []string{tt.refuse, "..."}
				}
				f.short["r5n.large"] = tt.short
				_, err := p.Launch(t.Context(), slot("r5n.large", 0, 0), cloud.Spec{})
				lack, isShort := errors.AsType[*cloud.ErrShort](err)
				if err == nil || !strings.Contains(err.Error(), tt.says) || isShort != tt.isShort ||
					tt.want != nil && !errors.Is(err, tt.want) {
					t.Fatalf("got %v, want %v that says %q", err, tt.want, tt.says)
				}
				if tt.want == nil {
					for _, named := range []error{cloud.ErrDenied, cloud.ErrQuota,
						cloud.ErrThrottled, cloud.ErrSpent} {
						if errors.Is(err, named) {
							t.Errorf("%v is %v", err, named)
						}
					}
				}
				if isShort && !slices.Equal(lack.Zones, []string{"us-east-1a", "us-east-1b"}) {
					t.Errorf("short in %v", lack.Zones)
				}
				if len(tiny.instances) > 0 {
					t.Errorf("launched %v", tiny.instances)
				}
			})
		})
	}
}

// TestNotOffered: a zone that never has a type is not asked for it again for a day; the others are.
func TestNotOffered(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		p := open(t, testConfig(f))
		f.short["r5n.large"] = "Unsupported,InsufficientInstanceCapacity"
		subnets := func() []string {
			_, err := p.Launch(t.Context(), slot("r5n.large", 0, 0), cloud.Spec{})
			if _, ok := errors.AsType[*cloud.ErrShort](err); !ok {
				t.Fatal(err)
			}
			all := f.calls("CreateFleet")
			return []string{
				all[len(all)-1].Get("LaunchTemplateConfigs.1.Overrides.1.SubnetId"),
				all[len(all)-1].Get("LaunchTemplateConfigs.1.Overrides.2.SubnetId"),
			}
		}
		both, one := []string{"subnet-0000000a", "subnet-0000000b"}, []string{"subnet-0000000b", ""}
		if got := subnets(); !slices.Equal(got, both) {
			t.Errorf("asked %v", got)
		}
		f.short["r5n.large"] = "InsufficientInstanceCapacity"
		if got := subnets(); !slices.Equal(got, one) {
			t.Errorf("then asked %v", got)
		}
		time.Sleep(barredFor + time.Minute)
		if got := subnets(); !slices.Equal(got, both) {
			t.Errorf("a day later asked %v", got)
		}
		// All zones are out.
		f.short["r5n.large"] = "Unsupported"
		subnets()
		before := len(f.calls("CreateFleet"))
		_, err := p.Launch(t.Context(), slot("r5n.large", 0, 0), cloud.Spec{})
		if lack, ok := errors.AsType[*cloud.ErrShort](err); !ok ||
			len(f.calls("CreateFleet")) != before || len(lack.Zones) != 2 {
			t.Errorf("no zone is left: %v", err)
		}
	})
}

// TestUnansweredList: a list without its last page is unknown, not shorter.
func TestUnansweredList(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
		p := open(t, testConfig(f))
		for n := range 5 {
			if _, err := p.Launch(t.Context(), slot("r5n.large", n, 0), cloud.Spec{}); err != nil {
				t.Fatal(err)
			}
		}
		list, err := p.List(t.Context())
		if err != nil || len(list) != 5 {
			t.Fatalf("%d instances on pages of %d: got %v, %v", 5, tiny.page, list, err)
		}
		f.refuse["DescribeInstances"] = []string{"UnauthorizedOperation"}
		if list, err := p.List(t.Context()); !errors.Is(err, cloud.ErrDenied) || list != nil {
			t.Errorf("no rights: got %v, %v", list, err)
		}
		pages := 0
		c := testConfig(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if pages++; pages > 1 {
				panic(http.ErrAbortHandler)
			}
			f.ServeHTTP(w, r)
		}))
		q := open(t, c)
		if list, err := q.List(t.Context()); err == nil || list != nil ||
			!strings.Contains(err.Error(), "not answered in 5 tries") {
			t.Errorf("the second page is not answered: got %v, %v", list, err)
		}
		f.refuse["DescribeInstances"] = []string{"UnauthorizedOperation", "..."}
		if err := p.Return(t.Context(), list[0].ID); err == nil ||
			len(f.calls("TerminateInstances")) > 0 {
			t.Errorf("it returned what it could not look at: %v", err)
		}
	})
}

// TestSilentAnswer: an answer with neither an instance nor an error leaves open what was done. The
// token is kept until an instance of it would be listed, and then given up.
func TestSilentAnswer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, _ *tinyEC2, f *faults) {
		p, s := open(t, testConfig(f)), slot("r5n.large", 0, 0)
		f.silent = true
		for range 2 {
			_, err := p.Launch(t.Context(), s, cloud.Spec{})
			if err == nil || !strings.Contains(err.Error(), "neither an instance nor an error") {
				t.Fatalf("got %v", err)
			}
		}
		f.silent = false
		time.Sleep(settle + time.Second)
		if _, err := p.Launch(t.Context(), s, cloud.Spec{}); err == nil {
			t.Fatal("the token's answer has changed")
		}
		if _, err := p.Launch(t.Context(), s, cloud.Spec{}); err != nil {
			t.Errorf("with the next token: %v", err)
		}
	})
}

// TestShortForAnotherLeader: a token that brought another leader a shortage, for another version of
// what is desired, is refused; it is given up, and one instance is launched.
func TestShortForAnotherLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
		old, s := open(t, testConfig(f)), slot("r5n.large", 0, 0)
		f.short["r5n.large"] = "UnfulfillableCapacity"
		_, _ = old.Launch(t.Context(), s, cloud.Spec{Version: 1})
		clear(f.short)
		p := open(t, testConfig(f))
		_, err := p.Launch(t.Context(), s, cloud.Spec{Version: 2})
		if err == nil || !strings.Contains(err.Error(), "IdempotentParameterMismatch") {
			t.Fatalf("got %v", err)
		}
		time.Sleep(settle + time.Second)
		_, _ = p.Launch(t.Context(), s, cloud.Spec{Version: 2})
		if _, err := p.Launch(t.Context(), s, cloud.Spec{Version: 2}); err != nil {
			t.Error(err)
		}
		if len(tiny.instances) != 1 {
			t.Errorf("%d instances", len(tiny.instances))
		}
	})
}

// TestListLag: an instance that no list has yet is one that starts, and the slot stays its own.
func TestListLag(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
		p, s := open(t, testConfig(f)), slot("r5n.large", 0, 0)
		f.unlisted = true
		one, err := p.Launch(t.Context(), s, cloud.Spec{By: "f-1"})
		if err != nil || one.State != rent.Pending || one.Zone != "us-east-1a" || one.Slot != s {
			t.Fatalf("got %+v, %v", one, err)
		}
		again, err := open(t, testConfig(f)).Launch(t.Context(), s, cloud.Spec{By: "f-1"})
		if err != nil || again.ID != one.ID || len(tiny.instances) != 1 {
			t.Errorf("again: %+v, %v", again, err)
		}
	})
}

// TestNotOurs: an instance with our fleet's tag and without a slot, which another tool has made, is
// neither listed nor ended, nor is any other in the same call.
func TestNotOurs(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
		var log bytes.Buffer
		c := testConfig(f)
		c.Log = logTo(&log)
		p := open(t, c)
		ours, err := p.Launch(t.Context(), slot("r5n.large", 0, 0), cloud.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		by := tiny.put(&tinyInstance{
			typ: "r5n.large", state: "running", tags: map[string]string{tagFleet: "prod"},
		})
		list, err := p.List(t.Context())
		if err != nil || len(list) != 1 || !strings.Contains(log.String(), by.id) {
			t.Errorf("lists %v, %v, and says %s", list, err, &log)
		}
		err = p.Return(t.Context(), ours.ID, by.id)
		if !errors.Is(err, cloud.ErrDenied) || !strings.Contains(err.Error(), by.id) ||
			len(f.calls("TerminateInstances")) > 0 {
			t.Errorf("returned: %v", err)
		}
	})
}

// TestEndedByOthers: an instance of ours that another tool ends, or stops, is listed as such; its
// slot is spent, and a stopped one is ended when it is returned.
func TestEndedByOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, tiny *tinyEC2, f *faults) {
		p := open(t, testConfig(f))
		for n, tt := range []struct {
			state string
			want  rent.InstanceState
			ends  int
		}{
			{"running", rent.Running, 1}, {"stopped", rent.Stopping, 1},
			{"shutting-down", rent.Stopping, 0}, {"terminated", rent.Gone, 0},
		} {
			s := slot("r5n.large", n, 0)
			i, err := p.Launch(t.Context(), s, cloud.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			tiny.setState(i.ID, tt.state)
			list, err := p.List(t.Context())
			if err != nil || list[n].State != tt.want {
				t.Errorf("%s: got %v, %v", tt.state, list, err)
			}
			if _, err := p.Launch(t.Context(), s, cloud.Spec{}); (tt.want == rent.Running) !=
				(err == nil) || err != nil && !errors.Is(err, cloud.ErrSpent) {
				t.Errorf("%s: launch: %v", tt.state, err)
			}
			before := len(f.calls("TerminateInstances"))
			if err := p.Return(t.Context(), i.ID); err != nil ||
				len(f.calls("TerminateInstances"))-before != tt.ends {
				t.Errorf("%s: return: %v", tt.state, err)
			}
		}
	})
}

// TestNoCredentials: without any, the error says so, and a person has to act.
func TestNoCredentials(t *testing.T) {
	noSettings(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	p := open(t, testConfig(newFaults(newTinyEC2())))
	_, err := p.List(t.Context())
	if !errors.Is(err, cloud.ErrDenied) || !strings.Contains(err.Error(), "no credentials") {
		t.Errorf("got %v", err)
	}
	if faults := p.Check(t.Context()); len(faults) != 1 || faults[0].What != "credentials" {
		t.Errorf("Check: %v", faults)
	}
}

func TestSettings(t *testing.T) {
	c := testConfig(nil)
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	bad := Settings{
		Region: "Virginia", Template: "", TemplateVersion: "$Latest",
		Subnets: []string{"subnet-0000000a", "net-1", "subnet-0000000a"},
	}
	err := bad.Validate()
	for _, want := range []string{
		`ec2.region: "Virginia"`, `ec2.template: ""`, `ec2.template_version: "$Latest"`,
		`ec2.subnets: "net-1"`, "subnet-0000000a is there twice",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	c.Fleet = "a fleet"
	if _, err := Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "fleet:") {
		t.Errorf("got %v", err)
	}
}

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// TestClientsAreNotReached: no type that a Provider reaches is a client of the SDK: the linker would
// keep all of its methods.
func TestClientsAreNotReached(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		if of.Name() == "Client" && strings.Contains(of.PkgPath(), "aws-sdk-go-v2/service/") {
			t.Errorf("a Provider reaches %s.%s", of.PkgPath(), of.Name())
		}
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
			walk(of.Elem())
		case reflect.Map:
			walk(of.Key())
			walk(of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				walk(of.Field(i).Type)
			}
		case reflect.Func:
			for i := range of.NumIn() {
				walk(of.In(i))
			}
			for i := range of.NumOut() {
				walk(of.Out(i))
			}
		}
	}
	walk(reflect.TypeFor[*Provider]())
	if len(seen) < 100 {
		t.Errorf("looked at %d types", len(seen))
	}
}
