package serve

import (
	"context"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

// Release returns what is released. The leader knows how canaries do; without one, an agent tells
// what it knows.
func (s controlService) Release(ctx context.Context, req *control.ReleaseRequest) (
	*control.ReleaseResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return byLeader(ctx, s, req, control.ControlClient.Release,
		func() (*control.ReleaseResponse, error) { return s.config.Leading.Release(req.GetModel()) })
}

// SetRelease promotes a version of a model, or rolls the model back.
func (s controlService) SetRelease(ctx context.Context, req *control.SetReleaseRequest) (
	*control.ReleaseResponse, error) {
	passedOn := s.passedOn(ctx)
	if !passedOn {
		req.By, _ = secure.Who(ctx)
	}
	resp, err := byLeader(ctx, s, req, control.ControlClient.SetRelease,
		func() (*control.ReleaseResponse, error) { return s.config.Leading.SetRelease(ctx, req) })
	if !passedOn {
		what := "asked to promote a version"
		if req.GetVersion() == 0 {
			what = "asked to roll a model back"
		}
		s.audit(ctx, "release", what, err, "model", short(req.GetModel()), "version",
			req.GetVersion(), "share", req.GetShare())
	}
	return resp, err
}
