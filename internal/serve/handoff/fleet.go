package handoff

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// FleetConfig says which workers a Fleet knows.
type FleetConfig struct {
	// Current returns the latest snapshot of the registered workers.
	Current func() *catalog.Snapshot
	// Model is the name on the worker's card, and Exchange what it states there.
	Model    string
	Exchange disagg.Metadata
	// Namespace is where load reports are published.
	Namespace string
	Log       *slog.Logger
}

// Fleet knows the workers with which a worker exchanges blocks, from the catalog, and how much prefill workers have to do,
// from their load reports. It is safe for concurrent use.
type Fleet struct {
	cfg FleetConfig
	bus bus.Bus
	mu  struct {
		sync.Mutex
		of    *catalog.Snapshot // which peers are of
		peers []PrefillPeer     // without load
		loads map[kv.WorkerID]reportedLoad
		// owners are the decode workers of the latest snapshot, and others which have left lately.
		owners map[kv.WorkerID]decodeOwner
	}
}

// decodeOwner is a decode worker.
type decodeOwner struct {
	metadata *disagg.Metadata
	seen     time.Time // in discovery
}

// ownerMemory is how long a decode worker is known which has left discovery: it drains, and some of its requests may wait
// for prefill workers still.
const ownerMemory = time.Minute

// reportedLoad is how many tokens of how many prompts a prefill worker has to compute, and when it said so.
type reportedLoad struct {
	tokens, jobs int
	notReady     bool // its engine does not answer
	at           time.Time
}

// reportAge is how long a report says something: workers repeat theirs every few seconds.
const reportAge = 15 * time.Second

// NewFleet returns a Fleet which follows the load reports of events.
func NewFleet(cfg FleetConfig, events bus.Bus) *Fleet {
	f := &Fleet{cfg: cfg, bus: events}
	f.mu.loads, f.mu.owners = make(map[kv.WorkerID]reportedLoad), make(map[kv.WorkerID]decodeOwner)
	return f
}

// Run follows load reports until ctx ends, and then returns nil.
func (f *Fleet) Run(ctx context.Context) error {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := f.bus.Subscribe(ctx, bus.LoadTopic(f.cfg.Namespace), 0, func(m bus.Message) error {
			r, err := engine.DecodeLoadReport(m.Data)
			if err == nil && m.Key == engine.WorkerKey(kv.Worker{ID: r.WorkerID, Rank: r.Rank}) {
				f.recordLoad(&r)
			}
			return nil
		}, nil)
		if ctx.Err() != nil {
			return nil
		}
		f.cfg.Log.DebugContext(ctx, "cannot follow the load of prefill workers, trying again", "error", err)
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// recordLoad keeps the report of a prefill worker.
func (f *Fleet) recordLoad(r *engine.LoadReport) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peersLocked() {
		if p.Worker.ID == r.WorkerID && p.Epoch == r.Epoch {
			f.mu.loads[r.WorkerID] = reportedLoad{max(r.Load.PrefillTokens, 0), max(r.Load.Running+r.Load.Waiting, 0), r.State == engine.StateNotReady, time.Now()}
		}
	}
}

// Peers returns the prefill workers whose blocks this worker can take, without those which say that they are not ready.
func (f *Fleet) Peers() []PrefillPeer {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.peersLocked()
	all := make([]PrefillPeer, 0, len(known))
	for _, p := range known {
		if l := f.mu.loads[p.Worker.ID]; now.Sub(l.at) < reportAge {
			if l.notReady {
				continue
			}
			p.Tokens, p.Jobs = l.tokens, l.jobs
		}
		all = append(all, p)
	}
	return all
}

// peersLocked returns the peers of the latest snapshot.
func (f *Fleet) peersLocked() []PrefillPeer {
	s := f.cfg.Current()
	if s == f.mu.of {
		return f.mu.peers
	}
	f.noteOwnersLocked(s)
	f.mu.of, f.mu.peers = s, nil
	loads := f.mu.loads
	f.mu.loads = make(map[kv.WorkerID]reportedLoad)
	m := s.Find(f.cfg.Model)
	if m == nil {
		return nil
	}
	for _, w := range m.PrefillWorkers {
		x := w.Card.Exchange
		if x == nil || disagg.CheckExchange(x, &f.cfg.Exchange) != nil {
			continue
		}
		f.mu.peers = append(f.mu.peers, PrefillPeer{
			Incarnation: disagg.Incarnation{Worker: kv.Worker{ID: w.ID}, Epoch: w.Epoch}, Addr: w.Addr, From: disagg.DistanceBetween(x, &f.cfg.Exchange),
		})
		if l, ok := loads[w.ID]; ok {
			f.mu.loads[w.ID] = l
		}
	}
	return f.mu.peers
}

// noteOwnersLocked takes over the decode workers of a snapshot, and forgets the ones which left long ago.
func (f *Fleet) noteOwnersLocked(s *catalog.Snapshot) {
	now := time.Now()
	for id, o := range f.mu.owners {
		if f.mu.of != nil && f.mu.of.Worker(id) != nil { // until now
			o.seen = now
			f.mu.owners[id] = o
		}
		if now.Sub(o.seen) >= ownerMemory {
			delete(f.mu.owners, id)
		}
	}
	for _, w := range s.Workers {
		if w.Problem == "" && w.Card.Exchange != nil && w.Card.Role == engine.RoleDecode {
			f.mu.owners[w.ID] = decodeOwner{w.Card.Exchange, now}
		} else {
			delete(f.mu.owners, w.ID)
		}
	}
}

// FindOwner returns what a decode worker states in its registration, or stated until lately; nil if it states nothing.
func (f *Fleet) FindOwner(of kv.Worker) *disagg.Metadata {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peersLocked()
	o, known := f.mu.owners[of.ID]
	if !known || f.mu.of.Worker(of.ID) == nil && time.Since(o.seen) >= ownerMemory {
		return nil
	}
	return o.metadata
}

// HasDecodeWorkers reports whether a decode worker can take the blocks of this worker.
func (f *Fleet) HasDecodeWorkers() bool {
	for _, w := range f.cfg.Current().Workers {
		if w.Problem == "" && w.Card.Role == engine.RoleDecode && w.Card.Name == f.cfg.Model && w.Card.Exchange != nil &&
			disagg.CheckExchange(&f.cfg.Exchange, w.Card.Exchange) == nil {
			return true
		}
	}
	return false
}

// QueuePrefix returns what the names of the queues of the prefill workers of a component begin with.
func QueuePrefix(namespace, component string) string {
	return namespace + "." + component + ".prefill-"
}

// NamedQueue returns the queue of prefill workers with a name.
func NamedQueue(name string) bus.QueueConfig { return bus.QueueConfig{Name: name} }

// QueueConfig returns the queue of the prefill workers of a model whose blocks are as m says: a worker with other
// numerics, elements or layout could do none of its jobs, and has a queue of its own. docs/format/queue.md has the name.
func QueueConfig(namespace, component, model string, m *disagg.Metadata) bus.QueueConfig {
	// Names of models have any characters, names of queues few.
	const readable = 32
	name := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, model)
	sum := sha256.Sum256([]byte(strings.Join([]string{model, m.Numerics, m.Type, m.Layout}, "\x00")))
	return NamedQueue(QueuePrefix(namespace, component) + name[:min(len(name), readable)] + "-" + hex.EncodeToString(sum[:6]))
}
