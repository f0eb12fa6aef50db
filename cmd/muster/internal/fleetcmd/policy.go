package fleetcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cloud/ec2"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/profiles"
)

// policyCommand prints the rights of those that rent.
func policyCommand() *cobra.Command {
	var account, role string
	cmd := &cobra.Command{
		Use:   "policy FILE",
		Short: "Print the IAM policy of the machines that may rent on EC2",
		Long: `Print the IAM policy, as JSON, for the role of the machines whose agents rent by
this fleet.yaml: they may rent machines of the file's types, from its launch
template, with the fleet's tag, and end only machines with that tag.

The command asks AWS for the account, and for the launch template's image and
security groups. With --account it asks nobody, and the policy allows every image
and security group.`,
		Example: `  muster fleet policy fleet.yaml > keeper.json
  muster fleet policy fleet.yaml --account 123456789012`,
		Args: cobra.ExactArgs(1),
	}
	fs := cmd.Flags()
	fs.StringVar(&account, "account", "", "`number` of the account (default: that of the credentials)")
	fs.StringVar(&role, "worker-role", "muster-worker",
		"`name` of the role that the launch template gives to rented machines")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, _, err := policy.Read(args[0])
		if err != nil {
			return err
		}
		if p.EC2 == nil {
			return fmt.Errorf("%s: section %s, want ec2: only EC2 has policies", args[0],
				p.Provider())
		}
		scope := ec2.PolicyScope{
			Fleet: p.Fleet, Region: p.EC2.Region, Account: account, Types: p.Names(),
		}
		if strings.HasPrefix(p.EC2.Template, "lt-") {
			scope.Template = p.EC2.Template
		}
		if account == "" {
			if scope, err = askScope(cmd.Context(), p); err != nil {
				return err
			}
		}
		scope.WorkerRole = role
		text, err := ec2.Policy(scope)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	}
	return cmd
}

// askScope asks AWS what the policy is to be bounded by.
func askScope(ctx context.Context, p *policy.Policy) (ec2.PolicyScope, error) {
	provider, err := openEC2(p, "", profiles.DefaultCatalogue())
	if err != nil {
		return ec2.PolicyScope{}, err
	}
	scope, err := provider.Scope(ctx)
	if err != nil {
		err = fmt.Errorf("%w; %w", err,
			errors.New("with --account NUMBER the policy is printed without asking AWS"))
	}
	return scope, err
}
