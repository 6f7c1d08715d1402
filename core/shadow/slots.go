package shadow

import (
	"errors"
	"fmt"

	"penstock/core/kv"
)

// The bounds of a SlotConfig.
const (
	maxSlots   = 1024
	maxContext = 1 << 24
	maxQueued  = 64 // tracked requests beyond the number of slots
)

// SlotConfig describes an engine which keeps one sequence in each slot.
type SlotsConfig struct {
	// BlockSize is the number of tokens in a block of the events, as in the model card. The engine itself
	// compares single tokens.
	BlockSize int
	// Slots is the number of requests which the engine serves at once.
	Slots int
	// Context is the number of tokens for which a slot has room.
	Context int
	// Similarity is the share of a request's tokens above which a slot which starts with them is chosen. 0
	// means llama.cpp's default of 0.1.
	Similarity float64
}

// SlotModel models llama.cpp, where every slot holds the sequence which it computed last. A request gets
// the idle slot with the longest common prefix, if that is more than a tenth of the request, otherwise the
// slot which was idle longest. What the slot held beyond the common prefix is lost. A busy slot serves no
// other request, so its contents are announced when it is idle.
type Slots struct {
	cfg      SlotsConfig
	slots    []slot
	requests []slotRequest
	unplaced int    // open requests whose slot is unknown
	strays   owners // salts of untracked requests, which may have run in any slot
	released uint64 // how often a slot became idle
	seqs     names[kv.SeqHash]
	blocks   names[kv.BlockHash]
}

type slot struct {
	chain
	owners  owners // salts which the engine may have in it
	request int    // index in requests; -1 if it is idle
	used    uint64 // released when it last became idle; 0 is never
}

// saltSet holds the salts of the sequences which a slot may hold: that of a computed request, and those of
// requests which ended before it was known whether they were computed.
type owners struct {
	salt kv.Salt
	n    int // 0, 1, or 2 for several (salt is one of them)
}

func (o *owners) add(salt kv.Salt) {
	switch {
	case o.n == 0:
		*o = owners{salt, 1}
	case o.salt != salt:
		o.n = 2
	}
}

// hasOtherSalt reports whether there may be a sequence which a request under salt must not reuse.
func (o *owners) foreign(salt kv.Salt) bool { return o.n > 1 || o.n == 1 && o.salt != salt }

// slotRequest tracks a request. Its sequence becomes the slot's when it ends: until then the engine may
// report another slot, and no other request can reuse it.
type slotRequest struct {
	chain
	serial   uint32
	open     bool
	slot     int  // -1 if unknown
	computed bool // the prompt is computed
}

// NewSlotModel returns the model of an engine with empty slots.
func NewSlots(cfg SlotsConfig) (*Slots, error) {
	if cfg.Similarity == 0 {
		cfg.Similarity = 0.1
	}
	_, err := kv.NewHasher(cfg.BlockSize, kv.Salt{})
	switch {
	case err != nil:
		return nil, err
	case cfg.Slots < 1 || cfg.Slots > maxSlots:
		return nil, fmt.Errorf("shadow: slots must be between 1 and %d, not %d", maxSlots, cfg.Slots)
	case cfg.Context < 1 || cfg.Context > maxContext:
		return nil, fmt.Errorf("shadow: the context must be between 1 and %d tokens, not %d", maxContext, cfg.Context)
	case !(cfg.Similarity >= 0 && cfg.Similarity <= 1):
		return nil, errors.New("shadow: the similarity must be between 0 and 1")
	}
	s := &Slots{cfg: cfg, slots: make([]slot, cfg.Slots), requests: make([]slotRequest, cfg.Slots+maxQueued)}
	s.Clear(nil)
	return s, nil
}

func (s *Slots) hasher(salt kv.Salt) kv.Hasher {
	h, err := kv.NewHasher(s.cfg.BlockSize, salt)
	if err != nil {
		panic("shadow: NewSlots took a block size that is none")
	}
	return h
}

// StartRequest records that the engine gets a request, and appends the changes to out. It does not track
// requests which exceed the slots by more than maxQueued, or which are larger than a slot.
func (s *Slots) Begin(r *Request, out []kv.Event) (Begun, []kv.Event) {
	if len(r.Tokens) == 0 || len(r.Tokens) > s.cfg.Context {
		return Begun{Slot: -1}, out
	}
	at, reuse := -1, 0
	if s.unplaced == 0 {
		at, reuse = s.pick(r)
	}
	begun := Begun{Slot: at, Mixed: s.mixed(at, r.Salt)}
	index := s.account()
	if index < 0 {
		s.strays.add(r.Salt)
		return begun, out // at is -1: there are more requests than slots
	}
	q := &s.requests[index]
	q.restart(s.hasher(r.Salt), r.Salt)
	q.media = append(q.media, r.Media...)
	q.grow(r.Tokens)
	q.serial = max(q.serial+1, 1)
	q.open, q.slot, q.computed = true, -1, false
	s.unplaced++
	begun.Ticket = ticket(index, q.serial)
	if at >= 0 {
		// The last token is always computed: the next token is sampled from its logits.
		begun.Cached = min(reuse, len(r.Tokens)-1)
		out = s.occupy(index, at, out)
	}
	return begun, out
}

// pickSlot returns the slot which the engine would choose now, -1 if none is idle, and the number of the
// request's tokens which it holds.
func (s *Slots) pick(r *Request) (at, reuse int) {
	at = -1
	oldest, threshold := -1, s.cfg.Similarity*float64(len(r.Tokens))
	for i := range s.slots {
		c := &s.slots[i]
		if c.request >= 0 {
			continue
		}
		if n := c.begins(r); n > reuse && float64(n) > threshold {
			at, reuse = i, n
		}
		// Among slots which were never used the engine takes the last.
		if oldest < 0 || c.used <= s.slots[oldest].used {
			oldest = i
		}
	}
	if at < 0 && oldest >= 0 {
		at, reuse = oldest, s.slots[oldest].begins(r)
	}
	return at, reuse
}

// mayMixSalts reports whether a request under salt may reuse a sequence of another salt.
func (s *Slots) mixed(at int, salt kv.Salt) bool {
	if s.strays.foreign(salt) {
		return true
	}
	if at >= 0 {
		return s.slots[at].owners.foreign(salt)
	}
	for i := range s.slots {
		if s.slots[i].owners.foreign(salt) {
			return true
		}
	}
	for i := range s.requests {
		if q := &s.requests[i]; q.open && q.foreign(salt) {
			return true
		}
	}
	return false
}

// allocateRequest returns the index of an unused request, or -1.
func (s *Slots) account() int {
	for i := range s.requests {
		if !s.requests[i].open {
			return i
		}
	}
	return -1
}

// findRequest returns the index of t's request.
func (s *Slots) find(t Ticket) (index int, ok bool) {
	index, serial, ok := t.open(len(s.requests))
	return index, ok && s.requests[index].open && s.requests[index].serial == serial
}

// occupySlot gives an idle slot to a request: its contents serve no other request now.
func (s *Slots) occupy(index, at int, out []kv.Event) []kv.Event {
	out = s.hide(at, out)
	s.slots[at].request, s.requests[index].slot = index, at
	s.unplaced--
	return out
}

// releaseSlot takes a request off its slot, which keeps its contents.
func (s *Slots) leave(index int, out []kv.Event) []kv.Event {
	at := s.requests[index].slot
	s.slots[at].request, s.requests[index].slot = -1, -1
	s.unplaced++
	return s.show(at, out)
}

// ReportSlot records the slot in which the engine says it runs the request. A request which was predicted
// to be there loses its slot.
func (s *Slots) Placed(t Ticket, at int, out []kv.Event) []kv.Event {
	index, ok := s.find(t)
	if !ok || s.requests[index].slot == at || at < 0 || at >= len(s.slots) {
		return out
	}
	if s.requests[index].slot >= 0 {
		out = s.leave(index, out)
	}
	if other := s.slots[at].request; other >= 0 {
		out = s.leave(other, out)
	}
	return s.occupy(index, at, out)
}

// placeRequest predicts a slot for a request which the engine computes without reporting one.
func (s *Slots) settle(index int, out []kv.Event) []kv.Event {
	q := &s.requests[index]
	if q.slot >= 0 {
		return out
	}
	if at, _ := s.pick(&Request{Salt: q.salt, Tokens: q.tokens, Media: q.media}); at >= 0 {
		out = s.occupy(index, at, out)
	}
	return out
}

// ReportCached does nothing here: when the request is computed, its slot holds exactly that request,
// whatever it held before.
func (s *Slots) Report(_ Ticket, _ int, out []kv.Event) []kv.Event { return out }

// AppendTokens records that the request generated tokens, so its prompt is computed.
func (s *Slots) Grow(t Ticket, tokens []kv.Token, out []kv.Event) []kv.Event {
	index, ok := s.find(t)
	if !ok {
		return out
	}
	out = s.settle(index, out)
	q := &s.requests[index]
	q.computed = true
	// At the end of the context the engine stops, or drops tokens from the middle: no more is known in
	// either case.
	q.grow(tokens[:min(len(tokens), s.cfg.Context-len(q.tokens))])
	return out
}

// FinishRequest records that the request was served.
func (s *Slots) End(t Ticket, out []kv.Event) []kv.Event {
	index, ok := s.find(t)
	if !ok {
		return out
	}
	s.requests[index].computed = true
	return s.end(index, s.settle(index, out))
}

// AbortRequest records that the request ended early. If its prompt was not computed, the slot keeps only
// what it shared with the request before.
func (s *Slots) Abort(t Ticket, out []kv.Event) []kv.Event {
	index, ok := s.find(t)
	if !ok {
		return out
	}
	return s.end(index, out)
}

func (s *Slots) end(index int, out []kv.Event) []kv.Event {
	q := &s.requests[index]
	if q.slot >= 0 {
		c := &s.slots[q.slot]
		if q.computed {
			c.chain, q.chain = q.chain, c.chain // each reuses the other's memory
			c.cut(len(c.tokens) - 1)            // the last token was sampled and not computed
			c.owners = owners{c.salt, 1}
		} else {
			c.owners.add(q.salt) // the engine may have computed it all the same
			c.cut(c.begins(&Request{Salt: q.salt, Tokens: q.tokens, Media: q.media}))
		}
		s.released++
		c.used = s.released
		out = s.leave(index, out)
	} else {
		for i := range s.slots {
			s.slots[i].owners.add(q.salt)
		}
	}
	q.open = false
	s.unplaced--
	return out
}

// Clear records that the engine's cache is empty, because the engine was restarted or reset. All tickets
// end.
func (s *Slots) Clear(out []kv.Event) []kv.Event {
	for i := range s.requests {
		s.requests[i].open = false
	}
	for i := range s.slots {
		s.slots[i].request, s.slots[i].used, s.slots[i].owners = -1, 0, owners{}
		s.slots[i].restart(s.hasher(kv.Salt{}), kv.Salt{})
	}
	s.unplaced, s.strays = 0, owners{}
	return append(out, kv.Event{Kind: kv.Cleared})
}

// announceSlot appends the contents of a slot which became idle, except what another idle slot holds.
func (s *Slots) show(at int, out []kv.Event) []kv.Event {
	c := &s.slots[at].chain
	return s.stored(c, s.shared(at, len(s.slots)), out)
}

// withdrawSlot appends a Removed event for the contents of an idle slot, except what another idle slot
// holds.
func (s *Slots) hide(at int, out []kv.Event) []kv.Event {
	c := &s.slots[at].chain
	if n := s.shared(at, len(s.slots)); n < len(c.seqs) {
		out = append(out, kv.Event{Kind: kv.Removed, Seqs: s.seqs.copyOf(c.seqs[n:])})
	}
	return out
}

// sharedBlocks returns the number of leading blocks of a slot which an idle slot among the first `among`
// slots holds.
func (s *Slots) shared(at, among int) int {
	most := 0
	for i := range among {
		if c := &s.slots[i]; i != at && c.request < 0 {
			most = max(most, sameSeqs(c.seqs, s.slots[at].seqs))
		}
	}
	return most
}

// appendStored appends an event for the blocks of c from index start on.
func (s *Slots) stored(c *chain, start int, out []kv.Event) []kv.Event {
	if start >= len(c.blocks) {
		return out
	}
	e := kv.Event{Kind: kv.Stored, Start: uint32(start), Blocks: s.blocks.copyOf(c.blocks[start:])}
	if start > 0 {
		e.Parent = c.seqs[start-1]
	}
	return append(out, e)
}

// Describe appends a Cleared event and Stored events for the whole predicted cache.
func (s *Slots) Describe(out []kv.Event) []kv.Event {
	out = append(out, kv.Event{Kind: kv.Cleared})
	for i := range s.slots {
		if c := &s.slots[i]; c.request < 0 {
			out = s.stored(&c.chain, s.shared(i, i), out)
		}
	}
	return out
}

// Len returns the number of distinct blocks predicted to be cached.
func (s *Slots) Len() int {
	n := 0
	for i := range s.slots {
		if c := &s.slots[i]; c.request < 0 {
			n += len(c.blocks) - s.shared(i, i)
		}
	}
	return n
}

// Check verifies the model's invariants.
func (s *Slots) Check() error {
	unplaced := 0
	for i := range s.requests {
		q := &s.requests[i]
		switch {
		case !q.open:
		case q.slot < 0:
			unplaced++
		case s.slots[q.slot].request != i:
			return fmt.Errorf("shadow: request %d is in slot %d, which has request %d", i, q.slot, s.slots[q.slot].request)
		}
	}
	if unplaced != s.unplaced {
		return fmt.Errorf("shadow: %d requests have no slot, and %d are counted", unplaced, s.unplaced)
	}
	for i := range s.slots {
		c := &s.slots[i]
		if c.request >= 0 && (!s.requests[c.request].open || s.requests[c.request].slot != i) {
			return fmt.Errorf("shadow: slot %d has request %d, which is not there", i, c.request)
		}
		if err := c.check(); err != nil {
			return fmt.Errorf("shadow: slot %d: %w", i, err)
		}
	}
	return nil
}
