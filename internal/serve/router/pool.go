package router

import (
	"cmp"
	"slices"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/engine"
)

// modelPool is one model: its workers and what is active on them. The router's mu guards all fields
// that are not marked constant.
type modelPool struct {
	model     string // constant
	blockSize int    // constant
	// card is the model's reference card with its checksum: see referenceCardLocked.
	card           engine.Card
	checksum       string
	active         *activeseq.ReservationTable
	router         *route.Router
	queue          *queue.Queue // of *queuedRequest
	expiredCounted uint64       // expired reservations of active that the metrics have counted
	// retired says that this is not, or no longer, the pool of its model: a pool of another block size
	// replaced it, or the model was forgotten.
	retired bool
}

// maxLost bounds the known models without workers.
const maxLost = 1024

// rebuildPoolsLocked makes the pools follow the members. A model keeps its pool when its last worker is
// removed: it is then unavailable, not unknown. Models without workers beyond maxLost are forgotten.
func (r *Router) rebuildPoolsLocked() {
	byModel := slices.Clone(r.mu.members)
	slices.SortStableFunc(byModel, func(a, b *member) int { return cmp.Compare(a.card.Name, b.card.Name) })

	pools, lost := r.mu.pools, 0
	r.mu.pools = nil
	for len(pools) > 0 || len(byModel) > 0 {
		var old *modelPool
		var members []*member
		switch {
		case len(byModel) == 0 || len(pools) > 0 && pools[0].model < byModel[0].card.Name:
			old, pools = pools[0], pools[1:]
		default:
			if len(pools) > 0 && pools[0].model == byModel[0].card.Name {
				old, pools = pools[0], pools[1:]
			}
			n := 1
			for n < len(byModel) && byModel[n].card.Name == byModel[0].card.Name {
				n++
			}
			members, byModel = byModel[:n], byModel[n:]
		}
		if len(members) == 0 {
			if lost == maxLost {
				r.retirePoolLocked(old)
				continue
			}
			lost++
		}
		if p := r.updatePoolLocked(old, members); p != nil {
			r.mu.pools = append(r.mu.pools, p)
		}
	}
	r.rebuildNamesLocked()
}

// updatePoolLocked returns the pool of members: old if its block size fits, or if there are no members.
func (r *Router) updatePoolLocked(old *modelPool, members []*member) *modelPool {
	if len(members) == 0 {
		r.setTargetsLocked(old, nil)
		return old
	}
	card, checksum := r.referenceCardLocked(old, members)
	p := old
	if size := cmp.Or(r.cfg.BlockSize, card.BlockSize); p == nil || p.blockSize != size {
		var err error
		busy := r.cfg.Route.Busy
		if old != nil {
			busy = old.router.BusyThresholds()
		}
		if p, err = r.newPool(card.Name, size, busy); err != nil {
			// The card and the configuration are valid: this is a defect.
			r.log.Error("cannot route a model", "model", card.Name, "error", err)
			p = nil
		}
		if old != nil {
			r.retirePoolLocked(old)
		}
		if p == nil {
			return nil
		}
	}
	p.card, p.checksum = card, checksum
	for _, m := range members {
		m.unfit = ""
		if m.checksum != checksum {
			m.unfit = m.card.DescribeDifference(&card)
		}
	}
	r.setTargetsLocked(p, members)
	return p
}

// setTargetsLocked passes the workers of p to the core.
func (r *Router) setTargetsLocked(p *modelPool, members []*member) {
	now := r.now()
	targets := make([]route.Target, 0, len(members))
	for _, m := range members {
		state, since := r.memberStateLocked(now, m)
		targets = append(targets, route.Target{
			Worker: m.worker, Addr: m.in.Addr, BlockSize: m.card.BlockSize, Blocks: m.card.Blocks,
			State: state, Since: since, Unfit: m.unfit, Router: m.card.Router, BatchTokens: m.card.MaxBatchedTokens, Experts: m.experts,
			Adapters: m.card.Adapters, Loaded: m.loadedAdapters(),
		})
	}
	if err := p.router.SetWorkers(targets); err != nil {
		r.log.Error("cannot take over the workers of a model", "model", p.model, "error", err)
	}
	r.admitLocked(p)
}

// retirePoolLocked ends p, which is no longer the pool of its model. Requests that wait in it ask
// again. The caller has already replaced it.
func (r *Router) retirePoolLocked(p *modelPool) {
	p.retired = true
	r.dispersePoolLocked(p)
	r.setTargetsLocked(p, nil) // active reservations will not be freed
}

func (r *Router) newPool(model string, blockSize int, busy route.BusyThresholds) (*modelPool, error) {
	active, err := activeseq.New(activeseq.Config{BlockSize: blockSize, TTL: r.cfg.ReservationTTL, Journal: r.journalLocked()})
	if err != nil {
		return nil, err
	}
	cfg := r.cfg.Route
	cfg.Busy = busy
	router, err := route.New(cfg, active)
	if err != nil {
		return nil, err
	}
	waiting, err := queue.New(r.cfg.Queue)
	if err != nil {
		return nil, err
	}
	return &modelPool{model: model, blockSize: blockSize, active: active, router: router, queue: waiting}, nil
}

// rebuildNamesLocked rebuilds the table of names: models first, then aliases in order, then adapters. A
// later name never replaces an earlier one.
func (r *Router) rebuildNamesLocked() {
	clear(r.mu.names)
	for _, p := range r.mu.pools {
		r.mu.names[p.model] = p
	}
	for _, m := range r.mu.members {
		if m.unfit != "" {
			continue
		}
		for _, alias := range m.card.Aliases {
			if r.mu.names[alias] == nil {
				r.mu.names[alias] = r.mu.names[m.card.Name]
			}
		}
	}
	clear(r.mu.adapters)
	for _, p := range r.mu.pools { // the same order as in frontends
		for _, t := range p.router.Workers() {
			for _, name := range t.Adapters {
				if t.Unfit == "" && r.mu.names[name] == nil {
					r.mu.names[name] = p
					r.mu.adapters[name] = true
				}
			}
		}
	}
}

// findPool returns the pool that serves model.
func (r *Router) findPool(model string) (*modelPool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.mu.names[model]; p != nil {
		return p, nil
	}
	return nil, unknownModel(model)
}

// ReferenceCard returns the reference card of a model, or of the model of a LoRA adapter; ok is false
// if no worker has registered for it.
func (r *Router) ReferenceCard(model string) (card engine.Card, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.mu.names[model]
	if p == nil {
		return engine.Card{}, false
	}
	return p.card, true
}

func unknownModel(name string) error {
	e := fault.New(fault.NotFound, "the model %.100q does not exist; GET /v1/models lists those that do", name)
	e.Param = "model"
	return e
}

// WorkerCount returns the number of workers that requests for the model can be routed to.
func (r *Router) WorkerCount(model string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.mu.names[model]
	if p == nil {
		return 0
	}
	return len(p.router.Workers())
}
