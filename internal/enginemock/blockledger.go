package enginemock

import (
	"context"
	"slices"
	"sync"

	"penstock/core/kv"
)

// blockLedger knows the tokens of the blocks of one engine's cache. Cache events name blocks by Penstock's
// hashes; their tokens come from the requests which the server passed on. A block is in the ledger while a
// request uses it or it is cached.
//
// An event may arrive before the tokens of its blocks, because the engine delivers both concurrently. Then
// the event waits, as long as a request may still deliver them.
type blockLedger struct {
	size int // tokens per block
	// release names blocks by their tokens; nil for engines whose names are invented.
	release *sglangRelease
	mu      struct {
		sync.Mutex
		blocks map[kv.SeqHash]*ledgerBlock
		// tips counts the open choices by the prefix at which their next block will start.
		tips map[kv.SeqHash]int
		// idle are blocks without uses, the oldest first.
		idle []kv.SeqHash
		// changed, if not nil, is closed with the next change.
		changed chan struct{}
	}
}

// ledgerBlock is one block in the ledger.
type ledgerBlock struct {
	tokens []kv.Token // as events show them
	keys   []mediaKey // of its media
	salt   kv.Salt
	name   uint64 // if the release defines names
	first  bool   // of its prompt
	uses   int    // requests which use it, and tiers in which it is cached
}

// maxIdle bounds the blocks which are kept without uses: blocks of requests which ended before their events
// arrived.
const maxIdle = 1 << 14

func newLedger(size int, release *sglangRelease) *blockLedger {
	l := &blockLedger{size: size, release: release}
	l.mu.blocks, l.mu.tips = map[kv.SeqHash]*ledgerBlock{}, map[kv.SeqHash]int{}
	return l
}

// requestBlocks holds the blocks of one request.
type requestBlocks struct {
	ledger  *blockLedger
	salt    kv.Salt
	hasher  kv.Hasher
	held    []kv.SeqHash // each used once
	choices []choiceChain
}

// choiceChain is the position of a choice: its last full block, and the tokens after it.
type choiceChain struct {
	tip    kv.SeqHash // hash of the last full block; 0 at the start
	name   uint64     // of the block at tip, if the release defines names
	tail   []kv.Token
	view   []kv.Token // of tail, as events show it
	prompt *prompt    // with media that reach into tail, nil if none
	pos    int
	open   bool
}

// openRequest starts the accounting of a request with the given number of choices.
func (l *blockLedger) openRequest(salt kv.Salt, p *prompt, choices int) (*requestBlocks, error) {
	h, err := kv.NewHasher(l.size, salt)
	if err != nil {
		return nil, err
	}
	a := &requestBlocks{ledger: l, salt: salt, hasher: h, choices: make([]choiceChain, choices)}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := choiceChain{}
	if len(p.media) > 0 {
		c.prompt = p
	}
	a.growLocked(&c, p.tokens, p.eventTokens())
	for i := range a.choices {
		a.choices[i] = c
		a.choices[i].tail, a.choices[i].view = slices.Clone(c.tail), slices.Clone(c.view)
		a.choices[i].open = true
		l.mu.tips[c.tip]++
	}
	l.wakeLocked()
	return a, nil
}

// growLocked appends tokens to a chain, with the ledger locked.
func (a *requestBlocks) growLocked(c *choiceChain, tokens, view []kv.Token) {
	size := a.ledger.size
	c.tail, c.view = append(c.tail, tokens...), append(c.view, view...)
	var media []kv.Media
	if c.prompt != nil {
		media = c.prompt.media
	}
	n := len(c.tail) / size
	for i := range n {
		tokens, view := c.tail[i*size:(i+1)*size], c.view[i*size:(i+1)*size]
		b := a.hasher.HashBlock(tokens, c.pos, media)
		next := kv.ExtendSeq(c.tip, uint32(c.pos/size), b)
		if r := a.ledger.release; r != nil {
			c.name = r.blockName(c.name, a.salt, view)
		}
		a.ledger.useLocked(next, func() *ledgerBlock {
			return &ledgerBlock{tokens: slices.Clone(view), keys: c.prompt.keysIn(c.pos, c.pos+size), salt: a.salt, name: c.name, first: c.pos == 0}
		})
		a.held = append(a.held, next)
		c.tip = next
		c.pos += size
	}
	c.tail, c.view = append(c.tail[:0], c.tail[n*size:]...), append(c.view[:0], c.view[n*size:]...)
}

// useLocked counts a use of a block, and creates the block if it does not exist.
func (l *blockLedger) useLocked(seq kv.SeqHash, create func() *ledgerBlock) {
	b := l.mu.blocks[seq]
	if b == nil {
		b = create()
		l.mu.blocks[seq] = b
	}
	b.uses++
}

// releaseLocked ends a use of a block.
func (l *blockLedger) releaseLocked(seq kv.SeqHash) {
	b := l.mu.blocks[seq]
	if b == nil {
		return
	}
	if b.uses--; b.uses > 0 {
		return
	}
	l.mu.idle = append(l.mu.idle, seq)
	if len(l.mu.idle) <= maxIdle {
		return
	}
	oldest := l.mu.idle[0]
	l.mu.idle = l.mu.idle[1:]
	if b := l.mu.blocks[oldest]; b != nil && b.uses == 0 {
		delete(l.mu.blocks, oldest)
	}
}

// addTokens appends the output of a choice.
func (a *requestBlocks) addTokens(choice int, tokens []kv.Token) {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &a.choices[choice]
	a.moveLocked(c, func() { a.growLocked(c, tokens, tokens) })
}

// moveLocked runs change and updates the tips, with the ledger locked.
func (a *requestBlocks) moveLocked(c *choiceChain, change func()) {
	l, before := a.ledger, c.tip
	change()
	if c.open && c.tip == before {
		return
	}
	if l.mu.tips[before]--; l.mu.tips[before] == 0 {
		delete(l.mu.tips, before)
	}
	if c.open {
		l.mu.tips[c.tip]++
	}
	l.wakeLocked()
}

// releaseAll releases the blocks. It may be called again.
func (a *requestBlocks) releaseAll() {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range a.choices {
		if c := &a.choices[i]; c.open {
			a.moveLocked(c, func() { c.open = false })
		}
	}
	for _, seq := range a.held {
		l.releaseLocked(seq)
	}
	a.held = nil
}

// wakeLocked wakes the waiters for a change.
func (l *blockLedger) wakeLocked() {
	if l.mu.changed != nil {
		close(l.mu.changed)
		l.mu.changed = nil
	}
}

// awaitBlock counts a use of the block which follows parent, and returns it; nil if it is unknown and no open
// choice can deliver it, or if ctx ended.
func (l *blockLedger) awaitBlock(ctx context.Context, parent, seq kv.SeqHash) *ledgerBlock {
	for {
		l.mu.Lock()
		if b := l.mu.blocks[seq]; b != nil {
			b.uses++
			l.mu.Unlock()
			return b
		}
		if l.mu.tips[parent] == 0 {
			l.mu.Unlock()
			return nil
		}
		if l.mu.changed == nil {
			l.mu.changed = make(chan struct{})
		}
		changed := l.mu.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// releaseBlocks ends uses of blocks.
func (l *blockLedger) releaseBlocks(seqs ...kv.SeqHash) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range seqs {
		l.releaseLocked(seq)
	}
}

// countBlocks returns how many blocks are known.
func (l *blockLedger) countBlocks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.blocks)
}
