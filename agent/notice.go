package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/leader/rent"
)

// rentedEC2 as Config.Rented makes the agent ask EC2's metadata service whatever else it is told.
const rentedEC2 = "ec2"

const (
	// spotEvery is how often a spot instance is asked for notices, as AWS advises.
	spotEvery = 5 * time.Second
	// maintenanceEvery is how often an agent on any other instance asks for maintenance notices.
	// Chosen: AWS plans maintenance days ahead, and a call takes milliseconds.
	maintenanceEvery = time.Minute
	// spotWarning is how long before the end AWS tells it.
	spotWarning = 2 * time.Minute
	// maintenanceNear is how long before its maintenance a machine counts as one that ends. Until
	// then the fleet is advised to leave it.
	maintenanceNear = time.Hour
	// minDrain is the minimum time before its end in which a machine drains. Chosen: half of a
	// drain by default, so that most queries still end when a notice comes late.
	minDrain = 15 * time.Second
	// afterDrain is what is left of a machine's time when its drain must have ended. Chosen: an
	// agent ends within a second or two after its drain, and each second here is lost for queries.
	afterDrain = 3 * time.Second
)

// homeless is how long the agent of a rented machine looks for its fleet before it drains: nobody
// may know that the machine is paid for. An agent that has found its fleet once stays without it,
// so that the loss of all agents that may lead does not end the fleet. Chosen: longer than
// replacing the agents to join takes, and a machine that nobody knows costs a quarter of an hour.
const homeless = 15 * time.Minute

// knowsFleet reports whether an agent of this machine has seen another one, as foundFleet has kept.
func (a *Agent) knowsFleet(instance string) bool {
	kept, err := os.ReadFile(filepath.Join(a.config.StateDir, "fleet-of"))
	return err == nil && string(kept) == instance
}

// foundFleet reports whether there is another agent, and keeps it for the next start.
func (a *Agent) foundFleet(instance string) bool {
	if len(a.members.View().Members) < 2 {
		return false
	}
	file := filepath.Join(a.config.StateDir, "fleet-of")
	err := os.MkdirAll(a.config.StateDir, 0o755)
	if err == nil {
		err = files.Replace(file, []byte(instance), 0o644)
	}
	if err != nil {
		a.log.Warn("cannot note that this agent found its fleet; its next start may drain if it "+
			"finds none", "file", file, "error", err)
	}
	return true
}

// A notice is what a provider has said of a machine's end. The zero value says nothing.
type notice struct {
	ends    time.Time // when the machine is taken; zero: nobody says
	advised bool      // the provider advises to leave the machine
	why     string
}

// A metadataClient asks EC2's metadata service about the machine that it runs on.
type metadataClient struct {
	metadata *imds.Client
	rented   *control.Rented
	spot     bool
	told     time.Duration // how much of the machine's time the fleet was last told of
}

// reportEnd tells the fleet what is known of the machine's end. What is left of its time is told
// again each time it has halved: each telling is a new description of the agent, and these do not
// age.
func (m *metadataClient) reportEnd(a *Agent, n notice) {
	rented := proto.CloneOf(m.rented)
	rented.Advised = n.advised
	if !n.ends.IsZero() {
		m.told = max(1, time.Until(n.ends))
		rented.EndsNs = int64(m.told)
	}
	a.setRented(rented)
}

// errNone says that the metadata service has no such value.
var errNone = errors.New("none")

// get asks once, without retries: what is asked for is asked for again soon.
func (m *metadataClient) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	out, err := m.metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	var status interface{ HTTPStatusCode() int }
	if errors.As(err, &status) && status.HTTPStatusCode() == http.StatusNotFound {
		return "", errNone
	}
	if err != nil {
		return "", fmt.Errorf("metadata service: %s: %w", path, err)
	}
	defer out.Content.Close()
	const largest = 64 << 10
	text, err := io.ReadAll(io.LimitReader(out.Content, largest))
	if err != nil {
		return "", fmt.Errorf("metadata service: %s: %w", path, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// watchMachine finds out what this machine is to the provider, tells the fleet, and asks for
// notices of its end until ctx ends, as it does when the agent drains. In time before the machine's
// end it has the agent drain.
func (a *Agent) watchMachine(ctx context.Context) {
	// Whoever names the type knows the machine; tests and emulated agents do.
	// A pod's eviction is its notice, and its node's metadata service is none of its business.
	if a.config.Rented != rentedEC2 && (a.config.Rented != "" || a.config.InstanceType != "" ||
		a.env.Pod) {
		return
	}
	m := &metadataClient{metadata: imds.New(imds.Options{
		Endpoint: a.env.Network.Metadata, HTTPClient: a.env.Network.MetadataClient,
		Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}
	for tries := 0; ; tries++ {
		if err := m.findIdentity(ctx); err == nil {
			break
		} else if a.config.Rented != rentedEC2 && tries >= 2 {
			a.log.Debug("this machine is not an EC2 instance", "error", err)
			return
		} else if tries == 2 {
			a.log.Warn("cannot reach the metadata service, which announces the end of this machine; "+
				"the agent tries again", "error", err)
		}
		if !pause(ctx, spotEvery) {
			return
		}
	}
	m.reportEnd(a, notice{})
	a.log.Info("the agent runs on a rented machine", "instance", m.rented.Instance, "slot",
		m.rented.Slot,
		"zone", m.rented.Zone, "spot", m.spot)
	every := maintenanceEvery
	if m.spot {
		every = spotEvery
	}
	home, began := a.knowsFleet(m.rented.Instance), time.Now()
	var last notice
	for failed := false; ; {
		if !home {
			home = a.foundFleet(m.rented.Instance)
		}
		if !home && a.config.Rented == rentedEC2 && m.rented.Slot != "" &&
			time.Since(began) > homeless {
			a.log.Error("this rented machine has found no fleet: draining", "join", a.config.Join,
				"after_s", homeless.Seconds(), eventKey, "notice")
			a.askedToStop(errNoFleet)
			return
		}
		next, err := m.askEnd(ctx, last, time.Now())
		if err != nil && !failed && ctx.Err() == nil {
			a.log.Warn("cannot read whether the provider takes this machine back; the agent tries "+
				"again", "error", err)
		}
		failed = err != nil
		if next != last {
			a.handleNotice(next)
			m.reportEnd(a, next)
			last = next
		}
		wait := every
		if !next.ends.IsZero() {
			if time.Until(next.ends) < m.told/2 {
				m.reportEnd(a, next)
			}
			left := time.Until(next.ends) - a.drainLead()
			if left <= 0 {
				a.askedToStop(errMachineEnds)
				return
			}
			wait = min(wait, left)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// findIdentity asks what this machine is. The slot is in a tag, which the launch template has the
// service show; a machine without it is no fleet's.
func (m *metadataClient) findIdentity(ctx context.Context) error {
	id, err := m.get(ctx, "instance-id")
	if err != nil {
		return err
	}
	zone, err := m.get(ctx, "placement/availability-zone")
	if err != nil && !errors.Is(err, errNone) {
		return err
	}
	life, err := m.get(ctx, "instance-life-cycle")
	if err != nil && !errors.Is(err, errNone) {
		return err
	}
	slot, err := m.get(ctx, "tags/instance/muster:slot")
	if err != nil && !errors.Is(err, errNone) {
		return err
	}
	if _, err := rent.ParseSlotTag(slot); err != nil {
		slot = ""
	}
	if id == "" || len(id)+len(zone) > largestInstanceType {
		return fmt.Errorf("metadata service: instance %q in zone %q", id, zone)
	}
	m.rented = &control.Rented{Instance: id, Slot: slot, Zone: zone}
	m.spot = life == "spot"
	return nil
}

// askEnd returns what is known of the machine's end after asking again: last, where nothing is new.
// An end that was told is not taken back while it is ahead.
func (m *metadataClient) askEnd(ctx context.Context, last notice, now time.Time) (notice, error) {
	if !m.spot {
		text, err := m.get(ctx, "events/maintenance/scheduled")
		if errors.Is(err, errNone) {
			return notice{}, nil
		}
		if err != nil {
			return last, err
		}
		return parseMaintenance(text, last, now)
	}
	action, err := m.get(ctx, "spot/instance-action")
	switch {
	case err == nil && last.ends.IsZero():
		return parseInterruption(action, now), nil
	case err == nil:
		return last, nil
	case !errors.Is(err, errNone):
		return last, err
	case !last.ends.IsZero():
		return last, nil
	}
	_, err = m.get(ctx, "events/recommendations/rebalance")
	switch {
	case err == nil:
		return notice{advised: true, why: "rebalance recommendation"}, nil
	case errors.Is(err, errNone):
		return notice{}, nil
	}
	return last, err
}

// parseInterruption reads {"action": "terminate", "time": "2026-11-23T08:22:00Z"}. A notice that
// cannot be read is one all the same, and the clock of this machine may be wrong: the end is within
// spotWarning in any case.
func parseInterruption(text string, now time.Time) notice {
	var told struct {
		Action string
		Time   time.Time
	}
	n := notice{ends: now.Add(spotWarning), advised: true, why: "spot interruption"}
	if err := json.Unmarshal([]byte(text), &told); err != nil || told.Time.IsZero() {
		return n
	}
	if told.Time.Before(n.ends) && told.Time.After(now) {
		n.ends = told.Time
	}
	return n
}

// parseMaintenance reads the list of the machine's scheduled events, and takes the first that stops
// it.
func parseMaintenance(text string, last notice, now time.Time) (notice, error) {
	var events []struct{ Code, NotBefore, State string }
	if err := json.Unmarshal([]byte(text), &events); err != nil {
		return last, fmt.Errorf("scheduled maintenance: %w", err)
	}
	var first notice
	var at time.Time
	for _, e := range events {
		if slices.Contains([]string{"completed", "canceled"}, strings.ToLower(e.State)) {
			continue
		}
		t, err := time.Parse("2 Jan 2006 15:04:05 MST", e.NotBefore)
		if err != nil {
			return last, fmt.Errorf("scheduled maintenance: %s: NotBefore: %w", e.Code, err)
		}
		if at.IsZero() || t.Before(at) {
			at = t
			first = notice{advised: true, why: e.Code}
			if t.Sub(now) <= maintenanceNear {
				first.ends = t
			}
		}
	}
	return first, nil
}

// handleNotice tells the log what the provider says now, and bounds the drain by it.
func (a *Agent) handleNotice(n notice) {
	a.ends.Store(&n)
	if n.ends.IsZero() {
		if n.advised {
			a.log.Warn("the provider advises to leave this machine", "reason", n.why, eventKey,
				"notice")
		} else {
			a.log.Info("the provider has taken its notice back", eventKey, "notice")
		}
		return
	}
	a.log.Warn("the provider takes this machine back", "reason", n.why, "in_ms",
		time.Until(n.ends).Milliseconds(), eventKey, "notice")
}

// drainLead is how long before its machine's end this agent drains.
func (a *Agent) drainLead() time.Duration {
	longest := time.Duration(0)
	for _, m := range a.members.Own().GetModels() {
		longest = max(longest, time.Duration(m.GetQosTargetNs()))
	}
	return max(minDrain, 3*longest)
}

// drainTimes are Config.DrainDelay and Config.DrainTimeout, cut to what is left of the machine's
// time, of which the delay gets at most a quarter: what is in progress goes before what may come.
func (a *Agent) drainTimes() (delay, timeout time.Duration) {
	delay, timeout = a.config.DrainDelay, a.config.DrainTimeout
	if n := a.ends.Load(); n != nil && !n.ends.IsZero() {
		left := max(0, time.Until(n.ends)-afterDrain)
		delay = min(delay, left/4)
		timeout = min(timeout, left-delay)
	}
	return delay, timeout
}
