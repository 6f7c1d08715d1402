package node

import (
	"context"
	"sync"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/node/engines"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/serve/handoff"
	"penstock/internal/serve/worker"
)

// prefillAttempts is how many prefill workers may fail a request.
const prefillAttempts = 3

// handoffLimits returns the limits of a decode worker whose jobs wait so long for a prefill worker.
func handoffLimits(wait time.Duration) disagg.HandoffConfig {
	return disagg.HandoffConfig{MaxAttempts: prefillAttempts, LocalWait: wait / 5, QueueWait: wait, AddressedWait: wait / 5, Silence: wait / 2, Budget: 6 * wait}
}

// jobLimits returns the limits of a prefill worker whose decode workers have such handoffLimits. It beats well within the
// lease of its job in the queue and the silence which they bear.
func jobLimits(wait time.Duration) disagg.JobConfig {
	return disagg.JobConfig{ClaimWait: wait / 5, Heartbeat: min(bus.DefaultLease/4, wait/20), Budget: 6 * wait}
}

// reachWait is how long prefill workers try to reach the memory of a decode worker. It is well within the silence which that
// one bears, since the attempts count as work.
func reachWait(wait time.Duration) time.Duration { return wait / 5 }

// depthInterval is how often the queue of prefill workers is asked for its depth.
const depthInterval = time.Second

// newQueuePlacer returns what puts jobs into a queue for decode workers which wait so long for a prefill worker. A job
// lives no longer: after that a worker which pulls it is refused, and it is counted as one which waits.
func newQueuePlacer(q bus.Queue, wait time.Duration, orElse handoff.JobPlacer) *handoff.QueuePlacer {
	return &handoff.QueuePlacer{Queue: q, MaxLifetime: min(wait, bus.DefaultMaxLifetime), Wait: wait / 5, Else: orElse}
}

// blockExchange is what the workers of this process share to exchange KV blocks with others. All have the same model.
type blockExchange struct {
	of        *process
	snapshots func() *catalog.Snapshot
	card      engine.Card
	layout    engine.KVLayout
	ready     chan struct{} // closed when what follows is set
	err       error
	metadata  disagg.Metadata // without an epoch
	fleet     *handoff.Fleet
	queue     *bus.WatchedQueue // nil without NATS
}

// blockEngine is an engine of either role.
type blockEngine interface {
	engine.BlockProvider
	engine.BlockReceiver
}

// newBlockExchange returns what the workers of this process share to exchange KV blocks; nil if they exchange none.
// snapshots returns the latest snapshot of the registered workers. Its run must run.
func (p *process) newBlockExchange(snapshots func() *catalog.Snapshot) *blockExchange {
	if p.model == nil || !p.cfg.ExchangesBlocks() {
		return nil
	}
	eng, ok := p.model.Engines[0].(blockEngine)
	if !ok || eng.BlockLayout() == (engine.KVLayout{}) {
		return nil
	}
	return &blockExchange{of: p, snapshots: snapshots, card: p.model.Card(), layout: eng.BlockLayout(), ready: make(chan struct{})}
}

// run follows what the workers need to know, once bulk data can be received, until ctx ends.
func (x *blockExchange) run(ctx context.Context) error {
	x.err = x.prepare(ctx)
	close(x.ready)
	if x.err != nil {
		<-ctx.Done()
		return nil
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { _ = x.fleet.Run(ctx) }) // it returns nil
	if x.queue != nil {
		parts.Go(func() { _ = x.queue.Run(ctx) }) // it returns nil
	}
	<-ctx.Done()
	return nil
}

// prepare sets what is known once bulk data can be received.
func (x *blockExchange) prepare(ctx context.Context) error {
	p := x.of
	if err := p.borrower.Listen(ctx); err != nil {
		return err
	}
	x.metadata = x.layout.Metadata()
	for _, a := range p.planes.Bulk.Addresses() {
		x.metadata.Transports = append(x.metadata.Transports, disagg.TransportAddress{Name: a.Transport.String(), Scope: a.Scope(), Address: a.Address})
	}
	x.fleet = handoff.NewFleet(handoff.FleetConfig{
		Current: x.snapshots, Model: x.card.Name, Exchange: x.metadata, Namespace: p.cfg.Fleet.Namespace,
		Log: obs.Component(p.log, "worker"),
	}, p.planes.Events)
	if p.planes.Queues == nil {
		return nil
	}
	q, err := p.planes.Queues.OpenQueue(handoff.QueueConfig(p.cfg.Fleet.Namespace, p.cfg.Fleet.Component, x.card.Name, &x.metadata))
	if err == nil {
		x.queue = bus.NewWatchedQueue(q, depthInterval)
	}
	return err
}

// opener returns what opens the exchange of the worker with an engine, which has the configuration cfg; nil if it
// exchanges no blocks.
func (x *blockExchange) opener(cfg *worker.Config, eng engines.Local) func(context.Context, string, worker.ExchangeObserver) (*worker.Exchange, error) {
	own, ok := eng.(blockEngine)
	if x == nil || !ok {
		return nil
	}
	self := disagg.Incarnation{Worker: kv.Worker{ID: cfg.ID}, Epoch: cfg.Epoch}
	open := x.openDecoder
	switch cfg.Role {
	case engine.RoleDecode:
	case engine.RolePrefill:
		open = x.openPrefiller
	default:
		return nil
	}
	return func(ctx context.Context, addr string, o worker.ExchangeObserver) (*worker.Exchange, error) {
		select {
		case <-x.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if x.err != nil {
			return nil, x.err
		}
		made, err := open(self, addr, own, o)
		if err == nil {
			made.Metadata = x.metadata
			made.Metadata.Epoch = self.Epoch
			err = made.Metadata.Validate()
		}
		return made, err
	}
}

// openDecoder opens the exchange of a decode worker.
func (x *blockExchange) openDecoder(self disagg.Incarnation, addr string, eng blockEngine, o worker.ExchangeObserver) (*worker.Exchange, error) {
	p := x.of
	var decoder *handoff.DecodeWorker
	depth := func() int {
		n := decoder.QueuedJobs()
		if x.queue != nil {
			if d, ok := x.queue.EstimateDepth(); ok {
				n = max(n, d.Waiting)
			}
		}
		return n
	}
	calls := handoff.NewCallPlacer(p.planes.RPC, x.fleet.Peers)
	wait := time.Duration(p.cfg.Disagg.PrefillWait)
	limits := handoffLimits(wait)
	split, err := handoff.NewSplitter(p.cfg.SplitConfig(), limits, calls.Peers, x.metadata.TokenBytes, depth)
	if err != nil {
		return nil, err
	}
	var jobs handoff.JobPlacer = calls
	if x.queue != nil {
		jobs = newQueuePlacer(x.queue, wait, calls)
	}
	decoder, err = handoff.NewDecodeWorker(handoff.DecodeWorkerConfig{
		Self: self, Addr: addr, Handoff: limits, Decide: split.Decide, ObserveLocal: split.ObserveLocal,
		Observe: func(out *handoff.HandoffOutcome) {
			split.ObserveHandoff(out)
			countHandoff(o, out)
		},
		ObserveStages: func(s *handoff.HandoffStages) { observeStages(o, s) },
		Log:           obs.Component(p.log, "worker"),
	}, eng, p.planes.Bulk, jobs)
	if err != nil {
		return nil, err
	}
	return &worker.Exchange{Decoder: decoder, Run: func(ctx context.Context) error {
		tick := time.NewTicker(depthInterval)
		defer tick.Stop()
		for {
			dead := 0
			if x.queue != nil {
				dead = x.queue.EstimateDead()
			}
			o.SetPrefillers(len(x.fleet.Peers()), depth(), dead)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	}}, nil
}

// countHandoff counts an outcome, and the attempts which failed, for the metrics of a decode worker.
func countHandoff(o worker.ExchangeObserver, out *handoff.HandoffOutcome) {
	for _, why := range out.FailureLabels() {
		o.CountFailedPrefill(why)
	}
	if out.State != disagg.Aborted {
		o.CountHandoff(out.State == disagg.Decoding, out.Label(), out.Bytes)
	}
}

// observeStages observes the stages of a handoff for the metrics of a decode worker. What a prefill worker of an earlier
// build does not say is none.
func observeStages(o worker.ExchangeObserver, s *handoff.HandoffStages) {
	if s.Send > 0 {
		o.ObserveStage("send", s.Send)
	}
	o.ObserveStage("transfer", s.Transfer)
	o.ObserveStage("import", s.Import)
	o.ObserveStage("first_token", s.FirstToken)
}

// openPrefiller opens the exchange of a prefill worker.
func (x *blockExchange) openPrefiller(self disagg.Incarnation, _ string, eng blockEngine, o worker.ExchangeObserver) (*worker.Exchange, error) {
	p := x.of
	exchange := x.metadata
	exchange.Epoch = self.Epoch
	wait := time.Duration(p.cfg.Disagg.PrefillWait)
	w, err := handoff.NewPrefillWorker(handoff.PrefillWorkerConfig{
		Self: self, Exchange: exchange, Job: jobLimits(wait), ReachWait: reachWait(wait), FindOwner: x.fleet.FindOwner, Observe: o.CountPrefilled,
		IsBroken: o.IsEngineBroken, Log: obs.Component(p.log, "worker"),
	}, eng, p.planes.RPC, p.planes.Bulk)
	if err != nil {
		return nil, err
	}
	return &worker.Exchange{Prefiller: w, IsUsed: x.fleet.HasDecodeWorkers, Run: func(ctx context.Context) error {
		var queue bus.Queue
		if x.queue != nil {
			queue = x.queue
		}
		return w.Run(ctx, queue)
	}}, nil
}
