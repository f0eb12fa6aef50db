package client

import (
	"context"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// Status returns the state of the fleet as the agent that answers sees it.
func (c *Client) Status(ctx context.Context) (*control.FleetStatus, error) {
	resp := new(control.FleetStatus)
	err := c.callUnary(ctx, control.Control_Status_FullMethodName, &control.StatusRequest{}, resp)
	return orNil(resp, err)
}

// StatusWithMissed is Status, whose Missed is of the given time.
func (c *Client) StatusWithMissed(ctx context.Context, last time.Duration) (*control.FleetStatus,
	error) {
	resp := new(control.FleetStatus)
	err := c.callUnary(ctx, control.Control_Status_FullMethodName,
		&control.StatusRequest{MissedNs: int64(last)}, resp)
	return orNil(resp, err)
}

// Demand returns what a planner needs to know of the fleet: its members, the demand for its models,
// and their learned profiles.
func (c *Client) Demand(ctx context.Context) (*control.FleetDemand, error) {
	resp := new(control.FleetDemand)
	err := c.callUnary(ctx, control.Control_Demand_FullMethodName, &control.DemandRequest{}, resp)
	return orNil(resp, err)
}

// Drain tells the named agents, or without names the agent that answers, to finish the queries that
// they hold, hand over and stop. It returns the names of the agents that drain, and does not wait
// until they have stopped.
func (c *Client) Drain(ctx context.Context, agents ...string) ([]string, error) {
	resp := new(control.DrainResponse)
	err := c.callUnary(ctx, control.Control_Drain_FullMethodName,
		&control.DrainRequest{Agents: agents},
		resp)
	return resp.GetDraining(), err
}

// Fleet returns what the fleet's leader rents.
func (c *Client) Fleet(ctx context.Context) (*control.FleetState, error) {
	resp := new(control.FleetState)
	err := c.callUnary(ctx, control.Control_Fleet_FullMethodName, &control.FleetRequest{}, resp)
	return orNil(resp, err)
}

// SetFleet changes what is desired of the fleet, or says what would follow.
func (c *Client) SetFleet(ctx context.Context, req *control.SetFleetRequest) (*control.FleetState,
	error) {
	resp := new(control.FleetState)
	err := c.callUnary(ctx, control.Control_SetFleet_FullMethodName, req, resp)
	return orNil(resp, err)
}

// LoadModelOn makes the named agent load a model, or load it again, and waits until the model takes
// queries there; "" or "all" means every agent that has the model's files.
func (c *Client) LoadModelOn(ctx context.Context, agent, model string) error {
	return c.callUnary(ctx, inference.GRPCInferenceService_RepositoryModelLoad_FullMethodName,
		&inference.RepositoryModelLoadRequest{ModelName: model, Parameters: onAgent(agent)},
		new(inference.RepositoryModelLoadResponse))
}

// UnloadModelOn makes the named agent unload a model; "" or "all" means every agent.
func (c *Client) UnloadModelOn(ctx context.Context, agent, model string) error {
	return c.callUnary(ctx, inference.GRPCInferenceService_RepositoryModelUnload_FullMethodName,
		&inference.RepositoryModelUnloadRequest{ModelName: model, Parameters: onAgent(agent)},
		new(inference.RepositoryModelUnloadResponse))
}

// onAgent returns the request's parameters that name an agent, nil for "".
func onAgent(agent string) map[string]*inference.ModelRepositoryParameter {
	if agent == "" {
		return nil
	}
	return map[string]*inference.ModelRepositoryParameter{
		"agent": {
			ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: agent},
		},
	}
}
