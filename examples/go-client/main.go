// Command go-client is a program of yours that asks a fleet for recommendations: it sends one query
// with a deadline, and says what to do about each kind of error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

func main() {
	servers := flag.String("servers", "127.0.0.1:8001", "gRPC addresses of agents, by commas")
	timeout := flag.Duration("timeout", time.Second, "time for the answer")
	flag.Parse()
	if err := run(strings.Split(*servers, ","), *timeout); err != nil {
		log.Fatal(err)
	}
}

func run(servers []string, timeout time.Duration) error {
	c, err := client.New(servers) // keep it: it connects once, and follows the fleet
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return ask(ctx, c)
}

// ask has ncf score two candidates, each given by four ids.
func ask(ctx context.Context, c *client.Client) error {
	ids, err := tensor.Of("ids", []int64{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)
	if err != nil {
		return err
	}
	resp, err := c.Infer(ctx, &oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}})
	var e *client.Error
	switch {
	case errors.Is(err, client.ErrOverloaded) && errors.As(err, &e):
		return fmt.Errorf("the fleet is busy, ask again in %v", e.RetryAfter)
	case errors.Is(err, client.ErrDeadline):
		return errors.New("the answer would come too late, show something else")
	case err != nil:
		return err
	}
	defer resp.Release() // the tensors lie in memory that is used again
	out, ok := resp.Output("scores")
	if !ok {
		return errors.New("the answer has no scores")
	}
	scores, err := tensor.Values[float32](out)
	if err != nil {
		return err
	}
	fmt.Printf("scores of shape %v, the first is %.6g\n", out.Shape, scores[0])
	return nil
}
