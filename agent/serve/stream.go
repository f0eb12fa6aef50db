package serve

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/runtime"
)

// maxStreamed is how many queries of one stream are answered at a time. Further ones are not read
// from the connection. Chosen: they keep some ten lanes busy with several each, and one stream
// takes a bounded part of the memory.
const maxStreamed = 64

// An streamAnswer is a query of a stream with its answer, or its error.
type streamAnswer struct {
	id     string
	resp   *oip.Response
	charge oip.Charge // counts the answer's bytes until it is sent
	err    error
}

// ModelStreamInfer answers the queries of a stream, several at a time, in their order. A query that
// fails has its error as the answer. The stream ends when the client sends no more and all is
// answered, or when the agent stops: it then answers what it has received.
//
// It owns a goroutine that receives, which ends soon after ModelStreamInfer returns, and one for
// each query that it answers.
func (s service) ModelStreamInfer(stream oip.InferStream) error {
	order := make(chan chan streamAnswer, maxStreamed)
	var ended error // set when order is closed
	go func() {
		defer close(order)
		for {
			req, err := stream.Recv()
			if err != nil {
				ended = err
				return
			}
			arrival := time.Now() // its client counts its wait for room, too
			answer := make(chan streamAnswer, 1)
			order <- answer
			go func() { answer <- s.answerStreamQuery(stream.Context(), req, arrival) }()
		}
	}()
	for {
		var answer chan streamAnswer
		var more bool
		select {
		case answer, more = <-order:
		case <-s.config.Closing.Done():
			select {
			case answer, more = <-order:
			default:
				go releaseAnswers(order)
				return runtime.ErrDraining
			}
		}
		switch {
		case more:
			if err := s.sendStreamed(stream, <-answer); err != nil {
				go releaseAnswers(order)
				return err
			}
		case errors.Is(ended, io.EOF):
			return nil
		default:
			return ended
		}
	}
}

// releaseAnswers releases the answers that nobody will read. It returns when the stream has ended.
func releaseAnswers(order <-chan chan streamAnswer) {
	for answer := range order {
		if a := <-answer; a.resp != nil {
			a.resp.Release()
			a.charge.Only(0)
		}
	}
}

// answerStreamQuery answers one query of a stream, with what a call of its own would do before and
// after. It counts the answer's bytes, as the answer may wait for earlier ones, and for the client
// to read.
func (s service) answerStreamQuery(ctx context.Context, req *oip.Request,
	arrival time.Time) (a streamAnswer) {
	a.id = req.ID
	defer func() {
		if p := recover(); p != nil {
			a.err = s.panicError(inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, p)
		}
	}()
	if a.err = req.Fault(); a.err == nil {
		a.err = Callers{s.config.Guard}.MayQuery(ctx, req.Model)
	}
	if a.err != nil {
		req.Release()
		s.countRefusedEarly(ctx, "", "", a.err)
		return a
	}
	// the intake has counted the query, and so has room for it
	if a.err = s.withinIntake(ctx, nil, nil); a.err != nil {
		req.Release()
		return a
	}
	ctx, span := s.traceCall(ctx, req, arrival)
	a.charge = *oip.NewCharge(ctx, &s.answers)
	a.resp, a.err = s.answerQuery(ctx, req, arrival, &a.charge)
	endCall(span, a.err)
	return a
}

// sendStreamed sends an answer, whose bytes count until the connection has taken it.
func (s service) sendStreamed(stream oip.InferStream, a streamAnswer) error {
	if a.err == nil {
		s.countSentBytes(&receipt{Context: stream.Context(), server: s.Server, charge: a.charge},
			a.resp)
		return stream.Send(a.resp)
	}
	return stream.SendError(a.id, status.Convert(outcome.GRPC(a.err)).Message())
}
