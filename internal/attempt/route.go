package attempt

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
)

// Router is the router, as attempts need it.
type Router interface {
	// Route chooses a worker and reserves the request's load there. It keeps nothing
	// of req.
	Route(ctx context.Context, req *route.Request) (route.Decision, error)
}

// Route asks for a worker for req that is none of exclude, and rather none of avoid
// either: one of those is better than none. It sets req.Exclude. A model that the
// router does not know, or no longer, has no worker: its caller knows that there is
// such a model.
func Route(ctx context.Context, router Router, req *route.Request, avoid, exclude []kv.WorkerID) (route.Decision, error) {
	if len(avoid) > 0 {
		req.Exclude = slices.Concat(avoid, exclude)
		d, err := router.Route(ctx, req)
		if err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	req.Exclude = exclude
	d, err := router.Route(ctx, req)
	if fault.Of(err) == fault.NotFound && req.Pin.ID == 0 {
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", req.Model)
	}
	return d, err
}
