package agent

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/agent/agenttest/metadata"
)

// TestBadNotices: what the metadata service answers can be anything.
func TestBadNotices(t *testing.T) {
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	in := func(d time.Duration) string {
		return `{"action":"terminate","time":"` + now.Add(d).Format(time.RFC3339) + `"}`
	}
	for text, want := range map[string]time.Duration{
		in(90 * time.Second):                  90 * time.Second,
		in(-time.Hour):                        spotWarning, // the clock of this machine is ahead
		in(5 * time.Hour):                     spotWarning, // or behind
		"":                                    spotWarning,
		"<html>":                              spotWarning,
		`{"action":"stop"}`:                   spotWarning,
		`{"action":"stop","time":"tomorrow"}`: spotWarning,
		`{"time":7}`:                          spotWarning,
	} {
		if got := parseInterruption(text, now); got.ends.Sub(now) != want || !got.advised {
			t.Errorf("interruption(%q) ends in %v, want %v", text, got.ends.Sub(now), want)
		}
	}
	before := notice{advised: true, why: "before"}
	for text, says := range map[string]string{
		"": "scheduled maintenance", "{}": "scheduled maintenance",
		`[{"Code":"system-reboot","NotBefore":"soon"}]`: "system-reboot: NotBefore",
	} {
		got, err := parseMaintenance(text, before, now)
		if err == nil || !strings.Contains(err.Error(), says) || got != before {
			t.Errorf("maintenance(%q) = %+v, %v", text, got, err)
		}
	}
	if got, err := parseMaintenance("[]", before, now); err != nil || got != (notice{}) {
		t.Errorf("maintenance([]) = %+v, %v", got, err)
	}
}

// TestSpotAnswers: a recommendation is advice; a notice stays while the service does not answer;
// what is no machine of EC2's, or has a name that does not fit, is nothing.
func TestSpotAnswers(t *testing.T) {
	service := metadata.New("spot")
	server := httptest.NewServer(service)
	defer server.Close()
	m := &metadataClient{metadata: imds.New(imds.Options{
		Endpoint: server.URL, Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}
	if err := m.findIdentity(t.Context()); err != nil || !m.spot {
		t.Fatalf("identify: %v, spot %t", err, m.spot)
	}
	now := time.Now()
	ask := func(last, want notice, fails bool) notice {
		t.Helper()
		got, err := m.askEnd(t.Context(), last, now)
		if got != want || (err != nil) != fails {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		return got
	}
	ask(notice{}, notice{}, false)
	service.Set("events/recommendations/rebalance", `{"noticeTime":"2026-11-05T08:22:00Z"}`)
	advice := ask(notice{}, notice{advised: true, why: "rebalance recommendation"}, false)
	service.Set("spot/instance-action", "{")
	end := ask(advice, notice{now.Add(spotWarning), true, "spot interruption"}, false)
	service.Set("spot/instance-action", "")
	ask(end, end, false) // it is not taken back
	server.Close()
	ask(end, end, true)
	ask(advice, advice, true)

	service.Set("instance-id", strings.Repeat("i", 500))
	service.Set("tags/instance/muster:slot", "no slot")
	other := httptest.NewServer(service)
	defer other.Close()
	m = &metadataClient{metadata: imds.New(imds.Options{
		Endpoint: other.URL, Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}
	if err := m.findIdentity(t.Context()); err == nil {
		t.Error("an instance with a name of 500 characters")
	}
	service.Set("instance-id", "i-1")
	if err := m.findIdentity(t.Context()); err != nil || m.rented.Slot != "" {
		t.Errorf("a machine that no fleet has rented: %v, %v", m.rented, err)
	}
}
