package agent

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
)

// leaderless is the leading half of an agent that takes no part in elections:
// its fleet has no leader.
type leaderless struct{ none control.Leadership }

func newLeaderless(*Agent) (leading, error) { return &leaderless{}, nil }

func (l *leaderless) run(ctx context.Context) error   { <-ctx.Done(); return nil }
func (l *leaderless) leadership() *control.Leadership { return &l.none }
func (l *leaderless) changed() <-chan struct{}        { return nil }
func (l *leaderless) match(stream[control.MatchMessage, control.GatewayMessage]) error {
	return status.Error(codes.FailedPrecondition, "this agent does not lead")
}
func (l *leaderless) linked(string, func(*control.Election)) func() { return func() {} }
func (l *leaderless) elect(*control.Election)                       {}
func (l *leaderless) status(*control.FleetStatus)                   {}
func (l *leaderless) resign(context.Context)                        {}
