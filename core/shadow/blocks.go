package shadow

import (
	"fmt"

	"penstock/core/kv"
)

// The bounds of a BlocksConfig.
const (
	maxCapacity = 1 << 26
	maxRequests = 1 << 16
)

// BlocksConfig describes an engine that keeps blocks which sequences share.
type BlocksConfig struct {
	// BlockSize is how many tokens a block has.
	BlockSize int
	// Capacity is how many blocks the engine has room for, those of running requests included.
	Capacity int
	// Requests bounds the running requests of which account is kept; 0 is 4,096.
	Requests int
}

// Blocks is the model of an engine whose sequences share blocks: vLLM and those like it. A
// request uses the blocks of its beginning that are there, and leaves those that it
// computes. Blocks that no running request uses leave when room is needed: those first that
// were used longest ago, of one request the last of its sequence first.
//
// So a block is never there without those before it.
type Blocks struct {
	cfg BlocksConfig
	// at finds blocks that begin sequences, and those that have had siblings. The others are found
	// as the only child of the block before, which costs no map; see node.named.
	at map[kv.SeqHash]int32
	// nodes[0] is no block: its children are the blocks that begin sequences, its next is the
	// idle block that was used longest ago, its prev the one that was idle last.
	nodes    []node
	free     int32  // unused nodes, by next; 0 is none
	clock    uint64 // counts beginnings and ends
	live     int    // blocks
	requests []blocksRequest
	idle     []int32 // accounts that nobody has
	gone     []kv.SeqHash
	seqs     names[kv.SeqHash]
	blocks   names[kv.BlockHash]
}

// node is a block.
type node struct {
	seq   kv.SeqHash
	block kv.BlockHash
	index uint32 // in its sequence
	users int32  // running requests
	named bool   // it is in Blocks.at
	// parent has child as its first child; before and after are the others of it. 0 is none.
	parent, child, before, after int32
	prev, next                   int32  // among idle blocks, if it has no users
	left                         uint64 // when its last user left, as Blocks.clock has it
}

// blocksRequest is the account of a request.
type blocksRequest struct {
	serial uint32
	began  uint64
	open   bool
	full   bool // there was no room: what it goes on with is not cached
	tip    int32
	depth  int // blocks up to tip
	// found is how many tokens the engine was believed to have.
	found  int
	hasher kv.Hasher
	media  []kv.Media
	// waiting are the names of the blocks after tip that will be there when the prompt is computed.
	waiting []kv.BlockHash
	// tail are the tokens after the last whole block.
	tail []kv.Token
}

// NewBlocks returns the model of an engine with an empty cache.
func NewBlocks(cfg BlocksConfig) (*Blocks, error) {
	if cfg.Requests == 0 {
		cfg.Requests = 4096
	}
	_, err := kv.NewHasher(cfg.BlockSize, kv.Salt{})
	switch {
	case err != nil:
		return nil, err
	case cfg.Capacity < 1 || cfg.Capacity > maxCapacity:
		return nil, fmt.Errorf("shadow: the capacity must be between 1 and %d blocks, not %d", maxCapacity, cfg.Capacity)
	case cfg.Requests < 1 || cfg.Requests > maxRequests:
		return nil, fmt.Errorf("shadow: requests must be between 1 and %d, not %d", maxRequests, cfg.Requests)
	}
	b := &Blocks{cfg: cfg}
	b.Clear(nil)
	return b, nil
}

// Begin says that the engine gets a request. It appends nothing to out as yet: blocks
// leave, and new ones are there, when the prompt is computed.
func (b *Blocks) Begin(r *Request, out []kv.Event) (Begun, []kv.Event) {
	begun := Begun{Slot: -1}
	if len(r.Tokens) == 0 {
		return begun, out
	}
	hasher, err := kv.NewHasher(b.cfg.BlockSize, r.Salt)
	if err != nil {
		panic("shadow: NewBlocks took a block size that is none")
	}
	index, ok := b.account()
	if !ok {
		return begun, out
	}
	q := &b.requests[index]
	q.serial = max(q.serial+1, 1)
	b.clock++
	q.began = b.clock
	q.open, q.full, q.tip, q.depth = true, false, 0, 0
	q.hasher, q.media = hasher, append(q.media[:0], r.Media...)
	q.waiting = hasher.Blocks(q.waiting[:0], r.Tokens, r.Media)
	q.tail = append(q.tail[:0], r.Tokens[len(q.waiting)*b.cfg.BlockSize:]...)
	b.follow(q, len(q.waiting))
	// The last token is always computed, and with it the block that it is in.
	q.found = min(q.depth, (len(r.Tokens)-1)/b.cfg.BlockSize) * b.cfg.BlockSize
	begun.Ticket, begun.Cached = ticket(index, q.serial), q.found
	return begun, out
}

// account returns the place of an account that nobody has.
func (b *Blocks) account() (index int, ok bool) {
	if n := len(b.idle); n > 0 {
		index = int(b.idle[n-1])
		b.idle = b.idle[:n-1]
		return index, true
	}
	if len(b.requests) >= b.cfg.Requests {
		return 0, false
	}
	b.requests = append(b.requests, blocksRequest{})
	return len(b.requests) - 1, true
}

func (b *Blocks) find(t Ticket) (index int, ok bool) {
	index, serial, ok := t.open(len(b.requests))
	return index, ok && b.requests[index].open && b.requests[index].serial == serial
}

// follow has the request use the first blocks that it waits for, as far as they are there
// and at most so many, and returns how many it uses now.
func (b *Blocks) follow(q *blocksRequest, most int) int {
	n := 0
	for n < most {
		at := b.next(q, q.waiting[n])
		if at == 0 {
			break
		}
		b.use(at)
		q.tip = at
		q.depth++
		n++
	}
	q.waiting = append(q.waiting[:0], q.waiting[n:]...)
	return n
}

// next returns the block that comes after those which the request uses, 0 if it is not there. Mostly
// it is the only child: to look there is a step to the memory beside, and to find it by its name one
// to anywhere.
func (b *Blocks) next(q *blocksRequest, block kv.BlockHash) int32 {
	switch child := b.nodes[q.tip].child; {
	case child == 0:
		return 0
	case b.nodes[child].block == block:
		return child
	case !b.nodes[child].named:
		return 0
	}
	return b.at[kv.Extend(b.nodes[q.tip].seq, uint32(q.depth), block)]
}

// store has the first n blocks that the request waits for be there.
func (b *Blocks) store(q *blocksRequest, n int, out []kv.Event) []kv.Event {
	if q.full {
		return out
	}
	n = min(n, len(q.waiting))
	if n -= b.follow(q, n); n <= 0 {
		return out
	}
	e := kv.Event{Kind: kv.Stored, Start: uint32(q.depth)}
	if q.tip != 0 {
		e.Parent = b.nodes[q.tip].seq
	}
	b.gone = b.gone[:0]
	stored := 0
	for _, block := range q.waiting[:n] {
		at := b.make()
		if at == 0 {
			q.full = true
			break
		}
		b.attach(at, q.tip, block, uint32(q.depth))
		q.tip = at
		q.depth++
		stored++
	}
	out = b.removed(out)
	if stored > 0 {
		e.Blocks = b.blocks.copyOf(q.waiting[:stored])
		out = append(out, e)
	}
	q.waiting = append(q.waiting[:0], q.waiting[n:]...)
	return out
}

// Report says that of the request's tokens the engine had so many cached, [Unknown] if it
// does not say. If those are more than were believed, they are there. If they are fewer,
// what follows them is there by this request and later ones alone: what earlier sequences had
// beyond is not believed any more.
func (b *Blocks) Report(t Ticket, cached int, out []kv.Event) []kv.Event {
	index, ok := b.find(t)
	if !ok || cached < 0 {
		return out
	}
	q := &b.requests[index]
	blocks := cached / b.cfg.BlockSize
	if cached >= q.found {
		return b.store(q, blocks-q.depth, out)
	}
	first := b.ancestor(q, blocks)
	q.found = cached
	b.gone = b.gone[:0]
	b.drop(first, q.began)
	return b.removed(out)
}

// ancestor returns the block of the request's sequence at index.
func (b *Blocks) ancestor(q *blocksRequest, index int) int32 {
	at := q.tip
	for range q.depth - 1 - index {
		at = b.nodes[at].parent
	}
	return at
}

// Grow says that the request generated tokens; so its prompt is computed. What is there by
// one call, of the prompt too, is one event.
func (b *Blocks) Grow(t Ticket, tokens []kv.Token, out []kv.Event) []kv.Event {
	index, ok := b.find(t)
	if !ok {
		return out
	}
	q := &b.requests[index]
	size := b.cfg.BlockSize
	for !q.full && len(tokens) > 0 {
		n := min(len(tokens), size+1-len(q.tail))
		q.tail, tokens = append(q.tail, tokens[:n]...), tokens[n:]
		if len(q.tail) <= size {
			break
		}
		// A token comes after the block, so that all of it was computed.
		q.waiting = append(q.waiting, q.hasher.Block(q.tail[:size], (q.depth+len(q.waiting))*size, q.media))
		q.tail = append(q.tail[:0], q.tail[size])
	}
	return b.computed(q, out)
}

// computed has all blocks that the request waits for be there.
func (b *Blocks) computed(q *blocksRequest, out []kv.Event) []kv.Event {
	if len(q.waiting) == 0 {
		return out
	}
	return b.store(q, len(q.waiting), out)
}

// End says that the request is served.
func (b *Blocks) End(t Ticket, out []kv.Event) []kv.Event {
	index, ok := b.find(t)
	if !ok {
		return out
	}
	out = b.computed(&b.requests[index], out)
	return b.end(index, out)
}

// Abort says that the request ended before it was served. A prompt that was not computed
// leaves nothing.
func (b *Blocks) Abort(t Ticket, out []kv.Event) []kv.Event {
	index, ok := b.find(t)
	if !ok {
		return out
	}
	return b.end(index, out)
}

func (b *Blocks) end(index int, out []kv.Event) []kv.Event {
	q := &b.requests[index]
	b.clock++
	for at := q.tip; at != 0; at = b.nodes[at].parent {
		b.unuse(at)
	}
	q.open = false
	b.idle = append(b.idle, int32(index))
	return b.shrink(out)
}

// shrink has idle blocks leave until the others fit.
func (b *Blocks) shrink(out []kv.Event) []kv.Event {
	b.gone = b.gone[:0]
	for b.live > b.cfg.Capacity && b.nodes[0].next != 0 {
		b.evict()
	}
	return b.removed(out)
}

// removed reports the blocks that are gone.
func (b *Blocks) removed(out []kv.Event) []kv.Event {
	if len(b.gone) > 0 {
		out = append(out, kv.Event{Kind: kv.Removed, Seqs: b.seqs.copyOf(b.gone)})
	}
	return out
}

// Clear says that the engine has nothing cached: it was restarted, or told to forget. All
// tickets end.
func (b *Blocks) Clear(out []kv.Event) []kv.Event {
	b.at = map[kv.SeqHash]int32{}
	b.nodes = append(b.nodes[:0], node{})
	b.free, b.live = 0, 0
	b.idle = b.idle[:0]
	for i := range b.requests {
		b.requests[i].open = false
		b.idle = append(b.idle, int32(i))
	}
	return append(out, kv.Event{Kind: kv.Cleared})
}

// Describe appends a Cleared event and Stored events of all that is believed to be
// cached, parents before their children.
func (b *Blocks) Describe(out []kv.Event) []kv.Event {
	out = append(out, kv.Event{Kind: kv.Cleared})
	for n := b.nodes[0].child; n != 0; {
		last, length := n, 1
		for b.nodes[last].child != 0 {
			last = b.nodes[last].child
			length++
		}
		e := kv.Event{Kind: kv.Stored, Start: b.nodes[n].index, Blocks: b.blocks.take(length)}
		if p := b.nodes[n].parent; p != 0 {
			e.Parent = b.nodes[p].seq
		}
		for i := range e.Blocks {
			e.Blocks[i] = b.nodes[n].block
			n = b.nodes[n].child
		}
		out = append(out, e)
		for n = last; n != 0 && b.nodes[n].after == 0; {
			n = b.nodes[n].parent
		}
		n = b.nodes[n].after
	}
	return out
}

// Len returns how many blocks are believed to be cached.
func (b *Blocks) Len() int { return b.live }
