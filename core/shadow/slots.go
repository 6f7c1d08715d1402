package shadow

import (
	"errors"
	"fmt"

	"penstock/core/kv"
)

// The bounds of a SlotsConfig.
const (
	maxSlots   = 1024
	maxContext = 1 << 24
	maxQueued  = 64 // requests beyond the slots of which account is kept
)

// SlotsConfig describes an engine that keeps one sequence in each of its slots.
type SlotsConfig struct {
	// BlockSize is how many tokens a block of the events has, as the model card says. The
	// engine itself compares single tokens.
	BlockSize int
	// Slots is how many requests the engine serves at once.
	Slots int
	// Context is how many tokens a slot has room for.
	Context int
	// Similarity is the share of a request's tokens, above which a slot that begins with
	// them is taken for it. 0 is llama.cpp's default of a tenth.
	Similarity float64
}

// Slots is the model of an engine of which every slot holds the sequence that it computed
// last: llama.cpp. A request is given the idle slot that has most of its beginning, if
// that is more than a tenth of it, else the one that was idle longest; what the slot
// had beyond the common beginning is lost. A slot that computes serves nobody else, so
// what it holds is reported when it is idle.
type Slots struct {
	cfg      SlotsConfig
	slots    []slot
	requests []slotRequest
	unplaced int    // open requests of which the slot is unknown
	strays   owners // of requests without an account, which may have run in any slot
	released uint64 // how often a slot became idle
	seqs     names[kv.SeqHash]
	blocks   names[kv.BlockHash]
}

type slot struct {
	chain
	owners  owners // of what the engine may have in it
	request int    // of requests; -1 if it is idle
	used    uint64 // when it became idle last, as Slots.released has it; 0 is never
}

// owners are the salts under which there may be a sequence: that of a request which was computed,
// and those of requests which ended before it was known whether they were.
type owners struct {
	salt kv.Salt
	n    int // 0, 1, or 2 for several, of which salt is one
}

func (o *owners) add(salt kv.Salt) {
	switch {
	case o.n == 0:
		*o = owners{salt, 1}
	case o.salt != salt:
		o.n = 2
	}
}

// foreign reports whether there may be a sequence which a request under salt must not meet.
func (o *owners) foreign(salt kv.Salt) bool { return o.n > 1 || o.n == 1 && o.salt != salt }

// slotRequest is the account of a request. Its sequence becomes that of the slot at its end:
// until then the engine may say that it runs elsewhere, and nobody else is served from it.
type slotRequest struct {
	chain
	serial   uint32
	open     bool
	slot     int  // -1 if unknown
	computed bool // the prompt is
}

// NewSlots returns the model of an engine with empty slots.
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

// Begin says that the engine gets a request, and appends to out what changes. Requests
// that are far more than the slots, and those that no slot has room for, have no account.
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
		// The last token is always computed: the next is drawn from what comes of it.
		begun.Cached = min(reuse, len(r.Tokens)-1)
		out = s.occupy(index, at, out)
	}
	return begun, out
}

// pick returns the slot that the engine would take now, -1 if none is idle, and how many
// of the request's tokens it has.
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
		// Of those that were never used the engine takes the last.
		if oldest < 0 || c.used <= s.slots[oldest].used {
			oldest = i
		}
	}
	if at < 0 && oldest >= 0 {
		at, reuse = oldest, s.slots[oldest].begins(r)
	}
	return at, reuse
}

// mixed reports whether a request under salt may meet a sequence of another one.
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

// account returns the place of an account that nobody has, or -1.
func (s *Slots) account() int {
	for i := range s.requests {
		if !s.requests[i].open {
			return i
		}
	}
	return -1
}

// find returns the place of the account of t.
func (s *Slots) find(t Ticket) (index int, ok bool) {
	index, serial, ok := t.open(len(s.requests))
	return index, ok && s.requests[index].open && s.requests[index].serial == serial
}

// occupy has a request take an idle slot: what is in it serves nobody else now.
func (s *Slots) occupy(index, at int, out []kv.Event) []kv.Event {
	out = s.hide(at, out)
	s.slots[at].request, s.requests[index].slot = index, at
	s.unplaced--
	return out
}

// leave has a request leave its slot, which is then as it is.
func (s *Slots) leave(index int, out []kv.Event) []kv.Event {
	at := s.requests[index].slot
	s.slots[at].request, s.requests[index].slot = -1, -1
	s.unplaced++
	return s.show(at, out)
}

// Placed says that the engine runs the request in slot at: its own word. A request that was
// believed there is somewhere else.
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

// settle finds a slot for a request that the engine computes without saying where.
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

// Report says that of the request's tokens the engine had so many cached. It changes nothing
// here: when the request is computed, its slot has it and nothing else, whatever was there.
func (s *Slots) Report(_ Ticket, _ int, out []kv.Event) []kv.Event { return out }

// Grow says that the request generated tokens; so its prompt is computed.
func (s *Slots) Grow(t Ticket, tokens []kv.Token, out []kv.Event) []kv.Event {
	index, ok := s.find(t)
	if !ok {
		return out
	}
	out = s.settle(index, out)
	q := &s.requests[index]
	q.computed = true
	// At the end of the context the engine stops, or drops tokens from the middle: in both
	// cases no more is known.
	q.grow(tokens[:min(len(tokens), s.cfg.Context-len(q.tokens))])
	return out
}

// End says that the request is served.
func (s *Slots) End(t Ticket, out []kv.Event) []kv.Event {
	index, ok := s.find(t)
	if !ok {
		return out
	}
	s.requests[index].computed = true
	return s.end(index, s.settle(index, out))
}

// Abort says that the request ended before it was served. Of a prompt that was not computed
// its slot has what it had before: more is not believed.
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
			c.chain, q.chain = q.chain, c.chain // each goes on with the other's memory
			c.cut(len(c.tokens) - 1)            // the last token was drawn and not computed
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

// Clear says that the engine has nothing cached: it was restarted, or told to forget. All
// tickets end.
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

// show reports what a slot that became idle has, as far as no other idle one has it.
func (s *Slots) show(at int, out []kv.Event) []kv.Event {
	c := &s.slots[at].chain
	return s.stored(c, s.shared(at, len(s.slots)), out)
}

// hide reports that what an idle slot has cannot be had any more, as far as no other idle one has it.
func (s *Slots) hide(at int, out []kv.Event) []kv.Event {
	c := &s.slots[at].chain
	if n := s.shared(at, len(s.slots)); n < len(c.seqs) {
		out = append(out, kv.Event{Kind: kv.Removed, Seqs: s.seqs.copyOf(c.seqs[n:])})
	}
	return out
}

// shared returns how many leading blocks of a slot idle ones among the first so many have.
func (s *Slots) shared(at, among int) int {
	most := 0
	for i := range among {
		if c := &s.slots[i]; i != at && c.request < 0 {
			most = max(most, sameSeqs(c.seqs, s.slots[at].seqs))
		}
	}
	return most
}

// stored reports the blocks of c from the one at start on.
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

// Describe appends a Cleared event and Stored events of all that is believed to be cached.
func (s *Slots) Describe(out []kv.Event) []kv.Event {
	out = append(out, kv.Event{Kind: kv.Cleared})
	for i := range s.slots {
		if c := &s.slots[i]; c.request < 0 {
			out = s.stored(&c.chain, s.shared(i, i), out)
		}
	}
	return out
}

// Len returns how many different blocks are believed to be cached.
func (s *Slots) Len() int {
	n := 0
	for i := range s.slots {
		if c := &s.slots[i]; c.request < 0 {
			n += len(c.blocks) - s.shared(i, i)
		}
	}
	return n
}

// Check returns what is wrong with the account, nil if nothing is.
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
