package fleetcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/rent"
)

// timeout bounds one call.
const timeout = 10 * time.Second

// ErrNotYet is what --wait ends with where the fleet is not as desired in time.
var ErrNotYet = errors.New("the fleet is not as desired yet")

// A Client calls a fleet.
type Client interface {
	Fleet(context.Context) (*control.FleetState, error)
	SetFleet(context.Context, *control.SetFleetRequest) (*control.FleetState, error)
	Close() error
}

// Dial adds the flags of a client to a command, and returns what opens it.
type Dial func(*cobra.Command) func() (Client, error)

// Commands are the commands of `muster fleet`.
func Commands(dial Dial) []*cobra.Command {
	return []*cobra.Command{
		statusCommand(dial), planCommand(dial), checkCommand(), applyCommand(dial),
		approveCommand(dial), pauseCommand(dial), resumeCommand(dial), bootstrapCommand(dial),
		destroyCommand(dial), policyCommand(),
	}
}

// withClient opens a client, and calls do with it.
func withClient(cmd *cobra.Command, open func() (Client, error),
	do func(context.Context, Client) error) error {
	c, err := open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	return errors.Join(do(ctx, c), c.Close())
}

func statusCommand(dial Dial) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show rented machines, desired machines and changes that are held",
		Long: `Show the machines that the fleet's leader rents: of each instance type how many are
desired, serve, start and drain, and their price. The leader's proposal follows,
then the changes that it holds back, with the reasons.`,
		Example: `  muster fleet status
  muster fleet status --json`,
		Args: cobra.NoArgs,
	}
	open := dial(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withClient(cmd, open, func(ctx context.Context, c Client) error {
			s, err := c.Fleet(ctx)
			if err != nil {
				return err
			}
			if !asJSON {
				return Print(cmd.OutOrStdout(), s)
			}
			text, err := protojson.MarshalOptions{UseProtoNames: true,
				EmitUnpopulated: true}.Marshal(s)
			if err != nil {
				return err
			}
			return terminal.PrintJSON(cmd.OutOrStdout(), json.RawMessage(text))
		})
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func planCommand(dial Dial) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the fleet that the leader proposes and the changes that it holds back",
		Example: `  muster fleet plan
  muster fleet approve`,
		Args: cobra.NoArgs,
	}
	open := dial(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withClient(cmd, open, func(ctx context.Context, c Client) error {
			s, err := c.Fleet(ctx)
			if err != nil {
				return err
			}
			terminal.SanitizeFields(s)
			var b strings.Builder
			b.WriteString(idleReason(s))
			printPlan(&b, s)
			if b.Len() == 0 {
				b.WriteString("\nthere is no plan yet\n")
			}
			_, err = io.WriteString(cmd.OutOrStdout(), strings.TrimPrefix(b.String(), "\n"))
			return err
		})
	}
	return cmd
}

func checkCommand() *cobra.Command {
	var catalogue string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a fleet.yaml, and whether the provider would rent its machines",
		Long: `Check a fleet.yaml: its lines, and whether its price limit pays for its minimum. Then
ask the provider, without renting, about rights, template and subnets.`,
		Example: `  muster fleet check fleet.yaml`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, _, err := policy.Read(args[0])
		if err != nil {
			return err
		}
		provider, err := Open(p, agent.Config{Catalogue: catalogue}, "127.0.0.1:7946",
			slog.Default())
		if err != nil {
			return err
		}
		if c, ok := provider.(io.Closer); ok {
			defer c.Close()
		}
		found := provider.Check(cmd.Context())
		var faults []error
		for _, f := range found {
			faults = append(faults, errors.New(f.String()))
		}
		offers, err := provider.Offers(cmd.Context(), p.Names())
		said := func(f cloud.Fault) bool { return strings.Contains(err.Error(), f.Why) }
		if err != nil && !slices.ContainsFunc(found, said) {
			faults = append(faults, fmt.Errorf("prices: %w", err))
		}
		prices := map[rent.Kind]float64{}
		for _, o := range offers {
			prices[o.Kind] = max(prices[o.Kind], o.Price)
		}
		for _, name := range p.Names() {
			if err == nil && prices[rent.Kind{Type: name}] == 0 {
				faults = append(faults, fmt.Errorf("limits.types.%s: the provider has no such type",
					name))
			}
		}
		if err == nil {
			faults = append(faults, p.Affords(prices))
		}
		if err := errors.Join(faults...); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: fleet %s, mode %s, provider %s: no fault found\n",
			args[0],
			p.Fleet, p.Mode, p.Provider())
		return nil
	}
	cmd.Flags().StringVar(&catalogue, "catalogue", "", "YAML `file` with further instance types")
	return cmd
}

// A changeOptions is a command that changes what is desired.
type changeOptions struct {
	open              func() (Client, error)
	yes, dryRun, wait bool
	timeout           time.Duration
}

func (c *changeOptions) addFlags(cmd *cobra.Command, dial Dial) {
	c.open = dial(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&c.yes, "yes", false, "make the change without asking")
	fs.BoolVar(&c.dryRun, "dry-run", false, "show what would change, and change nothing")
	fs.BoolVar(&c.wait, "wait", false, "wait until the fleet has the desired machines")
	fs.DurationVar(&c.timeout, "timeout", 15*time.Minute, "how long to wait")
}

// run shows what follows of a change, asks, makes it and waits.
func (c *changeOptions) run(cmd *cobra.Command,
	of func(*control.FleetState) (*control.SetFleetRequest,
		error)) error {
	out := cmd.OutOrStdout()
	var version uint64
	err := withClient(cmd, c.open, func(ctx context.Context, client Client) error {
		now, err := client.Fleet(ctx)
		if err != nil {
			return err
		}
		req, err := of(now)
		if err != nil {
			return err
		}
		req.ExpectedVersion, req.DryRun = now.GetDesired().GetVersion(), true
		would, err := client.SetFleet(ctx, req)
		if err != nil {
			return err
		}
		terminal.SanitizeFields(would)
		if !c.yes || c.dryRun {
			var b strings.Builder
			would.Proposal, would.Outlook = nil, ""
			printPlan(&b, would)
			fmt.Fprint(out, strings.TrimPrefix(b.String(), "\n"))
		}
		if c.dryRun {
			return nil
		}
		if !c.yes && !askConfirmation(cmd) {
			return errors.New("not done")
		}
		req.DryRun = false
		asked, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		state, err := client.SetFleet(asked, req)
		if err != nil {
			return err
		}
		version = state.GetDesired().GetVersion()
		fmt.Fprintf(out, "version %d is desired\n", version)
		return nil
	})
	if err != nil || c.dryRun || !c.wait {
		return err
	}
	return c.awaitVersion(cmd, version)
}

// askConfirmation asks a person.
func askConfirmation(cmd *cobra.Command) bool {
	fmt.Fprint(cmd.ErrOrStderr(), "Make this change? [y/N] ")
	line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // "" is no
	return strings.EqualFold(strings.TrimSpace(line), "y") ||
		strings.EqualFold(strings.TrimSpace(line), "yes")
}

// awaitVersion waits until a version is what the fleet is.
func (c *changeOptions) awaitVersion(cmd *cobra.Command, version uint64) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var last error
	for {
		err := withClient(cmd, c.open, func(ctx context.Context, client Client) error {
			s, err := client.Fleet(ctx)
			switch {
			case err != nil:
				return err
			case s.GetExact() && s.GetDesired().GetVersion() >= version:
				return nil
			}
			return ErrNotYet
		})
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), "the fleet is as desired")
			return nil
		}
		last = err
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w; muster fleet status shows which changes are held",
				c.timeout,
				last)
		}
	}
}

func applyCommand(dial Dial) *cobra.Command {
	var c changeOptions
	var counts []string
	cmd := &cobra.Command{
		Use:   "apply [FILE]",
		Short: "Give the leader another fleet.yaml, or set how many instances to rent",
		Long: `Give the fleet's leader another fleet.yaml or, with --count, set how many instances
of each type to rent. The leader rents and returns machines until the fleet has
them; if another agent becomes leader, it continues.`,
		Example: `  muster fleet apply fleet.yaml
  muster fleet apply --count g4dn.xlarge=1 --count r5n.large=4 --wait`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (len(counts) == 0) {
				return misuse.Errorf("want a fleet.yaml, or --count TYPE=N")
			}
			req := &control.SetFleetRequest{}
			if len(args) > 0 {
				_, text, err := policy.Read(args[0])
				if err != nil {
					return err
				}
				req.Change = &control.SetFleetRequest_Policy{Policy: text}
			} else {
				all := &control.FleetCounts{}
				for _, count := range counts {
					kind, number, _ := strings.Cut(count, "=")
					n, err := strconv.ParseUint(number, 10, 16)
					if err != nil {
						return misuse.Errorf("count: %q, want TYPE=N", count)
					}
					all.Counts = append(all.Counts, &control.FleetCount{Kind: kind,
						Count: uint32(n)})
				}
				req.Change = &control.SetFleetRequest_Counts{Counts: all}
			}
			return c.run(cmd, func(*control.FleetState) (*control.SetFleetRequest, error) {
				return req, nil
			})
		},
	}
	c.addFlags(cmd, dial)
	lists.Var(cmd.Flags(), &counts, "count", nil,
		"`TYPE=N`: rent N of this type, and none of the types that no --count names")
	return cmd
}

func approveCommand(dial Dial) *cobra.Command {
	var c changeOptions
	cmd := &cobra.Command{
		Use:   "approve [NUMBER]",
		Short: "Have the leader carry out its proposal",
		Example: `  muster fleet approve
  muster fleet approve 1048577 --yes --wait`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(s *control.FleetState) (*control.SetFleetRequest, error) {
				number := s.GetProposal().GetNumber()
				if number == 0 {
					return nil, errors.New("the leader has no proposal now")
				}
				if len(args) > 0 {
					var err error
					if number, err = strconv.ParseUint(args[0], 10, 64); err != nil {
						return nil, misuse.Errorf("%q, want the number of a proposal", args[0])
					}
				}
				return &control.SetFleetRequest{
					Change: &control.SetFleetRequest_Approve{Approve: number},
				}, nil
			})
		},
	}
	c.addFlags(cmd, dial)
	return cmd
}

// newSimpleCommand is a command that makes one change without asking.
func newSimpleCommand(dial Dial, cmd *cobra.Command,
	of func([]string) (*control.SetFleetRequest, error)) *cobra.Command {
	open := dial(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := of(args)
		if err != nil {
			return err
		}
		return withClient(cmd, open, func(ctx context.Context, c Client) error {
			s, err := c.SetFleet(ctx, req)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "version %d: %s\n", s.GetDesired().GetVersion(),
				s.GetDesired().GetWhy())
			return nil
		})
	}
	return cmd
}

func pauseCommand(dial Dial) *cobra.Command {
	return newSimpleCommand(dial, &cobra.Command{
		Use:   "pause [DURATION]",
		Short: "Stop the leader from renting and returning machines",
		Long: `Stop the leader from renting and returning machines, for DURATION or until
"muster fleet resume".`,
		Example: `  muster fleet pause 30m
  muster fleet pause`,
		Args: cobra.MaximumNArgs(1),
	}, func(args []string) (*control.SetFleetRequest, error) {
		pause := int64(-1)
		if len(args) > 0 {
			d, err := time.ParseDuration(args[0])
			if err != nil || d <= 0 {
				return nil, misuse.Errorf("%q, want a duration such as 30m", args[0])
			}
			pause = int64(d)
		}
		return &control.SetFleetRequest{Change: &control.SetFleetRequest_PauseNs{PauseNs: pause}},
			nil
	})
}

func resumeCommand(dial Dial) *cobra.Command {
	return newSimpleCommand(dial, &cobra.Command{
		Use:     "resume",
		Short:   "End a pause",
		Example: `  muster fleet resume`,
		Args:    cobra.NoArgs,
	}, func([]string) (*control.SetFleetRequest, error) {
		return &control.SetFleetRequest{Change: &control.SetFleetRequest_PauseNs{}}, nil
	})
}

func bootstrapCommand(dial Dial) *cobra.Command {
	return newSimpleCommand(dial, &cobra.Command{
		Use:   "bootstrap",
		Short: "Have a new leader take over the machines of a fleet whose leaders are all lost",
		Long: `Have the leader adopt the machines that carry its fleet's name, after all agents that
rented them are lost with their state. Without this command the leader leaves such
machines alone, because another fleet may own them.`,
		Example: `  muster fleet bootstrap`,
		Args:    cobra.NoArgs,
	}, func([]string) (*control.SetFleetRequest, error) {
		return &control.SetFleetRequest{Change: &control.SetFleetRequest_Adopt{Adopt: true}}, nil
	})
}

func destroyCommand(dial Dial) *cobra.Command {
	var c changeOptions
	cmd := &cobra.Command{
		Use:     "destroy",
		Short:   "Drain and return all rented machines except those that can rent",
		Example: `  muster fleet destroy --yes --wait`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(*control.FleetState) (*control.SetFleetRequest, error) {
				return &control.SetFleetRequest{
					Change: &control.SetFleetRequest_Destroy{Destroy: true},
				}, nil
			})
		},
	}
	c.addFlags(cmd, dial)
	return cmd
}
