package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// Labels and annotations of what is rented.
const (
	fleetLabel         = "muster.dev/fleet"
	slotAnnotation     = "muster.dev/slot"
	byAnnotation       = "muster.dev/by"
	drainedAnnotation  = "muster.dev/drained"
	templateAnnotation = "muster.dev/template"
	versionAnnotation  = "muster.dev/desired-version"

	typeLabel = "node.kubernetes.io/instance-type"
	zoneLabel = "topology.kubernetes.io/zone"
)

// anyZone is the zone of a provider that is told of none.
const anyZone = "any"

const (
	// listed is how long a pod that has ended is listed.
	listed = time.Hour
	// shortFor is how long a type is short after one of its pods found no node. Chosen: a cluster's
	// autoscaler has then tried again several times.
	shortFor = 10 * time.Minute
)

// A Config says from what the pods of a fleet are made, and where they may run.
type Config struct {
	Fleet   string
	Account Account
	// Template is the ConfigMap whose key pod.yaml is a pod, TemplateVersion what its pods are
	// marked with.
	Template, TemplateVersion string
	// Zones are those to choose from; none: the cluster's scheduler chooses.
	Zones []string
	// Nodes says how the cluster's nodes tell spot from on demand: one of Labelings.
	Nodes string
	// Prices of kinds in $/hr, by [rent.Kind.String]. A spot price that is not here is not known,
	// and such machines are not offered.
	Prices map[string]float64
	// LaunchTimeout is how long a pod may find no node.
	LaunchTimeout time.Duration
	// Types are those to choose from.
	Types []profiles.InstanceType
	Log   *slog.Logger
}

// labelings are the labels of nodes by market.
var labelings = map[string]struct {
	label          string
	onDemand, spot string // "": nodes of the market have no such label
}{
	"karpenter": {"karpenter.sh/capacity-type", "on-demand", "spot"},
	"eks":       {"eks.amazonaws.com/capacityType", "ON_DEMAND", "SPOT"},
	"gke":       {"cloud.google.com/gke-spot", "", "true"},
	"aks":       {"kubernetes.azure.com/scalesetpriority", "", "spot"},
}

// Labelings are the values of Config.Nodes.
func Labelings() []string { return slices.Sorted(maps.Keys(labelings)) }

// A Provider makes and deletes pods. It implements [cloud.Provider].
type Provider struct {
	config Config
	client *client
	cancel context.CancelFunc
	ended  chan struct{} // closed when the watch's goroutine has ended

	mu      sync.Mutex
	version string // of the list or the last event
	fresh   bool   // what is known is what a list or a watch that goes on says
	pods    map[string]*known
	gone    map[string]*known // that ended lately and exist no more
	changes uint64            // of pods
	short   map[rent.Kind]shortage
}

// A known pod is one as it was seen last.
type known struct {
	pod
	slot  rent.Slot
	waits time.Time // since when it finds no node; zero: it does not wait
	ended time.Time // when its end was seen; zero: it has not ended
	at    uint64    // the change that it was seen by
}

// A shortage says why a kind cannot be had, and until when to believe it.
type shortage struct {
	until time.Time
	why   string
}

// A pod is what is read of one.
type pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		UID               string            `json:"uid"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		ResourceVersion   string            `json:"resourceVersion"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// waiting says why the scheduler finds no node for the pod; "" if it has one, or was not looked at.
func (p *pod) waiting() string {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" && c.Reason == "Unschedulable" {
			return c.Message
		}
	}
	return ""
}

// isOlder reports whether p is what the same pod was before other. Versions of an object are numbers
// that grow.
func (p *pod) isOlder(other *pod) bool {
	version, err := strconv.ParseUint(p.Metadata.ResourceVersion, 10, 64)
	than, otherErr := strconv.ParseUint(other.Metadata.ResourceVersion, 10, 64)
	return err == nil && otherErr == nil && version < than
}

func (p *pod) state() rent.InstanceState {
	switch {
	case p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded":
		return rent.Gone
	case p.Metadata.DeletionTimestamp != nil:
		return rent.Stopping
	case p.Status.Phase == "Running":
		return rent.Running
	}
	return rent.Pending
}

// New returns a provider of the fleet, and starts to follow its pods. The caller closes it.
func New(config Config) (*Provider, error) {
	if _, ok := labelings[config.Nodes]; !ok {
		return nil, fmt.Errorf("nodes: %q, want one of %q", config.Nodes, Labelings())
	}
	c, err := newClient(config.Account)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Provider{
		config: config, client: c, cancel: cancel, ended: make(chan struct{}),
		pods: map[string]*known{}, gone: map[string]*known{}, short: map[rent.Kind]shortage{},
	}
	go p.follow(ctx)
	return p, nil
}

// Close ends the watch and waits for it.
func (p *Provider) Close() error {
	p.cancel()
	<-p.ended
	p.client.close()
	return nil
}

func (p *Provider) labels() string { return fleetLabel + "=" + p.config.Fleet }

// follow lists the fleet's pods and then watches them, until ctx ends.
func (p *Provider) follow(ctx context.Context) {
	defer close(p.ended)
	const minPause, maxPause = time.Second, 30 * time.Second
	for wait := minPause; ctx.Err() == nil; {
		err := p.refresh(ctx)
		for err == nil { // the server ends a watch now and then
			wait = minPause
			err = p.client.watch(ctx, "pods", p.labels(), p.lastVersion(), p.handleEvent)
		}
		p.mu.Lock()
		p.fresh = false
		p.mu.Unlock()
		if code := codeOf(err); code == http.StatusGone || code == http.StatusGatewayTimeout {
			continue // the version is too old, or too new for the server asked: list again
		}
		if ctx.Err() == nil {
			p.config.Log.Warn("the watch of the fleet's pods broke; the agent lists them again",
				"error", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, maxPause)
	}
}

func (p *Provider) lastVersion() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// refresh lists the pods.
func (p *Provider) refresh(ctx context.Context) error {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []pod `json:"items"`
	}
	p.mu.Lock()
	asked := p.changes
	p.mu.Unlock()
	if err := p.client.list(ctx, "pods", p.labels(), &list); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// What was seen since the server was asked, such as a pod just made, the list may be too old for.
	isNewer := func(uid string) bool { return p.pods[uid] != nil && p.pods[uid].at > asked }
	there := map[string]bool{}
	for i := range list.Items {
		uid := list.Items[i].Metadata.UID
		if there[uid] = true; !isNewer(uid) {
			p.see(&list.Items[i])
		}
	}
	for uid := range p.pods {
		if !there[uid] && !isNewer(uid) {
			p.lose(uid)
		}
	}
	p.version, p.fresh = list.Metadata.ResourceVersion, true
	return nil
}

func (p *Provider) handleEvent(e event) error {
	var of pod
	if err := json.Unmarshal(e.Object, &of); err != nil {
		return fmt.Errorf("watch pods: %s: %w", e.Type, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = of.Metadata.ResourceVersion
	switch e.Type {
	case "ADDED", "MODIFIED":
		p.see(&of)
	case "DELETED":
		p.lose(of.Metadata.UID)
	}
	return nil
}

// see notes a pod as it is now. mu is held.
func (p *Provider) see(of *pod) *known {
	slot, err := rent.ParseSlotTag(of.Metadata.Annotations[slotAnnotation])
	uid := of.Metadata.UID
	ours := err == nil && of.Metadata.Labels[fleetLabel] == p.config.Fleet
	if !ours || p.gone[uid] != nil { // or of an answer that is older than its end
		return nil
	}
	k := &known{pod: *of, slot: slot}
	if last := p.pods[uid]; last != nil {
		if of.isOlder(&last.pod) { // an answer that the watch was faster than
			return last
		}
		k.waits, k.ended = last.waits, last.ended
	}
	if of.waiting() == "" {
		k.waits = time.Time{}
	} else if k.waits.IsZero() {
		k.waits = time.Now()
	}
	if of.state() == rent.Gone && k.ended.IsZero() {
		k.ended = time.Now()
	}
	p.keep(k)
	return k
}

// keep notes what is known of a pod. mu is held.
func (p *Provider) keep(k *known) {
	p.changes++
	k.at = p.changes
	p.pods[k.Metadata.UID] = k
}

// lose notes that a pod exists no more. mu is held.
func (p *Provider) lose(uid string) {
	if k := p.pods[uid]; k != nil {
		delete(p.pods, uid)
		k.ended = time.Now()
		p.gone[uid] = k
	}
}

// Offers returns the prices of the settings, and on demand else those of the catalogue.
func (p *Provider) Offers(_ context.Context, types []profiles.InstanceType) ([]cloud.Offer, error) {
	var offers []cloud.Offer
	for _, t := range types {
		for _, market := range []rent.Market{rent.OnDemand, rent.Spot} {
			kind := rent.Kind{Type: t, Market: market}
			price := p.config.Prices[kind.String()]
			for _, zone := range p.zones() {
				if price > 0 {
					offers = append(offers, cloud.Offer{Kind: kind, Zone: zone, Price: price})
				}
			}
		}
	}
	return offers, nil
}

func (p *Provider) zones() []string {
	if len(p.config.Zones) == 0 {
		return []string{anyZone}
	}
	return p.config.Zones
}

// List implements [cloud.Provider]. It also deletes pods that nothing will come of, and those that
// ended long ago.
func (p *Provider) List(ctx context.Context) ([]rent.Instance, error) {
	p.mu.Lock()
	fresh := p.fresh
	p.mu.Unlock()
	if !fresh {
		if err := p.refresh(ctx); err != nil {
			return nil, errorOf(err)
		}
	}
	if err := p.tidy(ctx); err != nil {
		return nil, errorOf(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []rent.Instance
	for _, of := range []map[string]*known{p.pods, p.gone} {
		for _, uid := range slices.Sorted(maps.Keys(of)) {
			all = append(all, p.toInstance(of[uid]))
		}
	}
	return all, nil
}

// tidy deletes pods that have found no node for the launch timeout, whose kind is short from then
// on, and pods that ended long ago.
func (p *Provider) tidy(ctx context.Context) error {
	p.mu.Lock()
	var useless []*known
	for _, k := range p.pods {
		switch k.state() {
		case rent.Pending:
			if !k.waits.IsZero() && time.Since(k.waits) >= p.config.LaunchTimeout {
				p.short[k.slot.Kind] = shortage{time.Now().Add(shortFor), k.waiting()}
				useless = append(useless, k)
			}
		case rent.Gone:
			if time.Since(k.ended) >= listed {
				useless = append(useless, k)
			}
		}
	}
	maps.DeleteFunc(p.gone, func(_ string, k *known) bool { return time.Since(k.ended) >= listed })
	maps.DeleteFunc(p.short, func(_ rent.Kind, s shortage) bool { return time.Now().After(s.until) })
	p.mu.Unlock()
	for _, k := range useless {
		if k.state() == rent.Pending {
			p.config.Log.Warn("a pod found no node and is deleted", "pod", k.Metadata.Name, "slot",
				k.slot.String(), "reason", k.waiting())
		}
		if err := p.end(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// end deletes a pod, and notes that it is about to go.
func (p *Provider) end(ctx context.Context, k *known) error {
	err := p.client.remove(ctx, "pods", k.Metadata.Name, k.Metadata.UID)
	// Another one has the name by now, or nobody has.
	missing := codeOf(err) == http.StatusNotFound || codeOf(err) == http.StatusConflict
	if err != nil && !missing {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k = p.pods[k.Metadata.UID]; k == nil {
		return nil
	}
	if missing {
		p.lose(k.Metadata.UID)
	} else if k.Metadata.DeletionTimestamp == nil {
		changed, now := *k, time.Now()
		changed.Metadata.DeletionTimestamp = &now
		p.keep(&changed)
	}
	return nil
}

// toInstance is what List says of a pod.
func (p *Provider) toInstance(k *known) rent.Instance {
	notes := k.Metadata.Annotations
	i := rent.Instance{
		ID: k.Metadata.UID, Slot: k.slot, State: k.state(), By: notes[byAnnotation],
		Drained: notes[drainedAnnotation] != "", Template: notes[templateAnnotation],
		Price: p.config.Prices[k.slot.Kind.String()],
		Age:   max(0, p.client.now().Sub(k.Metadata.CreationTimestamp)),
		Zone:  k.Metadata.Labels[zoneLabel],
	}
	if i.Zone == "" {
		i.Zone = anyZone
		if zones := p.zones(); len(zones) == 1 {
			i.Zone = zones[0]
		}
	}
	if p.pods[k.Metadata.UID] == nil {
		i.State = rent.Gone
	}
	return i
}

// podName is that of a slot's pod.
func (p *Provider) podName(slot rent.Slot) string {
	return "muster-" + cloud.Token(p.config.Fleet, slot)
}

// spent reports whether a slot's pod has ended. mu is held.
func (p *Provider) spent(name string) bool {
	for _, of := range []map[string]*known{p.pods, p.gone} {
		for uid, k := range of {
			if k.Metadata.Name == name && (p.gone[uid] != nil || k.state() >= rent.Stopping) {
				return true
			}
		}
	}
	return false
}

// isKnown reports whether a pod of this name is or was there. mu is held.
func (p *Provider) isKnown(name string) bool {
	for _, of := range []map[string]*known{p.pods, p.gone} {
		for _, k := range of {
			if k.Metadata.Name == name {
				return true
			}
		}
	}
	return false
}

// Launch makes the slot's pod, if nobody has.
func (p *Provider) Launch(ctx context.Context, slot rent.Slot, spec cloud.Spec) (rent.Instance,
	error) {
	name := p.podName(slot)
	p.mu.Lock()
	short, isShort := p.short[slot.Kind]
	isSpent, isKnown := p.spent(name), p.isKnown(name)
	p.mu.Unlock()
	if isSpent {
		return rent.Instance{}, fmt.Errorf("%s: %w", slot, cloud.ErrSpent)
	}
	if isShort && !isKnown && time.Now().Before(short.until) {
		return rent.Instance{}, &cloud.ErrShort{Kind: slot.Kind, Zones: p.zones(), Why: short.why}
	}
	made, err := p.newPod(ctx, slot, spec)
	if err != nil {
		return rent.Instance{}, err
	}
	var of pod
	err = p.client.create(ctx, "pods", false, made, &of)
	if e, ok := errors.AsType[*apiError](err); ok && e.Reason == "AlreadyExists" {
		if err = p.client.get(ctx, "pods", name, &of); codeOf(err) == http.StatusNotFound {
			return rent.Instance{}, fmt.Errorf("%s: %w", slot, cloud.ErrSpent) // between the two
		}
		if fleet := of.Metadata.Labels[fleetLabel]; err == nil && fleet != p.config.Fleet {
			return rent.Instance{}, fmt.Errorf("the pod %s is of the fleet %q: %w", name, fleet,
				cloud.ErrDenied)
		}
	} else if err == nil && isKnown {
		// The pod that was there has ended in between, and this one is nobody's.
		if err := p.client.remove(ctx, "pods", name, of.Metadata.UID); err != nil {
			return rent.Instance{}, errorOf(err)
		}
		return rent.Instance{}, fmt.Errorf("%s: %w", slot, cloud.ErrSpent)
	}
	if err != nil {
		return rent.Instance{}, errorOf(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.see(&of)
	if k == nil || k.state() >= rent.Stopping {
		return rent.Instance{}, fmt.Errorf("%s: %w", slot, cloud.ErrSpent)
	}
	return p.toInstance(k), nil
}

// find returns the pods with the ids, without those that nobody knows. One of another fleet is an
// error.
func (p *Provider) find(ctx context.Context, ids []string) ([]*known, error) {
	var found []*known
	var unknown []string
	p.mu.Lock()
	for _, id := range ids {
		if k := p.pods[id]; k != nil {
			found = append(found, k)
		} else if p.gone[id] == nil {
			unknown = append(unknown, id)
		}
	}
	p.mu.Unlock()
	if len(unknown) == 0 {
		return found, nil
	}
	var list struct{ Items []pod }
	if err := p.client.list(ctx, "pods", fleetLabel, &list); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range list.Items {
		of := &list.Items[i]
		if !slices.Contains(unknown, of.Metadata.UID) {
			continue
		}
		if fleet := of.Metadata.Labels[fleetLabel]; fleet != p.config.Fleet {
			return nil, fmt.Errorf("%s is of the fleet %q, and not of %q", of.Metadata.UID, fleet,
				p.config.Fleet)
		}
		if k := p.see(of); k != nil {
			found = append(found, k)
		}
	}
	return found, nil
}

// Mark annotates the pods.
func (p *Provider) Mark(ctx context.Context, ids ...string) error {
	pods, err := p.find(ctx, ids)
	if err != nil {
		return errorOf(err)
	}
	for _, k := range pods {
		err := p.client.patch(ctx, "pods", k.Metadata.Name, k.Metadata.UID, map[string]any{
			"annotations": map[string]string{drainedAnnotation: "true"},
		})
		if code := codeOf(err); code == http.StatusNotFound || code == http.StatusConflict {
			continue // it has ended
		}
		if err != nil {
			return errorOf(err)
		}
		p.mu.Lock()
		if now := p.pods[k.Metadata.UID]; now != nil {
			changed := *now
			changed.Metadata.Annotations = maps.Clone(now.Metadata.Annotations)
			changed.Metadata.Annotations[drainedAnnotation] = "true"
			p.keep(&changed)
		}
		p.mu.Unlock()
	}
	return nil
}

// Return deletes the pods.
func (p *Provider) Return(ctx context.Context, ids ...string) error {
	pods, err := p.find(ctx, ids)
	if err != nil {
		return errorOf(err)
	}
	for _, k := range pods {
		if err := p.end(ctx, k); err != nil {
			return errorOf(err)
		}
	}
	return nil
}

// errorOf adds to an answer of the API server which error of package cloud it is, if it is one.
func errorOf(err error) error {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		return err
	}
	kind := error(nil)
	switch {
	case e.Code == http.StatusForbidden && strings.Contains(e.Message, "exceeded quota"):
		kind = cloud.ErrQuota
	case e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden ||
		e.Code == http.StatusUnprocessableEntity || e.Code == http.StatusBadRequest ||
		e.Code == http.StatusNotFound:
		kind = cloud.ErrDenied
	case e.Code == http.StatusTooManyRequests:
		kind = cloud.ErrThrottled
	default:
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}
