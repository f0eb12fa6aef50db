package client

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader/match"
)

// A part says which rows of a query are a part. The zero value is a query that is none.
type part struct {
	number    uint32 // from 1 on
	from, end int    // the rows, from 0 on
}

// split takes the leader's decision to split a query. The caller holds the lock.
func (g *Gateway) split(s *control.Split) {
	split := g.queries.ToSplit(s.GetSequence())
	if split == nil {
		return
	}
	whole, sum := split.Tag.(*gatewayQuery), uint64(0)
	for _, n := range s.GetRows() {
		sum += uint64(n)
	}
	if n := len(s.GetRows()); n < 2 || n > match.MostParts || sum != uint64(whole.batch) {
		g.queries.End(split, status.Errorf(codes.Internal,
			"the leader has split a query of %d rows into parts of %.64v", whole.batch,
			fmt.Sprint(s.GetRows())))
		return
	}
	// All parts must run the same version.
	model, version := whole.model, whole.version
	switch {
	case whole.family != nil:
		model, version = s.GetModel(), s.GetVersion()
		whole.splitFor = queries.ChosenVariant{
			Model: names.NewModelKey(model, version), Accuracy: s.GetAccuracy(),
		}
	case version == 0 && s.GetModel() != "": // it was released
		version = s.GetVersion()
	case version == 0:
		version = g.members.Load().newestVersion(model)
	}
	parts, from := make([]*queries.Query, len(s.GetRows())), 0
	for i, n := range s.GetRows() {
		p := part{uint32(i + 1), from, from + int(n)}
		q := &gatewayQuery{ // inParts measures its users and values
			model: model, version: version, batch: n, part: p,
			bytes: whole.bytes * uint64(n) / sum, roles: whole.roles, users: min(whole.users, n),
			values: whole.values,
			trace:  whole.trace.partTrace(p), wake: wakeup.New(),
		}
		q.Tag, parts[i], from = q, &q.Query, p.end
	}
	g.queries.Split(split, parts)
}

// inParts runs the parts of a query until all of them have ended, and joins their answers. It takes
// the place of the query's attempts: q has its outcome when inParts returns, unless the answers do
// not fit together.
func (g *Gateway) inParts(ctx context.Context, q *gatewayQuery, req *oip.Request) (*oip.Response,
	error) {
	q.trace.endStep()
	parts := q.Parts()
	rows, answers := make([]int, len(parts)), make([]*oip.Response, len(parts))
	for i, part := range parts {
		rows[i] = int(part.Tag.(*gatewayQuery).batch)
	}
	requests, err := req.SplitBy(q.roles, rows)
	if err != nil {
		g.mu.Lock()
		g.queries.End(&q.Query, status.Error(codes.InvalidArgument, err.Error()))
		err, _ = q.outcomeOf()
		g.leaveCritical(true)
		return nil, err
	}
	g.mu.Lock()
	for i, part := range parts { // should a part have to be submitted again
		part.Tag.(*gatewayQuery).measureUsers(requests[i])
	}
	g.mu.Unlock()
	run := func(i int) {
		part := parts[i].Tag.(*gatewayQuery)
		requests[i].Model, requests[i].LeastAccuracy = part.model, 0
		if part.version != 0 {
			requests[i].Version = strconv.FormatInt(part.version, 10)
		}
		answers[i], _ = g.run(part.trace.withSpan(ctx), part, requests[i])
		requests[i].Release()
		part.trace.endStep()
	}
	var others sync.WaitGroup
	for i := 1; i < len(parts); i++ {
		others.Go(func() { run(i) })
	}
	run(0)
	others.Wait()
	defer func() {
		for _, answer := range answers {
			if answer != nil {
				answer.Release()
			}
		}
	}()
	g.mu.Lock()
	err, _ = q.outcomeOf()
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	resp, err := oip.JoinBy(q.roles, answers, rows)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if q.family != nil {
		resp.AnsweredBy(q.model, q.splitFor.Accuracy)
	}
	return resp, nil
}

// nameRows adds to the error of an attempt which rows of the query the part has, if the query is
// invalid: the worker counts rows from the part's first one.
func (p part) nameRows(err error) error {
	if p.number == 0 || status.Code(err) != codes.InvalidArgument {
		return err
	}
	said := status.Convert(err).Proto()
	said.Message = fmt.Sprintf("in the %d rows from row %d on: %s", p.end-p.from, p.from,
		said.Message)
	return status.ErrorProto(said)
}
