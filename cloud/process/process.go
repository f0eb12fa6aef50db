// Package process is a provider whose instances are emulated agents, as processes on this machine:
// for demonstrations and tests of renting. They cost nothing; their prices are the catalogue's.
// Spot instances are as others, and cheaper.
//
// An instance outlives the agent that launched it, as a rented machine does. What is known of it is
// in a file, written before its program begins, so that whoever comes later finds it.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// zone is where all instances are.
const zone = "here"

// spotPrice is the share of the price on demand that a spot instance costs.
const spotPrice = 0.35

const (
	// patience is how long an instance may take to end before it is killed.
	patience = 40 * time.Second
	// listed is how long one that has ended is listed.
	listed = time.Hour
	// claimed is how long a launch may take from its claim to its process.
	claimed = 10 * time.Second
)

// A Config says what the instances are.
type Config struct {
	Fleet string
	// Dir is where the instances' files and states are kept.
	Dir string
	// Program is the muster that runs, Models its model repository, Join the gossip address that it
	// joins, and Arguments are further ones of muster agent.
	Program, Models, Join string
	Arguments             []string
	// Boots is the time until the program of an instance begins.
	Boots time.Duration
	// Short are types that cannot be had.
	Short     []profiles.InstanceType
	Catalogue *profiles.Catalogue
}

// A Provider starts processes. It implements [cloud.Provider].
type Provider struct{ config Config }

// New returns a provider of the fleet, and makes its directory.
func New(config Config) (*Provider, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("instances that are processes need Linux; this is %s", runtime.GOOS)
	}
	if err := os.MkdirAll(config.Dir, 0o755); err != nil {
		return nil, err
	}
	return &Provider{config}, nil
}

// A record is an instance's file.
type record struct {
	ID, Slot, Fleet, By string
	Launched            time.Time
	PID                 int    // 0: only claimed
	Start               string // of the process, as the system counts
	Marked              bool
	Returned            time.Time // zero: it was not
	Ended               time.Time // when that was first seen; zero: it runs
}

func (p *Provider) recordPath(id string) string { return filepath.Join(p.config.Dir, id+".json") }

func (p *Provider) save(r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return files.Replace(p.recordPath(r.ID), text, 0o644)
}

// errEmpty: a record's file has nothing in it. Its launch has just made it, or ended there, before
// its process began.
var errEmpty = errors.New("the file is empty")

func (p *Provider) load(id string) (*record, error) {
	text, err := os.ReadFile(p.recordPath(id))
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, errEmpty
	}
	r := &record{}
	return r, json.Unmarshal(text, r)
}

// startOf is when a process began, as the system counts; "" if there is none any more.
func startOf(pid int) string {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	// The command, in parentheses, may have anything in it. The state is the 3rd field of all, the
	// start the 22nd.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}

func (r *record) isAlive() bool { return r.PID > 0 && r.Start != "" && startOf(r.PID) == r.Start }

// toInstance is what List says of r.
func (p *Provider) toInstance(r *record) (rent.Instance, error) {
	slot, err := rent.ParseSlotTag(r.Slot)
	if err != nil {
		return rent.Instance{}, fmt.Errorf("%s: %w", p.recordPath(r.ID), err)
	}
	i := rent.Instance{ID: r.ID, Slot: slot, Zone: zone, By: r.By, Drained: r.Marked,
		Age: time.Since(r.Launched), State: rent.Running}
	i.Price = p.cataloguePrice(slot.Kind)
	switch {
	case !r.Ended.IsZero():
		i.State = rent.Gone
	case !r.Returned.IsZero():
		i.State = rent.Stopping
	case r.PID == 0:
		i.State = rent.Pending
	}
	return i, nil
}

// cataloguePrice is the catalogue's price of a kind, 0 if that does not know the type.
func (p *Provider) cataloguePrice(kind rent.Kind) float64 {
	known, err := p.config.Catalogue.Lookup(kind.Type)
	switch {
	case err != nil:
		return 0
	case kind.Market == rent.Spot:
		return spotPrice * known.PriceUSDPerHour
	}
	return known.PriceUSDPerHour
}

// refreshRecord brings a record up to date with its process.
func (p *Provider) refreshRecord(r *record) error {
	if !r.Ended.IsZero() {
		return nil
	}
	switch {
	case r.isAlive():
		if !r.Returned.IsZero() && time.Since(r.Returned) > patience {
			_ = signalGroup(r.PID, syscall.SIGKILL)
		}
		return nil
	case r.PID == 0 && time.Since(r.Launched) < claimed:
		return nil
	}
	r.Ended = time.Now()
	return p.save(r)
}

// Offers returns the catalogue's prices, and a part of them as those of the spot market.
func (p *Provider) Offers(_ context.Context, types []profiles.InstanceType) ([]cloud.Offer, error) {
	var offers []cloud.Offer
	for _, t := range types {
		for _, market := range []rent.Market{rent.OnDemand, rent.Spot} {
			kind := rent.Kind{Type: t, Market: market}
			if price := p.cataloguePrice(kind); price > 0 {
				offers = append(offers, cloud.Offer{Kind: kind, Zone: zone, Price: price})
			}
		}
	}
	return offers, nil
}

// List reads the files of all instances.
func (p *Provider) List(context.Context) ([]rent.Instance, error) {
	files, err := filepath.Glob(p.recordPath("p-*"))
	if err != nil {
		return nil, err
	}
	var all []rent.Instance
	for _, file := range files {
		r, err := p.load(strings.TrimSuffix(filepath.Base(file), ".json"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, errEmpty):
			removeOld(file)
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case r.Fleet != p.config.Fleet:
			continue
		}
		if err := p.refreshRecord(r); err != nil {
			return nil, err
		}
		if !r.Ended.IsZero() && time.Since(r.Ended) > listed {
			_ = os.Remove(file) // another may have removed it
			continue
		}
		i, err := p.toInstance(r)
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, nil
}

// removeOld removes the empty file of a launch that is not carried out any more, so that the slot
// can be asked for again.
func removeOld(file string) {
	if info, err := os.Stat(file); err == nil && time.Since(info.ModTime()) > claimed {
		_ = os.Remove(file) // another may have removed it
	}
}

// Launch starts the slot's process, if nobody has.
func (p *Provider) Launch(_ context.Context, slot rent.Slot, spec cloud.Spec) (rent.Instance,
	error) {
	if slices.Contains(p.config.Short, slot.Type) {
		return rent.Instance{}, &cloud.ErrShort{Kind: slot.Kind, Zones: []string{zone},
			Why: "fleet.yaml says so"}
	}
	r := &record{ID: "p-" + cloud.Token(p.config.Fleet, slot)[:12], Slot: slot.String(),
		Fleet: p.config.Fleet, By: spec.By, Launched: time.Now()}
	text, err := json.Marshal(r)
	if err != nil {
		return rent.Instance{}, err
	}
	claim, err := os.OpenFile(p.recordPath(r.ID), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	switch {
	case errors.Is(err, fs.ErrExist):
		return p.knownInstance(r.ID)
	case err != nil:
		return rent.Instance{}, err
	}
	_, err = claim.Write(text)
	if err = errors.Join(err, claim.Close()); err == nil {
		err = p.start(r, slot)
	}
	if err != nil {
		return rent.Instance{}, errors.Join(err, os.Remove(p.recordPath(r.ID)))
	}
	return p.toInstance(r)
}

// knownInstance is the instance of a slot that was launched before.
func (p *Provider) knownInstance(id string) (rent.Instance, error) {
	r, err := p.load(id)
	if err == nil {
		err = p.refreshRecord(r)
	}
	if err != nil {
		return rent.Instance{}, err
	}
	if !r.Ended.IsZero() || !r.Returned.IsZero() {
		return rent.Instance{}, fmt.Errorf("%s: %w", r.Slot, cloud.ErrSpent)
	}
	return p.toInstance(r)
}

// start starts r's process. A shell waits until r is on disk, and ends if this process ends first.
func (p *Provider) start(r *record, slot rent.Slot) error {
	arguments := append([]string{
		"-c", `read go && sleep "$1" && shift && exec "$@"`, "sh",
		strconv.FormatFloat(p.config.Boots.Seconds(), 'f', 3, 64), p.config.Program, "agent",
		"--executor", "emulated", "--profile", "shipped", "--instance-type", string(slot.Type),
		"--model-dir", p.config.Models, "--state-dir", filepath.Join(p.config.Dir, r.ID),
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
		"--gossip", "127.0.0.1:0", "--join", p.config.Join, "--leader", "never",
		"--rented", r.ID + " " + r.Slot + " " + zone,
	}, p.config.Arguments...)
	log, err := os.Create(filepath.Join(p.config.Dir, r.ID+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", arguments...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup()
	release, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // until the instance ends, so that it leaves no zombie
	r.PID, r.Start = cmd.Process.Pid, startOf(cmd.Process.Pid)
	err = p.save(r)
	if err == nil {
		_, err = release.Write([]byte("go\n"))
	}
	return errors.Join(err, release.Close())
}

// Mark notes in the instances' files that they are being drained.
func (p *Provider) Mark(_ context.Context, ids ...string) error {
	return p.changeRecords(ids, func(r *record) { r.Marked = true })
}

// Return has the processes end, and kills those that do not.
func (p *Provider) Return(_ context.Context, ids ...string) error {
	return p.changeRecords(ids, func(r *record) {
		if r.Ended.IsZero() && r.Returned.IsZero() {
			r.Returned = time.Now()
			if r.isAlive() {
				_ = signalGroup(r.PID, syscall.SIGTERM) // it may have ended
			}
		}
	})
}

// changeRecords changes the instances' records; none if one is another fleet's.
func (p *Provider) changeRecords(ids []string, change func(*record)) error {
	var records []*record
	for _, id := range ids {
		r, err := p.load(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case r.Fleet != p.config.Fleet:
			return fmt.Errorf("%s is of the fleet %q, and not of %q", id, r.Fleet, p.config.Fleet)
		default:
			records = append(records, r)
		}
	}
	for _, r := range records {
		change(r)
		if err := p.save(r); err != nil {
			return err
		}
	}
	return nil
}

// Check looks for the program and the models.
func (p *Provider) Check(context.Context) []cloud.Fault {
	var faults []cloud.Fault
	for _, of := range []struct{ what, path string }{
		{"program", p.config.Program}, {"process.models", p.config.Models},
	} {
		if _, err := os.Stat(of.path); err != nil {
			faults = append(faults, cloud.Fault{What: of.what, Why: err.Error()})
		}
	}
	return faults
}

// Signal sends the process of an instance, whose file is in dir, a signal, as if its machine
// failed.
func Signal(dir, id string, signal syscall.Signal) error {
	p := &Provider{Config{Dir: dir}}
	r, err := p.load(id)
	if err != nil {
		return err
	}
	if !r.isAlive() {
		return fmt.Errorf("%s does not run", id)
	}
	return signalGroup(r.PID, signal)
}

// KillAll ends all instances whose files are in dir.
func KillAll(dir string) {
	p := &Provider{Config{Dir: dir}}
	files, _ := filepath.Glob(p.recordPath("p-*")) // the pattern is well formed
	for _, file := range files {
		_ = Signal(dir, strings.TrimSuffix(filepath.Base(file), ".json"), syscall.SIGKILL)
	}
}
