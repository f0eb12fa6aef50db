// Command muster-ec2 rents machines from Amazon EC2 for the agent that starts it. It is not run by
// hand.
package main

import (
	"os"

	"github.com/muster-serve/muster/cloud/ec2"
	"github.com/muster-serve/muster/cloud/plugin"
)

func main() { os.Exit(plugin.Serve(ec2.Program())) }
