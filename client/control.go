package client

import (
	"context"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// Status is the state of the fleet, as the agent that answers sees it.
func (c *Client) Status(ctx context.Context) (*control.FleetStatus, error) {
	resp := new(control.FleetStatus)
	err := c.call(ctx, control.Control_Status_FullMethodName, &control.StatusRequest{}, resp)
	return orNil(resp, err)
}

// Demand is what planning needs to know of the fleet: its members, what is asked of its models, and
// what was learned of them.
func (c *Client) Demand(ctx context.Context) (*control.FleetDemand, error) {
	resp := new(control.FleetDemand)
	err := c.call(ctx, control.Control_Demand_FullMethodName, &control.DemandRequest{}, resp)
	return orNil(resp, err)
}

// Drain has the agents of those names finish what they hold, hand over and stop;
// without names the agent that answers. It returns the names of those that do, and does not wait
// until they have.
func (c *Client) Drain(ctx context.Context, agents ...string) ([]string, error) {
	resp := new(control.DrainResponse)
	err := c.call(ctx, control.Control_Drain_FullMethodName, &control.DrainRequest{Agents: agents},
		resp)
	return resp.GetDraining(), err
}

// LoadModelOn has the agent of that name load a model, or load it anew, and waits until
// it serves; "" or "all" means every agent that has its files.
func (c *Client) LoadModelOn(ctx context.Context, agent, model string) error {
	return c.call(ctx, inference.GRPCInferenceService_RepositoryModelLoad_FullMethodName,
		&inference.RepositoryModelLoadRequest{ModelName: model, Parameters: onAgent(agent)},
		new(inference.RepositoryModelLoadResponse))
}

// UnloadModelOn has the agent of that name unload a model; "" or "all" means every agent.
func (c *Client) UnloadModelOn(ctx context.Context, agent, model string) error {
	return c.call(ctx, inference.GRPCInferenceService_RepositoryModelUnload_FullMethodName,
		&inference.RepositoryModelUnloadRequest{ModelName: model, Parameters: onAgent(agent)},
		new(inference.RepositoryModelUnloadResponse))
}

// onAgent is the parameter that names an agent.
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
