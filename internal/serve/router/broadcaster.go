package router

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
)

const (
	// maxTails bounds the concurrent watchers. tailQueue bounds the events queued for each; beyond it
	// the newest are dropped and counted.
	maxTails  = 64
	tailQueue = 256
)

// eventBroadcaster passes cache events on to watchers. Without watchers it costs nothing, and a slow
// watcher delays nothing.
type eventBroadcaster struct {
	watched atomic.Bool
	mu      struct {
		sync.Mutex
		tails  []*eventWatcher
		closed bool
	}
}

// eventWatcher is one watcher.
type eventWatcher struct {
	events  chan []byte // JSON, shared: read-only
	dropped atomic.Uint64
	ended   chan struct{} // closed when the router stops
}

// watch adds a watcher; unwatch removes it.
func (h *eventBroadcaster) watch() (*eventWatcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.closed:
		return nil, fault.New(fault.Unavailable, "the router is shutting down")
	case len(h.mu.tails) == maxTails:
		return nil, fault.New(fault.Overloaded, "%d clients watch events already; try again when one has left", maxTails)
	}
	t := &eventWatcher{events: make(chan []byte, tailQueue), ended: make(chan struct{})}
	h.mu.tails = append(h.mu.tails, t)
	h.watched.Store(true)
	return t, nil
}

func (h *eventBroadcaster) unwatch(t *eventWatcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.tails = slices.DeleteFunc(h.mu.tails, func(o *eventWatcher) bool { return o == t })
	h.watched.Store(len(h.mu.tails) > 0)
}

// close ends all watches and refuses new ones. It is idempotent.
func (h *eventBroadcaster) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mu.closed {
		for _, t := range h.mu.tails {
			close(t.ended)
		}
	}
	h.mu.closed = true
}

// publishRecord passes on the events of a record; the first skip of them are duplicates.
func (h *eventBroadcaster) publishRecord(rec *kvfeed.Record, outcome string, skip int) {
	if !h.watched.Load() {
		return
	}
	for i := range rec.Events {
		o := outcome
		if i < skip {
			o = kvfeed.Duplicate.String()
		}
		b, err := json.Marshal(newKVEvent(rec, i, o))
		if err != nil {
			continue // plain data: cannot happen
		}
		h.broadcast(b)
	}
}

func (h *eventBroadcaster) broadcast(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.mu.tails {
		select {
		case t.events <- b:
		default:
			t.dropped.Add(1)
		}
	}
}

// kvEvent is the JSON of one cache event. Hashes are 16 hex digits: they exceed the precision of a JSON
// number.
type kvEvent struct {
	WorkerID  uint64   `json:"worker_id"`
	Rank      uint32   `json:"dp_rank"`
	Epoch     uint64   `json:"epoch"`
	Seq       uint64   `json:"seq"`
	Kind      string   `json:"kind"`
	Outcome   string   `json:"outcome"`
	Tier      string   `json:"tier"`
	BlockSize uint32   `json:"block_size"`
	Start     uint32   `json:"start,omitempty"`
	Parent    string   `json:"parent,omitempty"`
	Blocks    []string `json:"blocks,omitempty"` // block hashes of a store
	Seqs      []string `json:"seqs,omitempty"`   // prefixes stored or removed
	// Labels is empty or has one entry for each block, null for a block without a label.
	Labels []*moeLabel `json:"labels,omitempty"`
	// Transition is set for kind moved.
	Transition *moveTransition `json:"cxl_state_transition,omitempty"`
}

// moveTransition is the JSON of a moved event, in the terms of docs/format/blocks.md.
type moveTransition struct {
	EventID uint64   `json:"event_id"` // the event's sequence number
	Blocks  []string `json:"block_hashes"`
	State   string   `json:"new_state"`
	Pool    *uint32  `json:"pool_id,omitempty"`
	// Access is nil if the event does not give it.
	Access *[]workerName `json:"accessible_workers,omitempty"`
}

// workerName is the JSON of a worker.
type workerName struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
}

func newMoveTransition(ev *kv.Event, seq uint64) *moveTransition {
	row := &moveTransition{EventID: seq, Blocks: []string{}, State: ev.Move.To.String()}
	for _, s := range ev.Seqs {
		row.Blocks = append(row.Blocks, formatHex(uint64(s)))
	}
	if ev.Move.HasPool {
		pool := uint32(ev.Move.Pool) // a copy: ev is reused
		row.Pool = &pool
	}
	if ev.Move.Access != nil {
		access := []workerName{}
		for _, w := range ev.Move.Access {
			access = append(access, workerName{uint64(w.ID), w.Rank})
		}
		row.Access = &access
	}
	return row
}

// moeLabel is the JSON of a block's label.
type moeLabel struct {
	Layer  uint32  `json:"layer"`
	Expert uint32  `json:"expert"`
	Group  *uint32 `json:"group,omitempty"`
}

func newMoELabel(l kv.MoELabel) *moeLabel {
	if l.Has&kv.HasExpert == 0 {
		return nil
	}
	row := &moeLabel{Layer: l.Layer, Expert: l.Expert}
	if l.Has&kv.HasGroup != 0 {
		row.Group = &l.Group
	}
	return row
}

func newKVEvent(rec *kvfeed.Record, i int, outcome string) kvEvent {
	ev := &rec.Events[i]
	row := kvEvent{
		WorkerID: uint64(rec.Worker.ID), Rank: rec.Worker.Rank, Epoch: rec.Epoch, Seq: rec.First + uint64(i),
		Kind: ev.Kind.String(), Outcome: outcome, Tier: ev.Tier.String(), BlockSize: rec.BlockSize,
	}
	if ev.Kind == kv.Stored {
		row.Start = ev.Start
		if ev.Start > 0 {
			row.Parent = formatHex(uint64(ev.Parent))
		}
		seq := ev.Parent
		for j, b := range ev.Blocks {
			seq = kv.ExtendSeq(seq, ev.Start+uint32(j), b)
			row.Blocks = append(row.Blocks, formatHex(uint64(b)))
			row.Seqs = append(row.Seqs, formatHex(uint64(seq)))
		}
	}
	for _, l := range ev.Labels {
		row.Labels = append(row.Labels, newMoELabel(l))
	}
	if ev.Kind == kv.Moved {
		row.Transition = newMoveTransition(ev, row.Seq)
		return row
	}
	for _, s := range ev.Seqs {
		row.Seqs = append(row.Seqs, formatHex(uint64(s)))
	}
	return row
}
