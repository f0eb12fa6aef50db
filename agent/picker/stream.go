package picker

import (
	"context"
	"errors"
	"io"
	"math"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/extproc"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

// A request is the state of one stream. Its methods run on the stream's goroutine.
type request struct {
	*Picker
	stream  extproc.ExternalProcessor_ProcessServer
	ctx     context.Context
	cancel  context.CancelFunc
	arrival time.Time
	head    head
	mode    extproc.BodySendMode
	pick    *pick
	// outcome receives the gateway's error once, and nil of a query that was answered; it is nil
	// while the gateway has no query.
	outcome chan error
}

// wait ends the gateway's query, and returns when it has ended.
func (r *request) wait() {
	r.cancel()
	if r.outcome != nil {
		<-r.outcome
	}
}

// serve answers the messages of the stream.
func (r *request) serve() error {
	switch {
	case !r.head.isQuery:
		r.picks.WithLabelValues(otherRequest).Inc()
		if err := r.answerHeaders(cleanHeaders()); err != nil {
			return err
		}
	case r.mode == extproc.BodySendMode_BUFFERED, r.mode == extproc.BodySendMode_BUFFERED_PARTIAL:
		if over, err := r.serveBuffered(); over || err != nil {
			return err
		}
	case r.mode == extproc.BodySendMode_FULL_DUPLEX_STREAMED:
		if over, err := r.serveDuplex(); over || err != nil {
			return err
		}
	case r.mode == extproc.BodySendMode_GRPC:
		return status.Error(codes.InvalidArgument, "request_body_mode is GRPC; set it to "+
			"BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED or NONE")
	default: // the body comes too late for the headers, or not at all
		headers, refusal := r.choose()
		if refusal != nil {
			return r.refuse(refusal)
		}
		if err := r.answerHeaders(headers); err != nil {
			return err
		}
	}
	return r.follow()
}

// serveBuffered chooses by the body's first bytes, which come in one message.
func (r *request) serveBuffered() (over bool, err error) {
	if err := r.answerHeaders(cleanHeaders()); err != nil {
		return true, err
	}
	for {
		m, err := r.stream.Recv()
		if err != nil {
			return true, ended(err)
		}
		body := m.GetRequestBody()
		if body == nil {
			if err := r.pass(m); err != nil {
				return true, err
			}
			continue
		}
		r.head.shapes.add(body.GetBody(), true)
		headers, refusal := r.choose()
		if refusal != nil {
			return true, r.refuse(refusal)
		}
		return false, r.stream.Send(&extproc.ProcessingResponse{
			DynamicMetadata: metadataOf(headers),
			Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{
				Response: &extproc.CommonResponse{HeaderMutation: headers},
			}},
		})
	}
}

// serveDuplex reads the body up to where it says the shapes, answers the headers, and gives back
// what it has read.
func (r *request) serveDuplex() (over bool, err error) {
	var read []*extproc.ProcessingRequest
	for enough := false; !enough; {
		m, err := r.stream.Recv()
		if err != nil {
			return true, ended(err)
		}
		read = append(read, m)
		body := m.GetRequestBody()
		enough = body == nil || // trailers, which end the body
			r.head.shapes.add(body.GetBody(), body.GetEndOfStream())
	}
	headers, refusal := r.choose()
	if refusal != nil {
		return true, r.refuse(refusal)
	}
	if err := r.answerHeaders(headers); err != nil {
		return true, err
	}
	for _, m := range read {
		if err := r.pass(m); err != nil {
			return true, err
		}
	}
	return false, nil
}

// echo sends a part of a body on as it came.
func echo(body *extproc.HttpBody) *extproc.BodyResponse {
	return &extproc.BodyResponse{Response: &extproc.CommonResponse{
		BodyMutation: &extproc.BodyMutation{
			Mutation: &extproc.BodyMutation_StreamedResponse{
				StreamedResponse: &extproc.StreamedBodyResponse{
					Body: body.GetBody(), EndOfStream: body.GetEndOfStream(),
				},
			},
		},
	}}
}

// choose has the leader choose an agent, and returns the headers that send the request there. It
// blocks until a lane is assigned, which may be as long as the query may wait.
func (r *request) choose() (*extproc.HeaderMutation, *Refusal) {
	req := r.query()
	if req.Model == "" {
		r.picks.WithLabelValues(unread).Inc()
		return cleanHeaders(), nil
	}
	if err := r.config.MayQuery(r.ctx, req.Model); err != nil {
		return nil, r.refusal(req, err)
	}
	outcome := make(chan error, 2)
	r.outcome = outcome
	ctx := client.WithoutSplits(context.WithValue(r.ctx, pickKey{}, r.pick))
	go func() {
		resp, err := r.config.Infer(ctx, req, r.arrival)
		if resp != nil {
			resp.Release()
		}
		outcome <- err
	}()
	select {
	case a := <-r.pick.assigned:
		headers := r.sendTo(a.to, a.ticket.sign(r.config.Signer, time.Now()))
		if len(headers.GetSetHeaders()) == 0 {
			r.cancel()
		}
		return headers, nil
	case err := <-outcome:
		outcome <- nil // for wait
		if errors.Is(err, ErrAlone) {
			return r.sendTo(r.config.Own(), ""), nil
		}
		return nil, r.refusal(req, err)
	}
}

// sendTo sends the request to a member, with a ticket if there is one. Where nobody knows the member's
// address for the request's protocol, the gateway chooses, and the agent that it asks matches the
// query again.
func (r *request) sendTo(member *control.Member, ticket string) *extproc.HeaderMutation {
	to := addressOf(member, r.head.isGRPC)
	if to == "" {
		r.picks.WithLabelValues(unroutable).Inc()
		return cleanHeaders()
	}
	r.picks.WithLabelValues(assigned).Inc()
	return destination(to, ticket)
}

func (r *request) refusal(req *oip.Request, err error) *Refusal {
	r.picks.WithLabelValues(refused).Inc()
	refusal := r.config.Refuse(r.ctx, req, r.arrival, err)
	return &refusal
}

// query is the query to submit, as far as its request tells. Its inputs have no data.
func (r *request) query() *oip.Request {
	said := r.head.shapes.read()
	req := &oip.Request{
		Model: r.head.model, Version: r.head.version, Inputs: said.inputs,
		Timeout: r.head.timeout,
	}
	if r.head.isGRPC {
		req.Model, req.Version = said.model, said.version
	}
	if said.timeout > 0 && (req.Timeout == 0 || said.timeout < req.Timeout) {
		req.Timeout = said.timeout
	}
	if len(req.Inputs) == 0 && r.head.rows > 0 {
		req.Inputs = []tensor.Tensor{{Shape: []int64{r.head.rows}}}
	}
	return req
}

// cleanHeaders removes what only the picker may say.
func cleanHeaders() *extproc.HeaderMutation {
	return &extproc.HeaderMutation{RemoveHeaders: []string{TicketHeader, destinationHeader}}
}

// destination sends a request to an address, with a ticket if there is one.
func destination(to, ticket string) *extproc.HeaderMutation {
	headers := &extproc.HeaderMutation{
		SetHeaders: []*extproc.HeaderValueOption{setHeader(destinationHeader, to)},
	}
	if ticket == "" {
		headers.RemoveHeaders = []string{TicketHeader}
	} else {
		headers.SetHeaders = append(headers.SetHeaders, setHeader(TicketHeader, ticket))
	}
	return headers
}

// setHeader gives a header a value, in place of any that it has.
func setHeader(key, value string) *extproc.HeaderValueOption {
	return &extproc.HeaderValueOption{
		Header:       &extproc.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: extproc.AppendAction_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// metadataOf says the destination of headers as the endpoint picker protocol has it, too: gateways
// may balance by either.
func metadataOf(headers *extproc.HeaderMutation) *extproc.Struct {
	for _, h := range headers.GetSetHeaders() {
		if h.GetHeader().GetKey() == destinationHeader {
			return &extproc.Struct{Fields: map[string]*extproc.Value{
				"envoy.lb": {Kind: &extproc.Value_StructValue{StructValue: &extproc.Struct{
					Fields: map[string]*extproc.Value{destinationHeader: {
						Kind: &extproc.Value_StringValue{
							StringValue: string(h.GetHeader().GetRawValue()),
						},
					}},
				}}},
			}}
		}
	}
	return nil
}

// answerHeaders answers the request's headers.
func (r *request) answerHeaders(headers *extproc.HeaderMutation) error {
	return r.stream.Send(&extproc.ProcessingResponse{
		DynamicMetadata: metadataOf(headers),
		Response: &extproc.ProcessingResponse_RequestHeaders{
			RequestHeaders: &extproc.HeadersResponse{
				Response: &extproc.CommonResponse{HeaderMutation: headers},
			},
		},
	})
}

// refuse answers the request in the agents' place, as an agent would.
func (r *request) refuse(why *Refusal) error {
	answer := &extproc.ImmediateResponse{
		Status: &extproc.HttpStatus{Code: int32(why.HTTPStatus)}, Details: "muster_refused",
	}
	header := func(key, value string) {
		if answer.Headers == nil {
			answer.Headers = &extproc.HeaderMutation{}
		}
		answer.Headers.SetHeaders = append(answer.Headers.SetHeaders, setHeader(key, value))
	}
	if why.RetryAfter > 0 {
		header("retry-after", strconv.FormatFloat(math.Ceil(why.RetryAfter.Seconds()), 'f', 0, 64))
	}
	if r.head.isGRPC {
		answer.GrpcStatus = &extproc.GrpcStatus{Status: uint32(why.Code)}
		answer.Body = []byte(why.Message) // Envoy makes it the grpc-message
	} else {
		header("content-type", "application/json")
		answer.Body = oip.ErrorJSON(why.Message)
	}
	return r.stream.Send(&extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: answer},
	})
}

// follow answers what comes after the choice, until the stream ends. The headers of the response end
// the attempt; without them it counts as one that never came.
func (r *request) follow() error {
	for {
		m, err := r.stream.Recv()
		if err != nil {
			return ended(err)
		}
		if headers := m.GetResponseHeaders(); headers != nil {
			select {
			case r.pick.ended <- outcomeOf(headers.GetHeaders()):
			default: // it has ended
			}
		}
		if err := r.pass(m); err != nil {
			return err
		}
	}
}

// outcomeOf is how an attempt has ended whose response has these headers.
func outcomeOf(headers *extproc.HeaderMap) error {
	for _, h := range headers.GetHeaders() {
		value := valueOf(h)
		if h.GetKey() == ":status" && value != "200" ||
			h.GetKey() == "grpc-status" && value != "0" {
			return status.Errorf(codes.Aborted, "the response has %s %s", h.GetKey(), value)
		}
	}
	return nil
}

// pass answers a message that changes nothing.
func (r *request) pass(m *extproc.ProcessingRequest) error {
	answer := &extproc.ProcessingResponse{}
	duplex := r.mode == extproc.BodySendMode_FULL_DUPLEX_STREAMED
	switch {
	case m.GetResponseHeaders() != nil:
		answer.Response = &extproc.ProcessingResponse_ResponseHeaders{
			ResponseHeaders: &extproc.HeadersResponse{},
		}
	case m.GetRequestBody() != nil && duplex:
		answer.Response = &extproc.ProcessingResponse_RequestBody{
			RequestBody: echo(m.GetRequestBody()),
		}
	case m.GetRequestBody() != nil:
		answer.Response = &extproc.ProcessingResponse_RequestBody{
			RequestBody: &extproc.BodyResponse{},
		}
	case m.GetResponseBody() != nil && duplex:
		answer.Response = &extproc.ProcessingResponse_ResponseBody{
			ResponseBody: echo(m.GetResponseBody()),
		}
	case m.GetResponseBody() != nil:
		answer.Response = &extproc.ProcessingResponse_ResponseBody{
			ResponseBody: &extproc.BodyResponse{},
		}
	case m.GetRequestTrailers() != nil:
		answer.Response = &extproc.ProcessingResponse_RequestTrailers{
			RequestTrailers: &extproc.TrailersResponse{},
		}
	case m.GetResponseTrailers() != nil:
		answer.Response = &extproc.ProcessingResponse_ResponseTrailers{
			ResponseTrailers: &extproc.TrailersResponse{},
		}
	default:
		return status.Error(codes.InvalidArgument, "got a message with nothing in it")
	}
	return r.stream.Send(answer)
}

// ended is the error of a stream that has ended: none if the gateway has ended it.
func ended(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
