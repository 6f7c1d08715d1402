package shadow

import (
	"fmt"

	"penstock/core/kv"
)

// The bounds of a PagedConfig.
const (
	maxCapacity = 1 << 26
	maxRequests = 1 << 16
)

// PagedConfig describes an engine whose sequences share blocks.
type BlocksConfig struct {
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// Capacity is the number of blocks in the engine's cache, including those of running requests.
	Capacity int
	// MaxRequests bounds the running requests which are tracked; 0 means 4,096.
	Requests int
}

// PagedModel models an engine whose sequences share blocks, such as vLLM. A request uses the cached blocks
// of its prefix, and stores the blocks which it computes. Blocks without a running request are evicted when
// room is needed: the least recently used first, and of one request the last of its sequence first.
//
// So a block is never cached without the blocks before it.
type Blocks struct {
	cfg BlocksConfig
	// bySeq finds blocks which start sequences, and blocks which have had siblings. The others are found as
	// the only child of the block before them, which needs no map: see blockNode.indexed.
	at map[kv.SeqHash]int32
	// nodes[0] is not a block. Its children are the blocks which start sequences, its next is the least
	// recently used idle block, its prev the most recently used one.
	nodes    []node
	free     int32  // unused nodes, linked by next; 0 is none
	clock    uint64 // counts starts and ends of requests
	live     int    // blocks
	requests []blocksRequest
	idle     []int32 // indices of requests which are not in use
	gone     []kv.SeqHash
	seqs     names[kv.SeqHash]
	blocks   names[kv.BlockHash]
}

// blockNode is a cached block.
type node struct {
	seq   kv.SeqHash
	block kv.BlockHash
	index uint32 // index in its sequence
	users int32  // number of running requests
	named bool   // it is in PagedModel.bySeq
	// The tree: the previous block, the first child, and the siblings. 0 is none.
	parent, child, before, after int32
	prev, next                   int32  // neighbours among the idle blocks, if it has no users
	left                         uint64 // the clock when its last user ended
}

// pagedRequest tracks a request.
type blocksRequest struct {
	serial uint32
	began  uint64
	open   bool
	full   bool // no room was left: its further blocks are not cached
	tip    int32
	depth  int // blocks up to tip
	// predicted is the predicted number of cached tokens.
	found  int
	hasher kv.Hasher
	media  []kv.Media
	// waiting holds the hashes of the blocks after tip which are stored when the prompt is computed.
	waiting []kv.BlockHash
	// tail holds the tokens after the last full block.
	tail []kv.Token
}

// NewPagedModel returns the model of an engine with an empty cache.
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

// StartRequest records that the engine gets a request. It appends nothing to out yet: blocks are evicted
// and stored when the prompt is computed.
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
	// The engine always computes the last token, and with it that token's block.
	q.found = min(q.depth, (len(r.Tokens)-1)/b.cfg.BlockSize) * b.cfg.BlockSize
	begun.Ticket, begun.Cached = ticket(index, q.serial), q.found
	return begun, out
}

// allocateRequest returns the index of an unused request.
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

// useCached makes the request use the first blocks which it waits for, as long as they are cached, up to
// most. It returns their number.
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

// findNext returns the block after the request's blocks, 0 if it is not cached. Mostly it is the
// only child: reading that is a step to adjacent memory, and a map lookup is one to anywhere.
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

// storeBlocks stores the first n blocks which the request waits for.
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

// ReportCached records how many of the request's tokens the engine had cached, [Unknown] if it does not
// report that. If there are more than predicted, they are stored. If there are fewer, only this request and
// later ones confirm what follows them: the model drops what earlier sequences had beyond that point.
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

// blockAt returns the block of the request's sequence at index.
func (b *Blocks) ancestor(q *blocksRequest, index int) int32 {
	at := q.tip
	for range q.depth - 1 - index {
		at = b.nodes[at].parent
	}
	return at
}

// AppendTokens records that the request generated tokens, so its prompt is computed. Everything which one
// call stores, including the prompt, is one event.
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
		// A token follows the block, so the whole block was computed.
		q.waiting = append(q.waiting, q.hasher.Block(q.tail[:size], (q.depth+len(q.waiting))*size, q.media))
		q.tail = append(q.tail[:0], q.tail[size])
	}
	return b.computed(q, out)
}

// storePending stores all blocks which the request waits for.
func (b *Blocks) computed(q *blocksRequest, out []kv.Event) []kv.Event {
	if len(q.waiting) == 0 {
		return out
	}
	return b.store(q, len(q.waiting), out)
}

// FinishRequest records that the request was served.
func (b *Blocks) End(t Ticket, out []kv.Event) []kv.Event {
	index, ok := b.find(t)
	if !ok {
		return out
	}
	out = b.computed(&b.requests[index], out)
	return b.end(index, out)
}

// AbortRequest records that the request ended early. A prompt which was not computed leaves nothing in the
// cache.
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

// evictOverCapacity evicts idle blocks until the others fit.
func (b *Blocks) shrink(out []kv.Event) []kv.Event {
	b.gone = b.gone[:0]
	for b.live > b.cfg.Capacity && b.nodes[0].next != 0 {
		b.evict()
	}
	return b.removed(out)
}

// appendRemoved appends an event for the blocks which were removed.
func (b *Blocks) removed(out []kv.Event) []kv.Event {
	if len(b.gone) > 0 {
		out = append(out, kv.Event{Kind: kv.Removed, Seqs: b.seqs.copyOf(b.gone)})
	}
	return out
}

// Clear records that the engine's cache is empty, because the engine was restarted or reset. All tickets
// end.
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

// Describe appends a Cleared event and Stored events for the whole predicted cache, parents before their
// children.
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

// Len returns the number of blocks predicted to be cached.
func (b *Blocks) Len() int { return b.live }
