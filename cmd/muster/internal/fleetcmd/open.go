// Package fleetcmd is `muster fleet`: what a fleet rents, and what it is to.
package fleetcmd

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/kubernetes"
	"github.com/muster-serve/muster/cloud/plugin"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/cloud/process"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// Find returns an error if this machine lacks the program of the provider that a policy names.
func Find(p *policy.Policy) error {
	if p.EC2 == nil {
		return nil
	}
	_, err := plugin.Find(p.Provider())
	return err
}

// openPlugin returns the provider of a policy that has one in a process of its own.
func openPlugin(p *policy.Policy, stateDir string, catalogue *profiles.Catalogue,
	log *slog.Logger) (*plugin.Provider, error) {
	settings, err := json.Marshal(p.EC2)
	if err != nil {
		return nil, err
	}
	fleet := plugin.Fleet{
		Name: p.Fleet, Types: p.Names(), Settings: settings, StateDir: stateDir,
		Prices: map[profiles.InstanceType]float64{},
	}
	for _, t := range catalogue.Types() {
		if known, err := catalogue.Lookup(t); err == nil {
			fleet.Prices[t] = known.PriceUSDPerHour
		}
	}
	return plugin.Open(p.Provider(), fleet, log), nil
}

// openKubernetes returns the provider of a policy whose machines are pods. Its prices are those of
// the policy, and on demand else the catalogue's.
func openKubernetes(p *policy.Policy, catalogue *profiles.Catalogue,
	log *slog.Logger) (cloud.Provider, error) {
	k := p.Kubernetes
	prices := map[string]float64{}
	for _, t := range p.Names() {
		if known, err := catalogue.Lookup(t); err == nil {
			prices[rent.Kind{Type: t}.String()] = known.PriceUSDPerHour
		}
	}
	maps.Copy(prices, k.Prices)
	return kubernetes.New(kubernetes.Config{
		Fleet: p.Fleet, Account: kubernetes.Account{Server: k.Server, Namespace: k.Namespace},
		Template: k.Template, TemplateVersion: k.TemplateVersion, Zones: k.Zones, Nodes: k.Nodes,
		Prices: prices, LaunchTimeout: k.LaunchTimeout, Types: p.Names(), Log: log,
	})
}

// Open returns the provider that a policy names. What it launches for the agent with this config
// joins the agent's gossip at join. The caller closes a provider that has a method Close.
func Open(p *policy.Policy, config agent.Config, join string, log *slog.Logger) (cloud.Provider,
	error) {
	catalogue := profiles.DefaultCatalogue()
	if config.Catalogue != "" {
		var err error
		if catalogue, err = catalogue.ExtendFile(config.Catalogue); err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
	}
	if p.EC2 != nil {
		return openPlugin(p, config.StateDir, catalogue, log)
	}
	if p.Kubernetes != nil {
		return openKubernetes(p, catalogue, log)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := process.Config{
		Fleet: p.Fleet, Dir: p.Process.Dir, Program: program, Models: p.Process.Models, Join: join,
		Boots: p.Process.Boots, Short: p.Process.Short, Catalogue: catalogue,
	}
	if config.GossipKey != "" {
		c.Arguments = append(c.Arguments, "--gossip-key", config.GossipKey)
	}
	if config.Catalogue != "" {
		c.Arguments = append(c.Arguments, "--catalogue", config.Catalogue)
	}
	return process.New(c)
}
