package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

func Example() {
	address, stop := startAgent() // for yours, `muster agent`: "127.0.0.1:8001"
	defer stop()

	c, err := client.New([]string{address}, client.WithTimeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	// Two candidate items of three ids each.
	ids, err := tensor.Of("ids", []int64{1, 2, 3, 40, 50, 60}, 2, 3)
	if err != nil {
		log.Fatal(err)
	}
	resp, err := c.Infer(context.Background(), &oip.Request{
		Model: "sum", Inputs: []tensor.Tensor{ids},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Release()
	out, _ := resp.Output("score")
	scores, err := tensor.Values[float32](out)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Shape, scores)
	// Output: [2 1] [6 150]
}

// A ranking query has its user once beside many candidates: inputs of other first dimensions.
func ExampleClient_Infer_userOnce() {
	rank := func(c *client.Client) (*oip.Response, error) {
		user, _ := tensor.Of("user_id", []int64{42}, 1)
		items, _ := tensor.Of("item_ids", []int64{7, 8, 9}, 3)
		return c.Infer(context.Background(), &oip.Request{
			Model: "ranker", Inputs: []tensor.Tensor{user, items},
		})
	}
	_ = rank
}

func ExampleClient_Infer_errors() {
	address, stop := startAgent()
	defer stop()
	c, err := client.New([]string{address})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ids, err := tensor.Of("ids", []int64{1, 2, 3}, 1, 3)
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Infer(context.Background(), &oip.Request{
		Model: "summ", Inputs: []tensor.Tensor{ids},
	})
	var e *client.Error
	switch {
	case errors.Is(err, client.ErrDeadline):
		fmt.Println("too late")
	case errors.Is(err, client.ErrOverloaded) && errors.As(err, &e):
		fmt.Println("try again in", e.RetryAfter)
	case errors.Is(err, client.ErrNotFound) && errors.As(err, &e):
		fmt.Println(e.Message())
	}
	// Output: model "summ" is not in the repository
}

// startAgent stands in for an agent: its one model sums up the ids of each row.
func startAgent() (address string, stop func()) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(oip.ServerOptions(4 << 20)...)
	oip.RegisterServer(s, summer{})
	go s.Serve(lis)
	return lis.Addr().String(), s.Stop
}

type summer struct{ oip.Server }

func (summer) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	return &inference.ServerMetadataResponse{Name: "example"}, nil
}

func (summer) ModelInfer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	defer req.Release()
	if req.Model != "sum" {
		return nil, status.Errorf(codes.NotFound, "model %q is not in the repository", req.Model)
	}
	in := req.Inputs[0]
	ids, err := tensor.Values[int64](in)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	sums := make([]float32, in.Shape[0])
	for i, id := range ids {
		sums[i/int(in.Shape[1])] += float32(id)
	}
	out, err := tensor.Of("score", sums, in.Shape[0], 1)
	return &oip.Response{Model: "sum", Version: "1", Outputs: []tensor.Tensor{out}}, err
}
