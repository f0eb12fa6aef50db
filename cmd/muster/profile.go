package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/profilecmd"
)

func newProfileCommand() *cobra.Command { return profilecmd.NewCommand() }
