package cachemodel

import (
	"cmp"
	"fmt"

	"penstock/core/kv"
)

// The bounds of a PagedConfig.
const (
	maxCapacity = 1 << 26
	maxRequests = 1 << 16
)

// PagedConfig describes an engine whose sequences share blocks.
type PagedConfig struct {
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// Capacity is the number of blocks in the engine's cache, including the blocks of running requests.
	Capacity int
	// MaxRequests bounds the running requests which are tracked; 0 means 4,096.
	MaxRequests int
}

// PagedModel models an engine whose sequences share blocks, such as vLLM. A request uses the cached blocks
// of its prefix, and stores the blocks which it computes. Blocks without a running request are evicted when
// room is needed: the least recently used first, and of one request the last of its sequence first.
//
// So a block is never cached without the blocks before it.
type PagedModel struct {
	cfg PagedConfig
	// bySeq finds blocks which start sequences, and blocks which have had siblings. The others are found as
	// the only child of the block before them, which needs no map: see blockNode.indexed.
	bySeq map[kv.SeqHash]int32
	// nodes[0] is not a block. Its children are the blocks which start sequences, its next is the least
	// recently used idle block, its prev the most recently used one.
	nodes        []blockNode
	free         int32  // unused nodes, linked by next; 0 is none
	clock        uint64 // counts starts and ends of requests
	liveBlocks   int    // blocks
	requests     []pagedRequest
	freeRequests []int32 // indices of requests which are not in use
	removedSeqs  []kv.SeqHash
	seqArena     sliceArena[kv.SeqHash]
	hashArena    sliceArena[kv.BlockHash]
}

// blockNode is a cached block.
type blockNode struct {
	seq     kv.SeqHash
	block   kv.BlockHash
	index   uint32 // index in its sequence
	users   int32  // number of running requests
	indexed bool   // it is in PagedModel.bySeq
	// The tree: the previous block, the first child, and the siblings. 0 is none.
	parent, firstChild, prevSibling, nextSibling int32
	prev, next                                   int32  // neighbours among the idle blocks, if it has no users
	idleSince                                    uint64 // the clock when its last user ended
}

// pagedRequest tracks a request.
type pagedRequest struct {
	serial    uint32
	startedAt uint64
	open      bool
	full      bool // no room was left: its further blocks are not cached
	tip       int32
	depth     int // blocks up to tip
	// predicted is the predicted number of cached tokens.
	predicted int
	hasher    kv.Hasher
	media     []kv.Media
	// waiting holds the hashes of the blocks after tip which are stored when the prompt is computed.
	waiting []kv.BlockHash
	// tail holds the tokens after the last full block.
	tail []kv.Token
}

// NewPagedModel returns the model of an engine with an empty cache.
func NewPagedModel(cfg PagedConfig) (*PagedModel, error) {
	cfg.MaxRequests = cmp.Or(cfg.MaxRequests, 4096)
	_, err := kv.NewHasher(cfg.BlockSize, kv.Salt{})
	switch {
	case err != nil:
		return nil, err
	case cfg.Capacity < 1 || cfg.Capacity > maxCapacity:
		return nil, fmt.Errorf("cachemodel: the capacity must be between 1 and %d blocks, not %d", maxCapacity, cfg.Capacity)
	case cfg.MaxRequests < 1 || cfg.MaxRequests > maxRequests:
		return nil, fmt.Errorf("cachemodel: requests must be between 1 and %d, not %d", maxRequests, cfg.MaxRequests)
	}
	b := &PagedModel{cfg: cfg}
	b.Clear(nil)
	return b, nil
}

// StartRequest records that the engine gets a request. It appends nothing to out yet: blocks are evicted
// and stored when the prompt is computed.
func (b *PagedModel) StartRequest(r *EngineRequest, out []kv.Event) (Prediction, []kv.Event) {
	begun := Prediction{Slot: -1}
	if len(r.Tokens) == 0 {
		return begun, out
	}
	hasher, err := kv.NewHasher(b.cfg.BlockSize, r.Salt)
	if err != nil {
		panic("cachemodel: NewBlocks took a block size that is none")
	}
	index, ok := b.allocateRequest()
	if !ok {
		return begun, out
	}
	q := &b.requests[index]
	q.serial = max(q.serial+1, 1)
	b.clock++
	q.startedAt = b.clock
	q.open, q.full, q.tip, q.depth = true, false, 0, 0
	q.hasher, q.media = hasher, append(q.media[:0], r.Media...)
	q.waiting = hasher.AppendBlockHashes(q.waiting[:0], r.Tokens, r.Media)
	q.tail = append(q.tail[:0], r.Tokens[len(q.waiting)*b.cfg.BlockSize:]...)
	b.useCached(q, len(q.waiting))
	// The engine always computes the last token, and with it that token's block.
	q.predicted = min(q.depth, (len(r.Tokens)-1)/b.cfg.BlockSize) * b.cfg.BlockSize
	begun.Ticket, begun.Cached = newTicket(index, q.serial), q.predicted
	return begun, out
}

// allocateRequest returns the index of an unused request.
func (b *PagedModel) allocateRequest() (index int, ok bool) {
	if n := len(b.freeRequests); n > 0 {
		index = int(b.freeRequests[n-1])
		b.freeRequests = b.freeRequests[:n-1]
		return index, true
	}
	if len(b.requests) >= b.cfg.MaxRequests {
		return 0, false
	}
	b.requests = append(b.requests, pagedRequest{})
	return len(b.requests) - 1, true
}

func (b *PagedModel) findRequest(t Ticket) (index int, ok bool) {
	index, serial, ok := t.unpack(len(b.requests))
	return index, ok && b.requests[index].open && b.requests[index].serial == serial
}

// useCached makes the request use the first blocks which it waits for, as long as they are cached, up to
// most. It returns their number.
func (b *PagedModel) useCached(q *pagedRequest, most int) int {
	n := 0
	for n < most {
		at := b.findNext(q, q.waiting[n])
		if at == 0 {
			break
		}
		b.retainNode(at)
		q.tip = at
		q.depth++
		n++
	}
	q.waiting = append(q.waiting[:0], q.waiting[n:]...)
	return n
}

// findNext returns the block after the request's blocks, 0 if it is not cached. Mostly it is the
// only child: reading that is a step to adjacent memory, and a map lookup is one to anywhere.
func (b *PagedModel) findNext(q *pagedRequest, block kv.BlockHash) int32 {
	switch child := b.nodes[q.tip].firstChild; {
	case child == 0:
		return 0
	case b.nodes[child].block == block:
		return child
	case !b.nodes[child].indexed:
		return 0
	}
	return b.bySeq[kv.ExtendSeq(b.nodes[q.tip].seq, uint32(q.depth), block)]
}

// storeBlocks stores the first n blocks which the request waits for.
func (b *PagedModel) storeBlocks(q *pagedRequest, n int, out []kv.Event) []kv.Event {
	if q.full {
		return out
	}
	n = min(n, len(q.waiting))
	if n -= b.useCached(q, n); n <= 0 {
		return out
	}
	e := kv.Event{Kind: kv.Stored, Start: uint32(q.depth)}
	if q.tip != 0 {
		e.Parent = b.nodes[q.tip].seq
	}
	b.removedSeqs = b.removedSeqs[:0]
	stored := 0
	for _, block := range q.waiting[:n] {
		at := b.allocateNode()
		if at == 0 {
			q.full = true
			break
		}
		b.attachNode(at, q.tip, block, uint32(q.depth))
		q.tip = at
		q.depth++
		stored++
	}
	out = b.appendRemoved(out)
	if stored > 0 {
		e.Blocks = b.hashArena.copyOf(q.waiting[:stored])
		out = append(out, e)
	}
	q.waiting = append(q.waiting[:0], q.waiting[n:]...)
	return out
}

// ReportCached records how many of the request's tokens the engine had cached, [Unknown] if it does not
// report that. If there are more than predicted, they are stored. If there are fewer, only this request and
// later ones confirm what follows them: the model drops what earlier sequences had beyond that point.
func (b *PagedModel) ReportCached(t Ticket, cached int, out []kv.Event) []kv.Event {
	index, ok := b.findRequest(t)
	if !ok || cached < 0 {
		return out
	}
	q := &b.requests[index]
	blocks := cached / b.cfg.BlockSize
	if cached >= q.predicted {
		return b.storeBlocks(q, blocks-q.depth, out)
	}
	first := b.blockAt(q, blocks)
	q.predicted = cached
	b.removedSeqs = b.removedSeqs[:0]
	b.dropDescendants(first, q.startedAt)
	return b.appendRemoved(out)
}

// blockAt returns the block of the request's sequence at index.
func (b *PagedModel) blockAt(q *pagedRequest, index int) int32 {
	at := q.tip
	for range q.depth - 1 - index {
		at = b.nodes[at].parent
	}
	return at
}

// AppendTokens records that the request generated tokens, so its prompt is computed. Everything which one
// call stores, including the prompt, is one event.
func (b *PagedModel) AppendTokens(t Ticket, tokens []kv.Token, out []kv.Event) []kv.Event {
	index, ok := b.findRequest(t)
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
		q.waiting = append(q.waiting, q.hasher.HashBlock(q.tail[:size], (q.depth+len(q.waiting))*size, q.media))
		q.tail = append(q.tail[:0], q.tail[size])
	}
	return b.storePending(q, out)
}

// storePending stores all blocks which the request waits for.
func (b *PagedModel) storePending(q *pagedRequest, out []kv.Event) []kv.Event {
	if len(q.waiting) == 0 {
		return out
	}
	return b.storeBlocks(q, len(q.waiting), out)
}

// FinishRequest records that the request was served.
func (b *PagedModel) FinishRequest(t Ticket, out []kv.Event) []kv.Event {
	index, ok := b.findRequest(t)
	if !ok {
		return out
	}
	out = b.storePending(&b.requests[index], out)
	return b.releaseRequest(index, out)
}

// AbortRequest records that the request ended early. A prompt which was not computed leaves nothing in the
// cache.
func (b *PagedModel) AbortRequest(t Ticket, out []kv.Event) []kv.Event {
	index, ok := b.findRequest(t)
	if !ok {
		return out
	}
	return b.releaseRequest(index, out)
}

func (b *PagedModel) releaseRequest(index int, out []kv.Event) []kv.Event {
	q := &b.requests[index]
	b.clock++
	for at := q.tip; at != 0; at = b.nodes[at].parent {
		b.releaseNode(at)
	}
	q.open = false
	b.freeRequests = append(b.freeRequests, int32(index))
	return b.evictOverCapacity(out)
}

// evictOverCapacity evicts idle blocks until the others fit.
func (b *PagedModel) evictOverCapacity(out []kv.Event) []kv.Event {
	b.removedSeqs = b.removedSeqs[:0]
	for b.liveBlocks > b.cfg.Capacity && b.nodes[0].next != 0 {
		b.evictLeastRecentlyUsed()
	}
	return b.appendRemoved(out)
}

// appendRemoved appends an event for the blocks which were removed.
func (b *PagedModel) appendRemoved(out []kv.Event) []kv.Event {
	if len(b.removedSeqs) > 0 {
		out = append(out, kv.Event{Kind: kv.Removed, Seqs: b.seqArena.copyOf(b.removedSeqs)})
	}
	return out
}

// Clear records that the engine's cache is empty, because the engine was restarted or reset. All tickets
// end.
func (b *PagedModel) Clear(out []kv.Event) []kv.Event {
	b.bySeq = map[kv.SeqHash]int32{}
	b.nodes = append(b.nodes[:0], blockNode{})
	b.free, b.liveBlocks = 0, 0
	b.freeRequests = b.freeRequests[:0]
	for i := range b.requests {
		b.requests[i].open = false
		b.freeRequests = append(b.freeRequests, int32(i))
	}
	return append(out, kv.Event{Kind: kv.Cleared})
}

// Describe appends a Cleared event and Stored events for the whole predicted cache, parents before their
// children.
func (b *PagedModel) Describe(out []kv.Event) []kv.Event {
	out = append(out, kv.Event{Kind: kv.Cleared})
	for n := b.nodes[0].firstChild; n != 0; {
		last, length := n, 1
		for b.nodes[last].firstChild != 0 {
			last = b.nodes[last].firstChild
			length++
		}
		e := kv.Event{Kind: kv.Stored, Start: b.nodes[n].index, Blocks: b.hashArena.allocate(length)}
		if p := b.nodes[n].parent; p != 0 {
			e.Parent = b.nodes[p].seq
		}
		for i := range e.Blocks {
			e.Blocks[i] = b.nodes[n].block
			n = b.nodes[n].firstChild
		}
		out = append(out, e)
		for n = last; n != 0 && b.nodes[n].nextSibling == 0; {
			n = b.nodes[n].parent
		}
		n = b.nodes[n].nextSibling
	}
	return out
}

// Len returns the number of blocks predicted to be cached.
func (b *PagedModel) Len() int { return b.liveBlocks }
