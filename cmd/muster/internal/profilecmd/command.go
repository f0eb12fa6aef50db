// Package profilecmd is the command `muster profile`: it measures, on this machine, how models
// scale with workers and how they slow each other down.
package profilecmd

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/runtime"
)

// options are what the command is told.
type options struct {
	modelDir, library, out, picture      string
	samples, provider, gpu, instanceType string
	from                                 string // a file of recorded queries, or ""
	format                               string // of the picture
	cores, rounds                        int
	counts                               []int
	pairs                                bool
	least                                time.Duration // of a turn
	patience                             time.Duration // to wait for processors that are apart
}

// NewCommand returns the command.
func NewCommand() *cobra.Command {
	o := options{least: 5 * time.Millisecond, patience: longestWait}
	cmd := &cobra.Command{
		Use:   "profile MODEL...",
		Short: "Measure how models scale on this machine's cores and slow each other down",
		Long: `Measure, on this machine, how long a batch of each model takes with one worker (a
pinned thread) a core, from one to all of them; how many queries/s of the
production trace's sizes so many workers serve within the QoS target, by
simulation with these times; and, with --pairs, how much longer each model's
queries take beside each other one, both on half of the cores.

Times are of the threads' processor time, which includes waiting for cache and
memory, but not for a processor: other processes spoil them little. All phases run in
turn, round by round. What is less certain than 5 % is measured again, and then
listed as unsure.

A virtual machine's processors may run now on cores that share a cache and now on
cores that do not. Where the machine says that they share one, only what was
measured while they do counts; the command waits for that up to 5 minutes.

The file is what "muster place hera" reads. docs/sharing.md describes it.

With --samples it measures something else: how long runs of each batch size take on
the lane that an agent has here by default, which is all cores, or the GPU. "muster
sim" and "muster plan" read that file, or several in one (docs/profiles.md).

With --from it runs recorded queries with inputs on that lane, and prints how far off
predictions of held-out runs are: by rows alone, and by work, which also counts users
and values of ragged features.`,
		Example: `  muster profile rm2 wnd --pairs
  muster profile ncf wnd --cores 4 --out ncf-wnd.json --picture ncf-wnd.png
  muster place hera sharing.json --load 10
  muster profile mymodel --samples g4dn.csv --instance-type g4dn.xlarge
  muster profile ranker --from queries.jsonl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringVar(&o.modelDir, "model-dir", "./model-repository", "directory of the models")
	fs.StringVar(&o.library, "onnxruntime-lib", "",
		"ONNX Runtime library to load instead of the embedded one")
	fs.StringVar(&o.provider, "provider", string(runtime.Auto),
		"with --samples: what models run on, cpu, cuda (an NVIDIA GPU), or auto, cuda if it works")
	fs.StringVar(&o.gpu, "gpu", "",
		"with --samples: the GPU, by number or UUID (default the first)")
	fs.StringVar(&o.instanceType, "instance-type", "",
		"with --samples: instance type to name in the file (default one made of the processor)")
	settings.Add(flags, fs)
	flags.IntVar(&o.cores, "cores", 0, "cores to measure on; 0 means all that this process may use")
	flags.IntSliceVar(&o.counts, "workers", nil,
		"counts of workers to measure (default all up to 4, then in steps)")
	flags.IntVar(&o.rounds, "rounds", 10, "how often each phase runs")
	flags.BoolVar(&o.pairs, "pairs", false, "also measure each two models side by side")
	flags.StringVar(&o.out, "out", "sharing.json", "file to write the measurements to")
	flags.StringVar(&o.picture, "picture", "",
		"file to draw them to, .png or .svg (default beside the other file)")
	flags.StringVar(&o.samples, "samples", "",
		"CSV file to write the times of single runs to, instead of all else")
	flags.StringVar(&o.from, "from", "",
		"file of recorded queries with inputs to run, instead of all else")
	for _, other := range []string{"out", "pairs", "workers"} {
		cmd.MarkFlagsMutuallyExclusive("samples", other)
		cmd.MarkFlagsMutuallyExclusive("from", other)
	}
	cmd.MarkFlagsMutuallyExclusive("from", "samples")
	cmd.MarkFlagsMutuallyExclusive("from", "picture")
	return cmd
}

// longestWait is how long a whole command waits for processors that are apart.
const longestWait = 5 * time.Minute
