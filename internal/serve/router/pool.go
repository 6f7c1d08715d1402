package router

import (
	"cmp"
	"slices"
	"strings"

	"penstock/core/activeseq"
	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// modelPool is one model: its workers of a role and what is active on them. The router's mu guards all fields
// that are not marked constant.
type modelPool struct {
	poolKey       // constant
	blockSize int // constant
	active    *activeseq.ReservationTable
	router    *route.Router
	queue     *queue.Queue // of *queuedRequest
	encoders  []string     // of its workers which tell of their embeddings; replaced, never changed
	// prefillPeers compute prompts for its workers. distancesDiffer says that they are on the host of some of these.
	prefillPeers    []prefillPeer
	distancesDiffer bool
	expiredCounted  uint64 // expired reservations of active that the metrics have counted
	// split is what was set at run time about where prompts are computed.
	split disagg.SplitSettings
	// retired says that this is not, or no longer, the pool of its model: a pool of another block size
	// replaced it, or the model was forgotten.
	retired bool
}

// poolKey names a pool.
type poolKey struct {
	model string
	role  route.WorkerRole
}

// compare orders pools.
func (k poolKey) compare(other poolKey) int {
	return cmp.Or(strings.Compare(k.model, other.model), cmp.Compare(k.role, other.role))
}

// poolKeyOf returns the pool of a card's workers; ok is false for a worker which no request, and no leg of one, is
// routed to.
func poolKeyOf(card *engine.Card) (key poolKey, ok bool) {
	if card.Role.TakesRequests() {
		return poolKey{card.Name, route.ServingWorkers}, true
	}
	_, ok = card.KVConnector.LegOrder()
	return poolKey{card.Name, route.PrefillWorkers}, ok && card.Role == engine.RolePrefill
}

// rebuildPoolsLocked makes the pools follow a snapshot, whose members the router has. A model keeps its
// pool when its last worker is removed: it is then unavailable, not unknown.
func (r *Router) rebuildPoolsLocked(s *catalog.Snapshot) {
	r.mu.snapshot = s
	byPool := map[poolKey][]*member{}
	for _, m := range r.mu.members {
		if key, ok := poolKeyOf(m.in.Card); ok {
			byPool[key] = append(byPool[key], m)
		}
	}
	old := r.mu.pools
	r.mu.pools = nil
	update := func(key poolKey, card *engine.Card) {
		for len(old) > 0 && old[0].compare(key) < 0 {
			r.retirePoolLocked(old[0])
			old = old[1:]
		}
		var p *modelPool
		if len(old) > 0 && old[0].poolKey == key {
			p, old = old[0], old[1:]
		}
		if p = r.updatePoolLocked(p, key, card, byPool[key]); p != nil {
			r.mu.pools = append(r.mu.pools, p)
		}
	}
	for _, m := range s.Models {
		if m.Parent != "" {
			continue // an adapter is served by the pool of its model
		}
		update(poolKey{m.Card.Name, route.ServingWorkers}, &m.Card)
		if prefill := (poolKey{m.Card.Name, route.PrefillWorkers}); len(byPool[prefill]) > 0 {
			update(prefill, byPool[prefill][0].in.Card)
		}
	}
	for _, p := range old {
		r.retirePoolLocked(p)
	}
}

// updatePoolLocked returns the pool of a model with the given members: old if its block size fits, or if
// there are no members.
func (r *Router) updatePoolLocked(old *modelPool, key poolKey, card *engine.Card, members []*member) *modelPool {
	p := old
	if size := cmp.Or(r.cfg.BlockSize, card.BlockSize); p == nil || p.blockSize != size && len(members) > 0 {
		var err error
		busy := r.cfg.Route.Busy
		like := old
		if like == nil { // the prefill workers of a model have the thresholds of the others
			like = r.findPoolLocked(poolKey{key.model, route.ServingWorkers})
		}
		if like != nil {
			busy = like.router.BusyThresholds()
		}
		if p, err = r.newPool(key, size, busy); err != nil {
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
		if old != nil {
			p.split = old.split
		}
	}
	r.setTargetsLocked(p, members)
	return p
}

// setTargetsLocked passes the workers of p to the core.
func (r *Router) setTargetsLocked(p *modelPool, members []*member) {
	now := r.now()
	p.encoders = encodersOf(members)
	p.prefillPeers, p.distancesDiffer = r.findPrefillPeersLocked(p.model, members)
	targets := make([]route.Target, 0, len(members))
	for _, m := range members {
		state, since := r.memberStateLocked(now, m)
		targets = append(targets, route.Target{
			Worker: m.worker, Addr: m.in.Addr, BlockSize: m.in.Card.BlockSize, Blocks: m.in.Card.Blocks,
			ReusesQueued: r.predictions.isEnabled() && !m.in.Card.NoPrefixCache && !m.in.Card.KVPredicted,
			State:        state, Since: since, Unfit: m.in.Unfit, Router: m.in.Card.Router, BatchTokens: m.in.Card.MaxBatchedTokens, Experts: m.experts,
			Adapters: m.in.Card.Adapters, Loaded: m.loadedAdapters(),
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

func (r *Router) newPool(key poolKey, blockSize int, busy route.BusyThresholds) (*modelPool, error) {
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
	return &modelPool{poolKey: key, blockSize: blockSize, active: active, router: router, queue: waiting}, nil
}

// poolLocked returns the pool that serves a model, an alias or an adapter; nil if there is none. adapter
// is the name if it is an adapter's.
func (r *Router) poolLocked(name string) (p *modelPool, adapter string) {
	return r.rolePoolLocked(name, route.ServingWorkers)
}

// rolePoolLocked is poolLocked for the workers of a role.
func (r *Router) rolePoolLocked(name string, role route.WorkerRole) (p *modelPool, adapter string) {
	m := r.mu.snapshot.FindBase(name)
	if m == nil {
		return nil, ""
	}
	if p = r.findPoolLocked(poolKey{m.Card.Name, role}); p != nil && r.mu.snapshot.Find(name) != m {
		adapter = name
	}
	return p, adapter
}

// memberPoolLocked returns the pool of a member; nil if there is none.
func (r *Router) memberPoolLocked(m *member) *modelPool {
	key, ok := poolKeyOf(m.in.Card)
	if !ok {
		return nil
	}
	return r.findPoolLocked(key)
}

func (r *Router) findPoolLocked(key poolKey) *modelPool {
	at, ok := slices.BinarySearchFunc(r.mu.pools, key, func(p *modelPool, key poolKey) int { return p.compare(key) })
	if !ok {
		return nil
	}
	return r.mu.pools[at]
}

// findPool returns the pool that serves model.
func (r *Router) findPool(model string) (*modelPool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, _ := r.poolLocked(model); p != nil {
		return p, nil
	}
	return nil, unknownModel(model)
}

func unknownModel(name string) error {
	e := fault.New(fault.NotFound, "the model %.100q does not exist; GET /v1/models lists those that do", name)
	e.Param = "model"
	return e
}
