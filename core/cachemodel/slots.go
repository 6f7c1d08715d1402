package cachemodel

import (
	"cmp"
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
type SlotConfig struct {
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
type SlotModel struct {
	cfg       SlotConfig
	slots     []slotState
	requests  []slotRequest
	unplaced  int     // open requests whose slot is unknown
	untracked saltSet // salts of untracked requests, which may have run in any slot
	released  uint64  // how often a slot became idle
	seqs      sliceArena[kv.SeqHash]
	blocks    sliceArena[kv.BlockHash]
}

type slotState struct {
	tokenChain
	owners    saltSet // salts which the engine may have in it
	request   int     // index in requests; -1 if it is idle
	idleSince uint64  // released when it last became idle; 0 is never
}

// saltSet holds the salts of the sequences which a slot may hold. A computed request has one salt. Each request
// which ended before it was known whether it was computed adds another.
type saltSet struct {
	salt kv.Salt
	n    int // 0, 1, or 2 for several (salt is one of them)
}

func (o *saltSet) addSalt(salt kv.Salt) {
	switch {
	case o.n == 0:
		*o = saltSet{salt, 1}
	case o.salt != salt:
		o.n = 2
	}
}

// hasOtherSalt reports whether there may be a sequence which a request under salt must not reuse.
func (o *saltSet) hasOtherSalt(salt kv.Salt) bool { return o.n > 1 || o.n == 1 && o.salt != salt }

// slotRequest tracks a request. Its sequence becomes the slot's when it ends: until then the engine may
// report another slot, and no other request can reuse it.
type slotRequest struct {
	tokenChain
	serial   uint32
	open     bool
	slot     int  // -1 if unknown
	computed bool // the prompt is computed
}

// NewSlotModel returns the model of an engine with empty slots.
func NewSlotModel(cfg SlotConfig) (*SlotModel, error) {
	cfg.Similarity = cmp.Or(cfg.Similarity, 0.1)
	_, err := kv.NewHasher(cfg.BlockSize, kv.Salt{})
	switch {
	case err != nil:
		return nil, err
	case cfg.Slots < 1 || cfg.Slots > maxSlots:
		return nil, fmt.Errorf("cachemodel: slots must be between 1 and %d, not %d", maxSlots, cfg.Slots)
	case cfg.Context < 1 || cfg.Context > maxContext:
		return nil, fmt.Errorf("cachemodel: the context must be between 1 and %d tokens, not %d", maxContext, cfg.Context)
	case !(cfg.Similarity >= 0 && cfg.Similarity <= 1):
		return nil, errors.New("cachemodel: the similarity must be between 0 and 1")
	}
	s := &SlotModel{cfg: cfg, slots: make([]slotState, cfg.Slots), requests: make([]slotRequest, cfg.Slots+maxQueued)}
	s.Clear(nil)
	return s, nil
}

func (s *SlotModel) newHasher(salt kv.Salt) kv.Hasher {
	h, err := kv.NewHasher(s.cfg.BlockSize, salt)
	if err != nil {
		panic("cachemodel: NewSlotModel accepted a block size which no hasher takes")
	}
	return h
}

// StartRequest records that the engine gets a request, and appends the changes to out. It does not track
// requests which exceed the slots by more than maxQueued, or which are larger than a slot.
func (s *SlotModel) StartRequest(r *EngineRequest, out []kv.Event) (Prediction, []kv.Event) {
	if len(r.Tokens) == 0 || len(r.Tokens) > s.cfg.Context {
		return Prediction{Slot: -1}, out
	}
	at, reuse := -1, 0
	if s.unplaced == 0 {
		at, reuse = s.pickSlot(r)
	}
	begun := Prediction{Slot: at, MixesSalts: s.mayMixSalts(at, r.Salt)}
	index := s.allocateRequest()
	if index < 0 {
		s.untracked.addSalt(r.Salt)
		return begun, out // at is -1: there are more requests than slots
	}
	q := &s.requests[index]
	q.reset(s.newHasher(r.Salt), r.Salt)
	q.media = append(q.media, r.Media...)
	q.appendTokens(r.Tokens)
	q.serial = max(q.serial+1, 1)
	q.open, q.slot, q.computed = true, -1, false
	s.unplaced++
	begun.Ticket = newTicket(index, q.serial)
	if at >= 0 {
		// The last token is always computed: the next token is sampled from its logits.
		begun.Cached = min(reuse, len(r.Tokens)-1)
		out = s.occupySlot(index, at, out)
	}
	return begun, out
}

// pickSlot returns the slot which the engine would choose now, -1 if none is idle, and the number of the
// request's tokens which it holds.
func (s *SlotModel) pickSlot(r *EngineRequest) (at, reuse int) {
	at = -1
	oldest, threshold := -1, s.cfg.Similarity*float64(len(r.Tokens))
	for i := range s.slots {
		c := &s.slots[i]
		if c.request >= 0 {
			continue
		}
		if n := c.commonPrefix(r); n > reuse && float64(n) > threshold {
			at, reuse = i, n
		}
		// Among slots which were never used the engine takes the last.
		if oldest < 0 || c.idleSince <= s.slots[oldest].idleSince {
			oldest = i
		}
	}
	if at < 0 && oldest >= 0 {
		at, reuse = oldest, s.slots[oldest].commonPrefix(r)
	}
	return at, reuse
}

// mayMixSalts reports whether a request under salt may reuse a sequence of another salt.
func (s *SlotModel) mayMixSalts(at int, salt kv.Salt) bool {
	if s.untracked.hasOtherSalt(salt) {
		return true
	}
	if at >= 0 {
		return s.slots[at].owners.hasOtherSalt(salt)
	}
	for i := range s.slots {
		if s.slots[i].owners.hasOtherSalt(salt) {
			return true
		}
	}
	for i := range s.requests {
		if q := &s.requests[i]; q.open && q.hasOtherSalt(salt) {
			return true
		}
	}
	return false
}

// allocateRequest returns the index of an unused request, or -1.
func (s *SlotModel) allocateRequest() int {
	for i := range s.requests {
		if !s.requests[i].open {
			return i
		}
	}
	return -1
}

// findRequest returns the index of t's request.
func (s *SlotModel) findRequest(t Ticket) (index int, ok bool) {
	index, serial, ok := t.unpack(len(s.requests))
	return index, ok && s.requests[index].open && s.requests[index].serial == serial
}

// occupySlot gives an idle slot to a request: its contents serve no other request now.
func (s *SlotModel) occupySlot(index, at int, out []kv.Event) []kv.Event {
	out = s.withdrawSlot(at, out)
	s.slots[at].request, s.requests[index].slot = index, at
	s.unplaced--
	return out
}

// releaseSlot takes a request off its slot, which keeps its contents.
func (s *SlotModel) releaseSlot(index int, out []kv.Event) []kv.Event {
	at := s.requests[index].slot
	s.slots[at].request, s.requests[index].slot = -1, -1
	s.unplaced++
	return s.announceSlot(at, out)
}

// ReportSlot records the slot in which the engine says it runs the request. A request which was predicted
// to be there loses its slot.
func (s *SlotModel) ReportSlot(t Ticket, at int, out []kv.Event) []kv.Event {
	index, ok := s.findRequest(t)
	if !ok || s.requests[index].slot == at || at < 0 || at >= len(s.slots) {
		return out
	}
	if s.requests[index].slot >= 0 {
		out = s.releaseSlot(index, out)
	}
	if other := s.slots[at].request; other >= 0 {
		out = s.releaseSlot(other, out)
	}
	return s.occupySlot(index, at, out)
}

// placeRequest predicts a slot for a request which the engine computes without reporting one.
func (s *SlotModel) placeRequest(index int, out []kv.Event) []kv.Event {
	q := &s.requests[index]
	if q.slot >= 0 {
		return out
	}
	if at, _ := s.pickSlot(&EngineRequest{Salt: q.salt, Tokens: q.tokens, Media: q.media}); at >= 0 {
		out = s.occupySlot(index, at, out)
	}
	return out
}

// ReportCached does nothing here: when the request is computed, its slot holds exactly that request,
// whatever it held before.
func (s *SlotModel) ReportCached(_ Ticket, _ int, out []kv.Event) []kv.Event { return out }

// AppendTokens records that the request generated tokens, so its prompt is computed.
func (s *SlotModel) AppendTokens(t Ticket, tokens []kv.Token, out []kv.Event) []kv.Event {
	index, ok := s.findRequest(t)
	if !ok {
		return out
	}
	out = s.placeRequest(index, out)
	q := &s.requests[index]
	q.computed = true
	// At the end of the context the engine stops, or drops tokens from the middle: no more is known in
	// either case.
	q.appendTokens(tokens[:min(len(tokens), s.cfg.Context-len(q.tokens))])
	return out
}

// FinishRequest records that the request was served.
func (s *SlotModel) FinishRequest(t Ticket, out []kv.Event) []kv.Event {
	index, ok := s.findRequest(t)
	if !ok {
		return out
	}
	s.requests[index].computed = true
	return s.releaseRequest(index, s.placeRequest(index, out))
}

// AbortRequest records that the request ended early. If its prompt was not computed, the slot keeps only
// what it shared with the request before.
func (s *SlotModel) AbortRequest(t Ticket, out []kv.Event) []kv.Event {
	index, ok := s.findRequest(t)
	if !ok {
		return out
	}
	return s.releaseRequest(index, out)
}

func (s *SlotModel) releaseRequest(index int, out []kv.Event) []kv.Event {
	q := &s.requests[index]
	if q.slot >= 0 {
		c := &s.slots[q.slot]
		if q.computed {
			c.tokenChain, q.tokenChain = q.tokenChain, c.tokenChain // each reuses the other's memory
			c.truncate(len(c.tokens) - 1)                           // the last token was sampled and not computed
			c.owners = saltSet{c.salt, 1}
		} else {
			c.owners.addSalt(q.salt) // the engine may have computed it all the same
			c.truncate(c.commonPrefix(&EngineRequest{Salt: q.salt, Tokens: q.tokens, Media: q.media}))
		}
		s.released++
		c.idleSince = s.released
		out = s.releaseSlot(index, out)
	} else {
		for i := range s.slots {
			s.slots[i].owners.addSalt(q.salt)
		}
	}
	q.open = false
	s.unplaced--
	return out
}

// Clear records that the engine's cache is empty, because the engine was restarted or reset. All tickets
// end.
func (s *SlotModel) Clear(out []kv.Event) []kv.Event {
	for i := range s.requests {
		s.requests[i].open = false
	}
	for i := range s.slots {
		s.slots[i].request, s.slots[i].idleSince, s.slots[i].owners = -1, 0, saltSet{}
		s.slots[i].reset(s.newHasher(kv.Salt{}), kv.Salt{})
	}
	s.unplaced, s.untracked = 0, saltSet{}
	return append(out, kv.Event{Kind: kv.Cleared})
}

// announceSlot appends the contents of a slot which became idle, except what another idle slot holds.
func (s *SlotModel) announceSlot(at int, out []kv.Event) []kv.Event {
	c := &s.slots[at].tokenChain
	return s.appendStored(c, s.sharedBlocks(at, len(s.slots)), out)
}

// withdrawSlot appends a Removed event for the contents of an idle slot, except what another idle slot
// holds.
func (s *SlotModel) withdrawSlot(at int, out []kv.Event) []kv.Event {
	c := &s.slots[at].tokenChain
	if n := s.sharedBlocks(at, len(s.slots)); n < len(c.seqs) {
		out = append(out, kv.Event{Kind: kv.Removed, Seqs: s.seqs.copyOf(c.seqs[n:])})
	}
	return out
}

// sharedBlocks returns the number of leading blocks of a slot which an idle slot among the first `among`
// slots holds.
func (s *SlotModel) sharedBlocks(at, among int) int {
	most := 0
	for i := range among {
		if c := &s.slots[i]; i != at && c.request < 0 {
			most = max(most, commonSeqs(c.seqs, s.slots[at].seqs))
		}
	}
	return most
}

// appendStored appends an event for the blocks of c from index start on.
func (s *SlotModel) appendStored(c *tokenChain, start int, out []kv.Event) []kv.Event {
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
func (s *SlotModel) Describe(out []kv.Event) []kv.Event {
	out = append(out, kv.Event{Kind: kv.Cleared})
	for i := range s.slots {
		if c := &s.slots[i]; c.request < 0 {
			out = s.appendStored(&c.tokenChain, s.sharedBlocks(i, i), out)
		}
	}
	return out
}

// Len returns the number of distinct blocks predicted to be cached.
func (s *SlotModel) Len() int {
	n := 0
	for i := range s.slots {
		if c := &s.slots[i]; c.request < 0 {
			n += len(c.blocks) - s.sharedBlocks(i, i)
		}
	}
	return n
}

// Check verifies the model's invariants.
func (s *SlotModel) Check() error {
	unplaced := 0
	for i := range s.requests {
		q := &s.requests[i]
		switch {
		case !q.open:
		case q.slot < 0:
			unplaced++
		case s.slots[q.slot].request != i:
			return fmt.Errorf("cachemodel: request %d is in slot %d, which has request %d", i, q.slot, s.slots[q.slot].request)
		}
	}
	if unplaced != s.unplaced {
		return fmt.Errorf("cachemodel: %d requests have no slot, and %d are counted", unplaced, s.unplaced)
	}
	for i := range s.slots {
		c := &s.slots[i]
		if c.request >= 0 && (!s.requests[c.request].open || s.requests[c.request].slot != i) {
			return fmt.Errorf("cachemodel: slot %d has request %d, which is not there", i, c.request)
		}
		if err := c.checkBlocks(); err != nil {
			return fmt.Errorf("cachemodel: slot %d: %w", i, err)
		}
	}
	return nil
}
