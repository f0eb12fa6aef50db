package main

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/cmd/muster/internal/releasecmd"
)

// releaseCommands are those of `muster models` that say which versions a fleet serves.
func releaseCommands() []*cobra.Command {
	return releasecmd.Commands(func(cmd *cobra.Command) (func() (*grpc.ClientConn, error),
		func(error) error) {
		settings := &clientSettings{}
		settings.add(cmd.Flags())
		return func() (*grpc.ClientConn, error) { return settings.dialFirst(cmd.ErrOrStderr()) },
			func(err error) error { return wrapServerError(*settings, err) }
	})
}
