package dispatch

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
)

// Router is the part of the router that attempts need.
type Router interface {
	// Route chooses a worker and reserves the request's load there. It keeps nothing of req.
	Route(ctx context.Context, req *route.Request) (route.Decision, error)
}

// RouteAvoiding asks for a worker for req which is not in exclude, and preferably not in avoid. It sets
// req.Exclude. A model that the router does not know, or no longer, counts as a model without workers,
// because the caller knows that it exists.
func RouteAvoiding(ctx context.Context, router Router, req *route.Request, avoid, exclude []kv.WorkerID) (route.Decision, error) {
	if len(avoid) > 0 {
		req.Exclude = slices.Concat(avoid, exclude)
		d, err := router.Route(ctx, req)
		if err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	req.Exclude = exclude
	d, err := router.Route(ctx, req)
	if fault.CodeOf(err) == fault.NotFound && req.Pin.ID == 0 {
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", req.Model)
	}
	return d, err
}
