package fleetcmd

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cloud/kubernetes"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/profiles"
)

// policyCommand prints the rights of those that rent.
func policyCommand() *cobra.Command {
	var account, role string
	cmd := &cobra.Command{
		Use:   "policy FILE",
		Short: "Print the rights of those that may rent: an IAM policy, or a Role of Kubernetes",
		Long: `Print the IAM policy, as JSON, for the role of the machines whose agents rent by
this fleet.yaml: they may rent machines of the file's types, from its launch
template, with the fleet's tag, and end only machines with that tag.

The command asks AWS for the account, and for the launch template's image and
security groups. With --account it asks nobody, and the policy allows every image
and security group. For a fleet on Kubernetes it prints a Role, as YAML.`,
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
		if p.Kubernetes != nil {
			_, err = io.WriteString(cmd.OutOrStdout(), kubernetes.Role(p.Kubernetes.Namespace,
				p.Kubernetes.Template))
			return err
		}
		if p.EC2 == nil {
			return fmt.Errorf("%s: section %s, want ec2 or kubernetes: others need no rights",
				args[0], p.Provider())
		}
		provider, err := openPlugin(p, "", profiles.DefaultCatalogue(), slog.Default())
		if err != nil {
			return err
		}
		defer provider.Close()
		text, err := provider.Policy(cmd.Context(), account, role)
		if err != nil {
			return err
		}
		_, err = io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}
