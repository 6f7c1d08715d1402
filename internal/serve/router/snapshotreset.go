package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/plane/disco"
)

// ResetMode says whether the states of earlier routers are deleted at the start.
type ResetMode string

// The values of ResetMode.
const (
	ResetNever   ResetMode = ""      // use them
	ResetIfAlone ResetMode = "alone" // delete them, unless other routers of the component are alive
	ResetForce   ResetMode = "force" // delete them
)

const (
	// leaveTime bounds the deregistration, lookTime the wait for discovery to list the routers,
	// enlistTime the wait to be listed before requests are served.
	leaveTime  = 2 * time.Second
	lookTime   = 10 * time.Second
	enlistTime = 2 * time.Second
)

// keepRegistered registers this router until ctx ends, so that others see whether its state is in use, and workers
// whether it wants their events. It has no address, because requests do not come this way. It also watches the
// other routers: the store removes entries of a killed router only for watchers of its kind.
func (r *Router) keepRegistered(ctx context.Context) error {
	if r.lease == nil {
		var err error
		if r.lease, err = r.planes.Registry.Register(ctx, r.self); err != nil {
			return err
		}
	}
	r.markRegistered()
	err := r.planes.Registry.Watch(ctx, disco.KindRouter, func([]disco.Instance) {})
	if ctx.Err() != nil {
		_ = r.deregister(ctx) // otherwise the lease expires
		return nil
	}
	return err
}

// deregister ends the registration.
func (r *Router) deregister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	return r.lease.Release(ctx)
}

// newSelf describes this router to discovery.
func newSelf(cfg *Config, usesEvents bool) disco.Instance {
	host, _ := os.Hostname() // only informative
	return disco.Instance{
		Kind: disco.KindRouter, ID: kv.WorkerID(rand.Uint64N(uint64(kv.MaxWorkerID)) + 1), Epoch: uint64(time.Now().UnixMilli()),
		Namespace: cfg.Namespace, Component: cfg.Component, Endpoint: "route", Host: host, PID: os.Getpid(),
		Meta: disco.RouterMeta{KVEvents: usesEvents}.Encode(),
	}
}

// resetStates deletes the stream and all snapshots. Unless this is forced, it registers this router
// before it looks for others: of two that reset at once each sees the other.
func (r *Router) resetStates(ctx context.Context) (err error) {
	if r.lease, err = r.planes.Registry.Register(ctx, r.self); err != nil {
		return fmt.Errorf("reset states: %w", err)
	}
	if r.cfg.Snapshots.Reset != ResetForce {
		err = r.checkAlone(ctx)
	}
	if err == nil {
		err = r.clearStates(ctx)
	}
	if err != nil {
		return fmt.Errorf("reset states: %w", errors.Join(err, r.deregister(ctx)))
	}
	return nil
}

func (r *Router) clearStates(ctx context.Context) error {
	return r.planes.Archive.Lock(ctx, r.snapshotPrefix()+"writer", func(ctx context.Context, _ uint64) error {
		all, err := r.listSnapshots(ctx)
		if err != nil {
			return err
		}
		for _, k := range all {
			if err := r.planes.Archive.Delete(ctx, k.name); err != nil {
				return err
			}
		}
		span, err := r.planes.Bus.DescribeTopic(ctx, r.eventTopic())
		if err != nil {
			return err
		}
		r.log.Info("router states reset", "snapshots", len(all), "messages", span.Messages)
		return r.planes.Bus.Purge(ctx, r.eventTopic(), span.Last+1)
	})
}

// checkAlone returns an error if another router of the component is alive, or if that is unknown.
func (r *Router) checkAlone(ctx context.Context) error {
	others, seen := r.otherRouters(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !seen:
		return fault.New(fault.Conflict, "this kind of discovery does not show other routers, which may be using the states; if there are none, use --router-reset-states=force, or another --namespace, which has states of its own")
	case len(others) > 0:
		return fault.New(fault.Conflict, "%d other routers of %s/%s are using the states (%s); stop them, or use another --namespace, which has states of its own, or --router-reset-states=force; a router that was killed counts for some seconds more",
			len(others), r.cfg.Namespace, r.cfg.Component, strings.Join(others, ", "))
	}
	return nil
}

// otherRouters returns the other routers of the component that discovery confirms and that use the states, and
// whether discovery lists this one: otherwise it lists none.
func (r *Router) otherRouters(ctx context.Context) (others []string, seen bool) {
	ctx, stop := context.WithTimeout(ctx, lookTime)
	defer stop()
	err := r.planes.Registry.Watch(ctx, disco.KindRouter, func(all []disco.Instance) {
		if ctx.Err() != nil {
			return
		}
		for _, in := range all {
			switch {
			case in.ID == r.self.ID:
				seen = true
			case in.Namespace == r.self.Namespace && in.Component == r.self.Component && !in.Unconfirmed && disco.FollowsKVEvents(in):
				others = append(others, fmt.Sprintf("process %d on %s", in.PID, in.Host))
			}
		}
		stop()
	})
	if err != nil {
		return nil, false
	}
	return others, seen
}
