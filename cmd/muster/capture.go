package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent/capture"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/remote"
)

func newCaptureCommand() *cobra.Command {
	var model string
	var last time.Duration
	cmd := &cobra.Command{
		Use:   "capture FROM FILE",
		Short: "Gather the queries that agents have kept into one file",
		Long: `Gather the queries that agents have kept with their answers into one file of recorded
queries, in order of arrival. FROM is what the agents have as --capture: a folder, or
the URL of a bucket. A FILE whose name ends in .zst is compressed; "-" is the output.`,
		Example: `  muster capture /var/lib/muster/captures queries.jsonl.zst --model ncf --last 1h
  muster bench --from queries.jsonl.zst`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 0 {
				return misuse.Errorf("last: %v, want a time above 0", last)
			}
			bucket, err := openCaptures(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer bucket.Close()
			since := time.Unix(0, 0)
			if last > 0 {
				since = time.Now().Add(-last)
			}
			var found int
			gather := func(w io.Writer) (err error) {
				found, err = gatherCaptures(cmd.Context(), bucket, since, model, w)
				return err
			}
			if args[1] == "-" {
				return gather(cmd.OutOrStdout())
			}
			// Its owner alone reads it: it has what clients asked.
			err = files.ReplaceBy(args[1], 0o600, func(w io.Writer) error {
				if !strings.HasSuffix(args[1], ".zst") {
					return gather(w)
				}
				z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
				if err != nil {
					return err
				}
				return errors.Join(gather(z), z.Close())
			})
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %d queries\n", args[1], found)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "model or family whose queries are wanted (default: all)")
	cmd.Flags().DurationVar(&last, "last", 0, "the time to look back (default: all)")
	return cmd
}

// openCaptures opens where agents keep queries.
func openCaptures(ctx context.Context, from string) (store.Bucket, error) {
	if strings.Contains(from, "://") {
		return remote.OpenBucket(ctx, from)
	}
	if info, err := os.Stat(from); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is no folder, expected what agents have as --capture", from)
	}
	return store.Directory(from), nil
}

// gatherCaptures writes the queries of a model, or of all for "", and returns how many. That there
// are none is an error.
func gatherCaptures(ctx context.Context, from store.Bucket, since time.Time, model string,
	w io.Writer) (found int, err error) {
	lines := querytrace.NewWriter(w)
	others := 0
	err = capture.Read(ctx, from, since, func(q querytrace.TracedQuery) error {
		if model != "" && q.Model != model {
			others++
			return nil
		}
		found++
		return lines.Write(q)
	})
	switch {
	case err != nil || found > 0:
		return found, err
	case others > 0:
		return 0, fmt.Errorf("there are no queries of %q, but %d of other models", model, others)
	}
	return 0, errors.New("there are no captured queries")
}
