package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/cmd/muster/internal/inputs"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func newInferCommand() *cobra.Command {
	var settings clientSettings
	var traces traceSettings
	var wait waitSetting
	var version, input string
	var batchSize int
	var seed uint64
	var timeout time.Duration
	var leastAccuracy float64
	var asJSON bool
	var shapes []string
	cmd := &cobra.Command{
		Use:   "infer MODEL|FAMILY",
		Short: "Send one query by hand",
		Long: `Send one query to a running agent and print its outputs and its latency.

The inputs have random values, with the names, types and shapes that the agent
reports for the model. Or --input gives them, as JSON of the protocol's REST API:
  {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
or as FILE.npz, written by NumPy, with an array for each input.`,
		Example: `  muster infer ncf
  muster infer wnd --batch-size 256 --seed 3
  muster infer ncf --input query.json --json
  muster infer ncf --wait 30s
  muster infer yolo --shape images:1x3x320x320
  echo '{"inputs": [...]}' | muster infer ncf --input -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeModels(&settings),
		RunE: func(cmd *cobra.Command, args []string) error {
			provider, flush, err := traces.open(cmd.Context(), "",
				newWarningLogger(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			defer flush()
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			err = wait.awaitReady(cmd.Context(), cmd.ErrOrStderr(), c, version, args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()

			var query *oip.Request
			if input != "" {
				query, err = inputs.ReadOne(input, cmd.InOrStdin())
				err = misuse.Wrap(err)
			} else {
				query, err = randomQuery(ctx, cmd.ErrOrStderr(), c, args[0], version, batchSize,
					seed, shapes)
			}
			if err != nil {
				return err
			}
			query.Model, query.Version = args[0], version
			if leastAccuracy != 0 {
				query.LeastAccuracy = leastAccuracy
			}
			if provider != nil {
				var span trace.Span
				ctx, span = provider.Tracer(tracing.Scope).Start(ctx, "muster infer")
				defer span.End()
				fmt.Fprintln(cmd.ErrOrStderr(), "trace", span.SpanContext().TraceID())
			}
			start := time.Now()
			response, err := c.Infer(ctx, query)
			if err != nil {
				return err
			}
			took := time.Since(start)
			defer response.Release()
			if asJSON {
				return encodeResponse(cmd.OutOrStdout(), response)
			}
			return printResponse(cmd.OutOrStdout(), response, took)
		},
	}
	settings.add(cmd.Flags())
	traces.add(cmd.Flags())
	wait.add(cmd.Flags(), "the model is ready")
	flags := cmd.Flags()
	flags.StringVar(&version, "model-version", "", "version of the model (default the newest)")
	flags.StringVar(&input, "input", "",
		"file with the query as JSON or .npz; - for standard input")
	flags.IntVar(&batchSize, "batch-size", 1, "batch size of random inputs")
	flags.StringArrayVar(&shapes, "shape", nil, inputs.ShapeHelp)
	flags.Uint64Var(&seed, "seed", 0, "seed of random inputs")
	flags.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answer")
	flags.Float64Var(&leastAccuracy, "min-accuracy", 0,
		"minimum accuracy of the variant that answers for a family; 0 means any")
	flags.BoolVar(&asJSON, "json", false, "print the answer as JSON, with all values")
	cmd.MarkFlagsMutuallyExclusive("input", "batch-size")
	cmd.MarkFlagsMutuallyExclusive("input", "shape")
	return cmd
}

// randomQuery makes a query of the batch size, with random values for the inputs that the server
// reports for the model. The same seed gives the same values. It writes to stderr what a caller
// should know about the values, such as inputs without id bounds.
func randomQuery(ctx context.Context, stderr io.Writer, c *client.Client, model, version string,
	batchSize int, seed uint64, shapes []string) (*oip.Request, error) {
	if batchSize < 1 {
		return nil, misuse.Errorf("batch-size: %d, want 1 or more", batchSize)
	}
	sizes, err := inputs.ParseShapes(shapes)
	if err != nil {
		return nil, misuse.Wrap(err)
	}
	metadata, err := c.ModelMetadata(ctx, model, version)
	if err != nil {
		return nil, err
	}
	query, notes, err := bench.RandomQuery(metadata, batchSize, seed, sizes)
	if err != nil {
		return nil, fmt.Errorf("make a query for %q: %w", model, err)
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, "note:", terminal.Plain(note))
	}
	return query, nil
}

// encodeResponse writes the answer to w as JSON of the REST API.
func encodeResponse(w io.Writer, response *oip.Response) error {
	var whole bytes.Buffer // PlainJSON must not get a part of a character
	if err := oip.EncodeResponse(bodyWriter{&whole, http.Header{}}, &oip.Request{}, response,
		nil); err != nil {
		return err
	}
	_, err := terminal.PlainJSON{W: w}.Write(whole.Bytes())
	return err
}

// A bodyWriter is an http.ResponseWriter that writes the body and drops status and headers.
type bodyWriter struct {
	io.Writer
	header http.Header
}

func (b bodyWriter) Header() http.Header { return b.header }
func (b bodyWriter) WriteHeader(int)     {}

// printResponse prints the latency, and of each output the name, data type, shape and the first
// eight values of the first eight rows.
func printResponse(w io.Writer, response *oip.Response, took time.Duration) error {
	var body bytes.Buffer
	if err := encodeResponse(&body, response); err != nil {
		return err
	}
	var decoded struct {
		Outputs []struct {
			Name     string
			Datatype string
			Shape    []int
			Data     []json.RawMessage
		}
	}
	if err := json.Unmarshal(body.Bytes(), &decoded); err != nil {
		return fmt.Errorf("read back the answer: %w", err)
	}
	if response.Variant == "" {
		fmt.Fprintf(w, "%s version %s answered in %v\n", terminal.Plain(response.Model),
			terminal.Plain(response.Version), took.Round(time.Microsecond))
	} else {
		fmt.Fprintf(w, "%s answered by %s version %s, accuracy %.4f, in %v\n",
			terminal.Plain(response.Model), terminal.Plain(response.Variant),
			terminal.Plain(response.VariantVersion), response.Accuracy,
			took.Round(time.Microsecond))
	}
	if response.Emulated {
		fmt.Fprintln(w,
			"emulated: no model has run; the agent waited as long as its profile says, "+
				"and these values mean nothing")
	}
	for _, o := range decoded.Outputs {
		fmt.Fprintf(w, "%s %s %v\n", terminal.Plain(o.Name), terminal.Plain(o.Datatype), o.Shape)
		rows := 1
		if len(o.Shape) > 0 {
			rows = o.Shape[0]
		}
		if rows == 0 {
			continue
		}
		for row := range min(rows, 8) {
			perRow := len(o.Data) / rows
			fmt.Fprintf(w, "  %s\n", firstValues(o.Data[row*perRow:(row+1)*perRow], 8))
		}
		if rows > 8 {
			fmt.Fprintf(w, "  ... %d more rows\n", rows-8)
		}
	}
	return nil
}

// firstValues formats the first n values of a row and says how many more there are.
func firstValues(row []json.RawMessage, n int) string {
	words := make([]string, 0, n+1)
	for _, v := range row[:min(len(row), n)] {
		words = append(words, terminal.Plain(string(v)))
	}
	if len(row) > n {
		words = append(words, fmt.Sprintf("... %d more", len(row)-n))
	}
	return strings.Join(words, "  ")
}
