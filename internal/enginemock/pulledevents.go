package enginemock

import "context"

// pulledEvent is one event of TensorRT-LLM's list.
type pulledEvent struct {
	ID   uint64 `json:"event_id"`
	Data any    `json:"data"`
}

// The data of an event, by its type.
type (
	pulledCreated struct {
		Type   string `json:"type"` // created
		Blocks []int  `json:"num_blocks_per_cache_level"`
	}
	pulledStored struct {
		Type   string        `json:"type"` // stored
		Parent *uint64       `json:"parent_hash"`
		Blocks []pulledBlock `json:"blocks"`
	}
	pulledBlock struct {
		Type     string        `json:"type"` // stored_block
		Hash     uint64        `json:"block_hash"`
		Tokens   []pulledToken `json:"tokens"`
		LoRA     *uint32       `json:"lora_id"`
		Level    int           `json:"cache_level"`
		Priority int           `json:"priority"`
		MM       []any         `json:"mm_keys"`
	}
	pulledToken struct {
		Type  string `json:"type"` // unique_token
		ID    uint32 `json:"token_id"`
		Extra uint64 `json:"token_extra_id"`
	}
	pulledKey struct {
		Type   string `json:"type"` // mm_key
		Hash   string `json:"hash"`
		Offset int    `json:"start_offset"`
	}
	pulledRemoved struct {
		Type   string   `json:"type"` // removed
		Hashes []uint64 `json:"block_hashes"`
	}
)

// maxPulled bounds the list, as kv_cache_config.event_buffer_max_size does: the oldest events are lost, and a
// gap in their numbers shows it.
const maxPulled = 16_384

// usesPulledList reports whether changes go into the list.
func (f *eventPublisher) usesPulledList() bool {
	return f.dialect.pulls && !f.cfg.Features.Push.isOn(f.cfg.KVEvents != "")
}

// publishFirst publishes the first event: the size of the cache in TensorRT-LLM's list, an empty cache for
// SGLang.
func (f *eventPublisher) publishFirst(blocks int) {
	if f.dialect.clearsAtStart {
		f.publishCleared()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.usesPulledList() {
		f.addPulledLocked(pulledCreated{"created", []int{blocks, 0}})
	}
}

// appendPulledLocked appends changes to the list.
func (f *eventPublisher) appendPulledLocked(changes []cacheChange) {
	for i := range changes {
		c := &changes[i]
		switch c.kind {
		case blockStored:
			e := pulledStored{Type: "stored"}
			if c.parent != 0 {
				e.Parent = &c.parent
			}
			for j, name := range c.names {
				b := pulledBlock{Type: "stored_block", Hash: name, Level: c.level, Priority: 35, MM: []any{}}
				for _, k := range c.mediaKeysAt(j) {
					b.MM = append(b.MM, pulledKey{"mm_key", k.id, k.offset})
				}
				if c.salt.LoRA != "" {
					id := loraID(c.salt.LoRA)
					b.LoRA = &id
				}
				for _, t := range c.tokens[j*c.size : (j+1)*c.size] {
					b.Tokens = append(b.Tokens, pulledToken{Type: "unique_token", ID: uint32(t)})
				}
				e.Blocks = append(e.Blocks, b)
			}
			f.addPulledLocked(e)
		case blockRemoved:
			f.addPulledLocked(pulledRemoved{"removed", c.names})
		case allCleared: // has no event of its own: every block is removed
			var names []uint64
			for _, r := range f.snapshotRecordsLocked() {
				names = append(names, r.names...)
			}
			if len(names) > 0 {
				f.addPulledLocked(pulledRemoved{"removed", names})
			}
		}
	}
}

// addPulledLocked appends one event.
func (f *eventPublisher) addPulledLocked(data any) {
	e := pulledEvent{f.mu.event, data}
	f.mu.event++
	if _, gap := f.faults.takeDue(FaultGap); gap {
		return
	}
	if len(f.mu.pulled) == maxPulled {
		f.mu.pulled = f.mu.pulled[1:]
	}
	f.mu.pulled = append(f.mu.pulled, e)
	select {
	case f.pulledReady <- struct{}{}:
	default:
	}
}

// awaitPulled waits until there is an event in the list, or ctx ends.
func (f *eventPublisher) awaitPulled(ctx context.Context) {
	f.mu.Lock()
	n, news := len(f.mu.pulled), f.pulledReady
	f.mu.Unlock()
	if n > 0 {
		return
	}
	select {
	case <-news:
	case <-ctx.Done():
	}
}

// drainPulled returns the list and empties it.
func (f *eventPublisher) drainPulled() []pulledEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.mu.pulled
	f.mu.pulled = nil
	select {
	case <-f.pulledReady: // the list has no new events any more
	default:
	}
	if _, lost := f.faults.takeDue(FaultDropEvents); lost || all == nil {
		return []pulledEvent{}
	}
	return all
}
