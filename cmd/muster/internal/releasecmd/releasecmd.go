// Package releasecmd has the commands that say which versions of models a fleet serves: promote,
// rollback, release and compare. They speak to any agent, which passes them to the leader, or with
// --store to a model store, which fleets follow.
package releasecmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/storecmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/models/store"
)

// A Dial adds the flags of a client to a command. What it returns opens a connection to an agent,
// and explains a call's error.
type Dial func(*cobra.Command) (open func() (*grpc.ClientConn, error), explain func(error) error)

// timeout bounds a call. It is longer than an agent waits for its leader's answer.
const timeout = 10 * time.Second

// Commands are the commands for releases.
func Commands(dial Dial) []*cobra.Command {
	return []*cobra.Command{
		newPromote(dial), newRollback(dial), newShow(dial, false), newShow(dial, true),
	}
}

// A keeper has releases: an agent, or a store.
type keeper interface {
	SetRelease(ctx context.Context, req *control.SetReleaseRequest, _ ...grpc.CallOption) (
		*control.ReleaseResponse, error)
	Release(ctx context.Context, req *control.ReleaseRequest, _ ...grpc.CallOption) (
		*control.ReleaseResponse, error)
}

// A storeLocation is the store that --store names, and how releases are written there.
type storeLocation struct {
	address string
	signing storecmd.SigningOptions
	above   uint64
	// wait is how long a promotion waits for its version to be loaded, by an agent.
	wait time.Duration
}

// An agentKeeper is the releases of a fleet, which an agent is asked for.
type agentKeeper struct {
	control.ControlClient
	index inference.GRPCInferenceServiceClient
}

// open opens the store.
func (p *storeLocation) open(ctx context.Context, signer *store.Signer) (k inStore, err error) {
	k = inStore{signer: signer, fleet: p.signing.Fleet(p.address), above: p.above}
	k.s, err = storecmd.Open(ctx, p.address)
	return k, err
}

// runCall makes a command make a call of an agent, or of the store in a place, and print the
// answer. in is nil for a command that needs a fleet.
func runCall(dial Dial, cmd *cobra.Command, in *storeLocation,
	do func(ctx context.Context, k keeper,
		args []string) (*control.ReleaseResponse, error),
	print func(io.Writer, *control.ReleaseResponse) error) *cobra.Command {
	open, explain := dial(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if in == nil {
			in = &storeLocation{}
		}
		if in.address == "" && (in.signing.Key != "" || in.above > 0) {
			return misuse.Errorf("--sign and --above are for releases in a store: they need --store")
		}
		signer, err := in.signing.Signer(cmd) // which may take a person's time
		if err != nil {
			return err
		}
		if in.wait < 0 || in.wait > 0 && in.address != "" {
			return misuse.Errorf("wait: %v, want 0 or more, and no --store, which loads no versions",
				in.wait)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout+in.wait)
		defer cancel()
		var k keeper
		if in.address != "" {
			s, err := in.open(ctx, signer)
			if err != nil {
				return err
			}
			defer s.s.Close()
			k, explain = s, func(err error) error {
				return errors.New(status.Convert(err).Message())
			}
		} else {
			conn, err := open()
			if err != nil {
				return err
			}
			defer conn.Close()
			k = agentKeeper{control.NewControlClient(conn),
				inference.NewGRPCInferenceServiceClient(conn)}
		}
		resp, err := do(ctx, k, args)
		if _, answered := status.FromError(err); err != nil && answered {
			return explain(err)
		} else if err != nil {
			return err
		}
		if *asJSON {
			text, err := protojson.MarshalOptions{
				UseProtoNames: true, EmitUnpopulated: true,
			}.Marshal(resp)
			if err != nil {
				return err
			}
			return terminal.PrintJSON(cmd.OutOrStdout(), json.RawMessage(text))
		}
		terminal.SanitizeFields(resp)
		return print(cmd.OutOrStdout(), resp)
	}
	return cmd
}

func newPromote(dial Dial) *cobra.Command {
	req, share, after, difference := &control.SetReleaseRequest{}, "", time.Duration(0), 0.
	cmd := &cobra.Command{
		Use:   "promote MODEL VERSION",
		Short: "Release a version of a model to all queries that name no version, or to a share",
		Long: `Release a version of a model: it answers the queries that name no version, in the
whole fleet, until another version is promoted. With --share the version is a canary:
it answers that share of the queries beside the current version, until it is promoted
or rolled back, by hand or by the rule in docs/releases.md. "muster models compare"
compares the two. With --max-difference the fleet also compares their answers.

With --store the command asks no fleet: it writes the release to the store. All fleets
whose agents have this --model-store follow it after their next poll. A fleet that
follows a store also writes its own releases there.

It needs the right "fleet" where clients have names.`,
		Example: `  muster models promote ncf 3
  muster models promote ncf 3 --wait 1m
  muster models promote ncf 4 --share 5%
  muster models promote ncf 4 --share 5% --promote-after 10m
  muster models promote ncf 4 --share 5% --max-difference 0.05
  muster models promote ncf 4 --store s3://acme-models/prod`,
		Args: cobra.ExactArgs(2),
	}
	flags := cmd.Flags()
	flags.StringVar(&share, "share", "",
		"share of the queries, such as 5% or 0.05; without it, all of them")
	flags.DurationVar(&after, "promote-after", 0,
		"promote a canary that is no worse after this time; 0: only by hand")
	flags.Uint64Var(&req.PromoteQueries, "promote-queries", 0,
		"promote a canary that is no worse after so many answers; 0: only by hand")
	flags.Float64Var(&difference, "max-difference", 0,
		"largest difference of a score from the current version's; an answer with a larger one is "+
			"wrong; without it answers are not compared")
	flags.Float64Var(&req.Tolerance, "tolerance", 0, "as --max-difference, but 0 means 0.05")
	_ = flags.MarkDeprecated("tolerance", "use --max-difference") // the flag is there
	in := storeFlags(cmd)
	flags.Uint64Var(&in.above, "above", 0,
		"with --store: give the release a number above this one, if fleets know a release that the "+
			"store has lost")
	flags.DurationVar(&in.wait, "wait", 0,
		"longest time to wait until an agent has loaded the version; 0: it must serve already")
	return runCall(dial, cmd, in, func(ctx context.Context, k keeper, args []string) (
		*control.ReleaseResponse, error) {
		var err error
		if req.Version, err = strconv.ParseInt(args[1], 10, 64); err != nil || req.Version < 1 {
			return nil, misuse.Errorf("version %q, want a whole number above 0", args[1])
		}
		if req.Share, err = ParseShare(share); err != nil {
			return nil, err
		}
		compares, older := flags.Changed("max-difference"), flags.Changed("tolerance")
		if req.Share == 0 && (after != 0 || req.PromoteQueries != 0 || compares || older) {
			return nil,
				misuse.Errorf("--promote-after, --promote-queries and --max-difference are " +
					"for a canary: they need --share")
		}
		switch {
		case compares && older:
			return nil, misuse.Errorf("--tolerance beside --max-difference, want one of them")
		case compares && !(difference >= 0 && difference <= math.MaxFloat64):
			return nil, misuse.Errorf("--max-difference %v, want a number of at least 0",
				difference)
		case compares:
			req.MaxDifference = &difference
		}
		if !older && req.Share > 0 {
			req.Tolerance = control.OlderTolerance(req.MaxDifference)
		}
		req.Model, req.PromoteAfterNs = args[0], int64(after)
		if agents, ok := k.(agentKeeper); ok {
			return agents.promote(ctx, req, in.wait)
		}
		return k.SetRelease(ctx, req)
	}, printReleases)
}

// loadInterval is the time between two attempts to promote a version that no agent serves yet.
const loadInterval = 500 * time.Millisecond

// promote makes the release. While no agent serves its version it tries again, for as long as wait.
// The error then says what keeps the version from serving, as far as the agents know.
func (k agentKeeper) promote(ctx context.Context, req *control.SetReleaseRequest,
	wait time.Duration) (*control.ReleaseResponse, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		resp, err := k.SetRelease(ctx, req)
		if status.Code(err) != codes.NotFound {
			return resp, err
		}
		select {
		case <-time.After(loadInterval):
			continue
		case <-waiting.Done():
		}
		why := k.whyNotServed(ctx, req)
		if why == "" {
			return resp, err
		}
		if wait == 0 {
			why += "; --wait 1m waits for it"
		}
		return nil, status.Errorf(codes.NotFound, "version %d of %s does not serve yet: %s",
			req.GetVersion(), req.GetModel(), why)
	}
}

// whyNotServed says what an agent knows of a version that no agent serves; "" if that is nothing.
func (k agentKeeper) whyNotServed(ctx context.Context, req *control.SetReleaseRequest) string {
	index, err := k.index.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
	if err != nil {
		return ""
	}
	for _, m := range index.GetModels() {
		if m.GetName() == req.GetModel() && m.GetVersion() == fmt.Sprint(req.GetVersion()) {
			return terminal.PlainLines(strings.ToLower(m.GetState()) + ", " +
				cmp.Or(m.GetReason(), "which the leader does not know yet"))
		}
	}
	return ""
}

// storeFlags adds --store, --sign and --fleet-name to a command.
func storeFlags(cmd *cobra.Command) *storeLocation {
	in := &storeLocation{}
	storecmd.AddFlag(cmd.Flags(), &in.address, "store of the releases, in place of a fleet's agent")
	in.signing.Add(cmd.Flags(), "the release in the store")
	return in
}

// ParseShare parses a share such as 5% or 0.05, above 0 and below 1; "" is 0.
func ParseShare(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share > 0 && share < 1) {
		return 0, misuse.Errorf("share %q, want one above 0 and below 1, such as 5%% or 0.05", text)
	}
	return share, nil
}

func newRollback(dial Dial) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback MODEL",
		Short: "Roll back a model's canary or, if it has none, its current version",
		Long: `Roll back a model's canary: it stops answering queries that name no version. If the
model has no canary, its previous version becomes current again.

It needs the right "fleet" where clients have names.`,
		Example: "  muster models rollback ncf",
		Args:    cobra.ExactArgs(1),
	}
	return runCall(dial, cmd, storeFlags(cmd), func(ctx context.Context, k keeper, args []string) (
		*control.ReleaseResponse, error) {
		return k.SetRelease(ctx, &control.SetReleaseRequest{Model: args[0]})
	}, printReleases)
}

// newShow is the command release, or compare.
func newShow(dial Dial, compares bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "release [MODEL]",
		Short:   "Show which versions of models are released",
		Example: "  muster models release\n  muster models release ncf --json",
		Args:    cobra.MaximumNArgs(1),
	}
	print := printReleases
	var in *storeLocation
	if compares {
		cmd.Use, cmd.Short = "compare MODEL", "Compare a model's canary with its current "+
			"version"
		cmd.Long =
			`Compare a model's canary with its current version over the same time, which begins
when the canary is promoted or another agent becomes leader. Bounds hold with 99 %
confidence, however often one looks.`
		cmd.Example = "  muster models compare ncf"
		cmd.Args, print = cobra.ExactArgs(1), printComparison
	} else {
		cmd.Long = `Show which versions of models are released. With --store and --sign the command signs
the model's newest release in the store and writes it as the next release, unless
this key has signed it already. Agents with --require-signature follow only signed
releases.`
		cmd.Example += "\n  muster models release ncf --store s3://acme-models/prod --sign release.key"
		in = storeFlags(cmd)
	}
	return runCall(dial, cmd, in, func(ctx context.Context, k keeper, args []string) (
		*control.ReleaseResponse, error) {
		if s, ok := k.(inStore); ok && s.signer != nil {
			if len(args) == 0 {
				return nil, misuse.Errorf("--sign is for one model: name it")
			}
			return s.sign(ctx, args[0])
		}
		req := &control.ReleaseRequest{}
		if len(args) > 0 {
			req.Model = args[0]
		}
		return k.Release(ctx, req)
	}, print)
}

func printReleases(out io.Writer, resp *control.ReleaseResponse) error {
	if len(resp.GetReleases()) == 0 {
		_, err := fmt.Fprintln(out, "nothing was released: the newest version of each model serves")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MODEL\tCURRENT\tCANARY\tSHARE\tSTATE\tWHY")
	for _, s := range resp.GetReleases() {
		r, canary, share := s.GetRelease(), "-", "-"
		if r.GetCanary() != 0 {
			canary, share = fmt.Sprint(r.GetCanary()), formatPercent(r.GetShare())
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", r.GetModel(), r.GetCurrent(), canary, share,
			s.GetState(), cmp.Or(s.GetVerdict(), r.GetWhy()))
	}
	return t.Flush()
}

func formatPercent(share float64) string { return fmt.Sprintf("%.3g%%", 100*share) }

func printComparison(out io.Writer, resp *control.ReleaseResponse) error {
	for _, s := range resp.GetReleases() {
		r := s.GetRelease()
		if r.GetCanary() == 0 {
			fmt.Fprintf(out, "%s: version %d answers all queries, and no canary is on trial\n",
				r.GetModel(), r.GetCurrent())
			continue
		}
		fmt.Fprintf(out, "%s: version %d beside %d with %s of the queries, %s for %v\n%s\n\n",
			r.GetModel(), r.GetCanary(), r.GetCurrent(), formatPercent(r.GetShare()), s.GetState(),
			time.Duration(s.GetAgeNs()).Round(time.Second), cmp.Or(s.GetVerdict(), r.GetWhy()))
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "VERSION\tQUERIES\tLATE\tFAILED\tSLOW RUNS\tP50 RUN\tP99 RUN")
		for _, x := range []struct {
			version int64
			*control.VersionCounts
		}{{r.GetCurrent(), s.GetCurrent()}, {r.GetCanary(), s.GetCanary()}} {
			fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%s\n", x.version, x.GetQueries(),
				formatCounted(x.GetLate(), x.GetQueries()-min(x.GetFailed(), x.GetQueries())),
				formatCounted(x.GetFailed(), x.GetQueries()), formatBounds(x.GetSlow(),
					x.GetRuns()),
				formatTook(x.GetP50Ns()), formatTook(x.GetP99Ns()))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		a := s.GetAnswers()
		within, compared := r.ComparedWithin()
		if !compared {
			fmt.Fprintln(out, "\nanswers are not compared: they are with --max-difference")
			continue
		}
		if a.GetCompared() == 0 {
			fmt.Fprintln(out, "\nno answers were compared")
			continue
		}
		fmt.Fprintf(
			out, "\n%d answers were compared: %d are wrong, by more than %.3g (%s); the top "+
				"difference of a score is %.3g in the mean, %.3g at most\n", a.GetCompared(),
			a.GetWrong(),
			within, formatBounds(a.GetWrong(), a.GetCompared()),
			a.GetSum()/float64(a.GetCompared()), a.GetMost())
	}
	return nil
}

// formatCounted prints how many of n there are, and their share, with its bounds of 99 %
// confidence.
func formatCounted(k, n uint64) string { return fmt.Sprintf("%d: %s", k, formatBounds(k, n)) }

// formatBounds prints a share, with its bounds of 99 % confidence.
func formatBounds(k, n uint64) string {
	if n == 0 {
		return "-"
	}
	low, high := canary.Bounds(k, n, .01)
	return fmt.Sprintf("%s [%.3g, %.3g]", formatPercent(float64(k)/float64(n)), 100*low, 100*high)
}

func formatTook(ns int64) string {
	if ns == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
}
