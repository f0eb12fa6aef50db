package ec2

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/plugin"
)

// Program is the program muster-ec2.
func Program() plugin.Program {
	return plugin.Program{Name: "ec2", Policy: policyOf,
		Open: func(ctx context.Context, f plugin.Fleet, log *slog.Logger) (cloud.Provider, error) {
			return openFor(ctx, f, log)
		},
	}
}

// openFor opens the provider of a fleet, with the credentials that AWS's own tools would use.
func openFor(ctx context.Context, f plugin.Fleet, log *slog.Logger) (*Provider, error) {
	c, err := fleetConfig(f)
	if err != nil {
		return nil, err
	}
	c.Log = log
	return Open(ctx, c)
}

// fleetConfig is what an agent says of its fleet.
func fleetConfig(f plugin.Fleet) (Config, error) {
	c := Config{Fleet: f.Name, Types: f.Types, StateDir: f.StateDir, Prices: f.Prices}
	d := json.NewDecoder(bytes.NewReader(f.Settings))
	d.DisallowUnknownFields() // of a later version of Muster
	if err := d.Decode(&c.Settings); err != nil {
		return c, fmt.Errorf("the section ec2 of fleet.yaml: %w", err)
	}
	return c, nil
}

// policyOf is [plugin.Program]'s Policy. Without an account, AWS is asked for that and for what
// else bounds the policy.
func policyOf(ctx context.Context, f plugin.Fleet, account, workerRole string) (string, error) {
	c, err := fleetConfig(f)
	if err != nil {
		return "", err
	}
	scope := PolicyScope{Fleet: c.Fleet, Region: c.Region, Account: account, Types: c.Types}
	if strings.HasPrefix(c.Template, "lt-") {
		scope.Template = c.Template
	}
	if account == "" {
		p, err := Open(ctx, c)
		if err == nil {
			scope, err = p.Scope(ctx)
		}
		if err != nil {
			return "", fmt.Errorf("%w; %w", err,
				errors.New("with --account NUMBER the policy is printed without asking AWS"))
		}
	}
	scope.WorkerRole = workerRole
	text, err := Policy(scope)
	return string(text), err
}
