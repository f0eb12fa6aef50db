// Package fleetcmd is `muster fleet`: what a fleet rents, and what it is to.
package fleetcmd

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/ec2"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/cloud/process"
	"github.com/muster-serve/muster/profiles"
)

// openEC2 returns EC2's provider, with the credentials that AWS's own tools would use.
func openEC2(p *policy.Policy, stateDir string, catalogue *profiles.Catalogue) (*ec2.Provider,
	error) {
	return ec2.Open(context.Background(), ec2.Config{
		Settings: ec2.Settings(*p.EC2), Fleet: p.Fleet, Types: p.Names(), Catalogue: catalogue,
		StateDir: stateDir, Log: slog.Default(),
	})
}

// Open returns the provider that a policy names. What it launches for the agent with this config
// joins the agent's gossip at join.
func Open(p *policy.Policy, config agent.Config, join string) (cloud.Provider, error) {
	catalogue := profiles.DefaultCatalogue()
	if config.Catalogue != "" {
		var err error
		if catalogue, err = catalogue.ExtendFile(config.Catalogue); err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
	}
	if p.EC2 != nil {
		return openEC2(p, config.StateDir, catalogue)
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
