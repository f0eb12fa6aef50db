package serve

import (
	"context"
	"slices"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

// Release returns what is released, of the models that the caller may query or release. The leader
// knows how canaries do; without one, an agent tells what it knows.
func (s controlService) Release(ctx context.Context, req *control.ReleaseRequest) (
	*control.ReleaseResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	may := Callers{s.config.Guard}.MayQuery
	if s.config.Guard.MayControl(ctx, secure.Fleet) {
		may = func(context.Context, string) error { return nil }
	}
	if req.GetModel() != "" {
		if err := may(ctx, req.GetModel()); err != nil {
			return nil, err
		}
	}
	resp, err := byLeader(ctx, s, req, control.ControlClient.Release,
		func() (*control.ReleaseResponse, error) { return s.config.Releases.State(req.GetModel()) })
	if err != nil {
		return nil, err
	}
	resp.Releases = slices.DeleteFunc(resp.Releases, func(r *control.ReleaseState) bool {
		return may(ctx, r.GetRelease().GetModel()) != nil
	})
	return resp, nil
}

// SetRelease promotes a version of a model, or rolls the model back.
func (s controlService) SetRelease(ctx context.Context, req *control.SetReleaseRequest) (
	*control.ReleaseResponse, error) {
	passedOn := s.passedOn(ctx)
	if !passedOn {
		req.By, _ = secure.Who(ctx)
	}
	resp, err := byLeader(ctx, s, req, control.ControlClient.SetRelease,
		func() (*control.ReleaseResponse, error) { return s.config.Releases.Set(ctx, req) })
	if !passedOn {
		what := "asked to promote a version"
		if req.GetVersion() == 0 {
			what = "asked to roll a model back"
		}
		s.logRequest(ctx, "release", what, err, "model", cutName(req.GetModel()), "version",
			req.GetVersion(), "share", req.GetShare())
	}
	return resp, err
}
