package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/demo"
)

func newDemoCommand() *cobra.Command {
	c := demo.Config{Load: 21 * time.Second}
	var short bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a fleet of unlike machines on this one, for a minute",
		Long: `Show a fleet of six unlike machines on this one, for about a minute. The machines are
emulated: each is an agent that runs no model, but waits for each query as long as
was measured on its instance type. A load is served first by a plain load balancer
before these machines, then by the same machines as a fleet, and last while the
fleet's leader is killed. A table at the end compares them.

Meanwhile a browser can watch the fleet on its dashboard, whose address is printed.
All agents listen on 127.0.0.1 and end with this command. It needs Linux, 512 MiB of
memory and 24 free ports, and fails if the fleet loses a query.`,
		Example: `  muster demo
  muster demo --short   half a minute
  muster demo --keep    and go on until Ctrl-C`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Program, err = os.Executable(); err != nil {
				return err
			}
			if short {
				c.Load = 9 * time.Second
			}
			c.Env = os.Environ()
			c.Out, c.Status = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return demo.Run(cmd.Context(), c)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&short, "short", false, "half a minute instead of a whole one")
	flags.BoolVar(&c.Keep, "keep", false, "let the fleet serve its load until Ctrl-C")
	flags.StringVar(&c.Dir, "dir", "",
		"empty directory for models, states and logs, which stay there (default a temporary one)")
	return cmd
}
