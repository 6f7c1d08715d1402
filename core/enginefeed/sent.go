package enginefeed

import (
	"slices"
	"time"

	"penstock/core/kv"
)

// The bounds of the prompts that are remembered.
const (
	maxSent       = 512
	maxSentTokens = 1 << 20
)

// What the engine stored for a request is known settleTime after its end, as its events and its answer come on two
// ways. A prompt is remembered for keepTime after that.
const (
	settleTime = 200 * time.Millisecond
	keepTime   = 30 * time.Second
)

// unreported is the number of cached tokens of a prompt of which the engine has said none.
const unreported = -1

// sent is a prompt that was sent to the engine, with what it generated. By the cached tokens that the engine reports for it
// the prompt tells which block a name is of: what the engine stores behind N cached tokens follows the block that ends there.
type sent struct {
	number uint64
	salt   kv.Salt
	hasher kv.Hasher
	// view are the tokens as events have them, tokens as requests do, of which the first are the prompt.
	view, tokens []kv.Token
	prompt       int
	media        []kv.Media
	blocks       []kv.BlockHash // of ours
	chain        []kv.SeqHash
	began        uint64 // in arrivals
	cached       int
	over         bool
	end          kv.Mono // when it was over
	seen         uint64  // up to which arrival runs were looked at
	closed       uint64  // the last arrival that can be of this request; 0 until that is settled
	tried        uint64  // requests.changes when no name was found
	known        int     // up to where its blocks are known by name
	whole        bool    // it came to its end by itself
	doubtful     bool    // several names fit it
	rival        uint64  // the number of a prompt that what was stored for this one may be of; 0 if none is known
	rivalCached  int     // what was reported of it when that was found
}

// block returns the i-th block of ours.
func (p *sent) block(i int) block {
	b := block{hash: p.blocks[i], depth: uint32(i)}
	if i > 0 {
		b.prev = p.chain[i-1]
	}
	return b
}

// requests are the prompts that are remembered, the oldest first.
type requests struct {
	list   []*sent
	tokens int
	number uint64
	// changes counts what was learned of requests: what was in doubt may not be any more.
	changes uint64
}

func (q *requests) find(number uint64) *sent {
	i, found := slices.BinarySearchFunc(q.list, number, func(p *sent, number uint64) int {
		switch {
		case p.number < number:
			return -1
		case p.number > number:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return q.list[i]
}

// drop forgets a prompt.
func (q *requests) drop(i int) {
	q.tokens -= len(q.list[i].tokens)
	q.list = slices.Delete(q.list, i, i+1)
}

// room forgets prompts until there is room for so many tokens: those first whose requests are over.
func (q *requests) room(tokens int) {
	for i := 0; i < len(q.list) && (len(q.list) >= maxSent || q.tokens+tokens > maxSentTokens); {
		if q.list[i].over {
			q.drop(i)
			continue
		}
		i++
	}
	for len(q.list) > 0 && (len(q.list) >= maxSent || q.tokens+tokens > maxSentTokens) {
		q.drop(0)
	}
}

// History says how much of what an engine cached is known from its events.
type History uint8

// The histories.
const (
	// PartialHistory: it may have blocks that it stored before its events were followed, or in events that were lost.
	PartialHistory History = iota
	// WholeHistory: its events were followed from their beginning.
	WholeHistory
)

// SetHistory says how much is known of the engine, and appends to out what changes by that. An orphan shows that the
// history is partial, until the engine's cache is empty. While it is, prompts are remembered, by which names are found.
func (t *Table) SetHistory(h History, out []kv.Event) []kv.Event {
	if t.cfg.Capacity == 0 || t.partial == (h == PartialHistory) || t.orphaned {
		return out
	}
	if h == PartialHistory {
		t.becomePartial()
		return out
	}
	t.begin(out)
	for t.inferred.oldest != nil {
		t.inferred.drop(t, t.inferred.oldest)
	}
	t.forgetInferred()
	t.partial = false
	return t.done()
}

// becomePartial begins to keep account of which blocks events told of.
func (t *Table) becomePartial() {
	if t.partial {
		return
	}
	t.partial = true
	for id := uint32(1); id <= t.blocks.top; id++ {
		if b := t.blocks.all.at(id); b.refs[kv.TierDevice] > 0 && b.salt != opaque {
			t.inferred.taken(kv.TierDevice, b.seq())
		}
	}
}

// Sent says that a request is sent to the engine, before it is. number names it for the other calls; 0 is a
// request that need not be told of any further. The slices are not kept.
func (t *Table) Sent(prompt []kv.Token, media []kv.Media, salt kv.Salt) (number uint64) {
	if !t.partial || len(prompt) == 0 || len(prompt) > maxSentTokens || len(media) > 0 && t.cfg.Pads == PadsAbove {
		return 0
	}
	h, err := kv.NewHasher(t.cfg.BlockSize, salt)
	if err != nil {
		return 0 // the size was checked before
	}
	q := &t.requests
	q.room(len(prompt))
	q.number++
	q.tokens += len(prompt)
	t.orphans.arrivals++
	p := &sent{
		number: q.number, salt: salt, hasher: h, tokens: slices.Clone(prompt), prompt: len(prompt),
		media: slices.Clone(media), began: t.orphans.arrivals, cached: unreported,
	}
	p.view = p.tokens
	if len(media) > 0 && t.cfg.Pads == PadsOfKeys {
		t.represent(prompt, media)
		p.view = slices.Clone(t.shown.view)
	}
	p.extend(0)
	q.list = append(q.list, p)
	return p.number
}

// extend names the blocks of ours that the tokens fill.
func (p *sent) extend(from int) {
	size := p.hasher.BlockSize()
	for i := from; (i+1)*size <= len(p.tokens); i++ {
		p.blocks = append(p.blocks, p.hasher.Block(p.tokens[i*size:(i+1)*size], i*size, p.media))
		p.chain = append(p.chain, kv.Extend(p.block(i).prev, uint32(i), p.blocks[i]))
	}
}

// Grew says that a request generated tokens.
func (t *Table) Grew(number uint64, tokens []kv.Token) {
	p := t.requests.find(number)
	if p == nil || p.over || t.requests.tokens+len(tokens) > maxSentTokens {
		return
	}
	same := len(p.media) == 0 || t.cfg.Pads != PadsOfKeys
	p.tokens = append(p.tokens, tokens...)
	if same {
		p.view = p.tokens
	} else {
		p.view = append(p.view, tokens...)
	}
	t.requests.tokens += len(tokens)
	p.extend(len(p.blocks))
}

// Reported takes how many tokens of a request the engine had cached, and appends to out what that shows.
func (t *Table) Reported(number uint64, cached int, out []kv.Event) []kv.Event {
	p := t.requests.find(number)
	if p == nil || p.cached != unreported || cached < 0 || cached > len(p.tokens) {
		return out
	}
	p.cached = cached
	t.requests.changes++
	t.begin(out)
	// The last token is always computed, and with it the block of the engine that it is in.
	if size := t.cfg.EngineBlock; cached < (p.prompt-1)/size*size {
		t.inferred.deny(t, p, cached/t.cfg.BlockSize, (p.prompt-1)/size*size/t.cfg.BlockSize)
	}
	switch {
	case t.told(p):
		p.known = max(p.known, cached)
	case p.salt.Namespace == "" || t.veil.told: // else nothing is predicted
		t.inferred.guess(t, p, cached/t.cfg.BlockSize)
	}
	return t.done()
}

// told reports whether events told of all blocks before the end of p's cached tokens.
func (t *Table) told(p *sent) bool {
	for _, seq := range p.chain[:min(len(p.chain), p.cached/t.cfg.BlockSize)] {
		if _, named := t.inferred.named[seq]; !named {
			return false
		}
	}
	return p.cached%t.cfg.BlockSize == 0
}

// Ended says that a request is over: whatever the engine stored for it was published, or will be soon. Of one that is
// Served, the tokens that the engine stored are known.
func (t *Table) Ended(number uint64, end End, now kv.Mono) {
	if p := t.requests.find(number); p != nil && !p.over {
		p.over, p.whole, p.end = true, end == Served, now
		t.requests.changes++
	}
}

// End is how a request came to its end.
type End uint8

// The ends.
const (
	Broken End = iota // before the engine had generated all of its answer
	Served
)

// Settle finds names of blocks by the requests that are over, and appends to out what follows. It is called at
// Due, after batches were applied, or any time.
func (t *Table) Settle(now kv.Mono, out []kv.Event) []kv.Event {
	q := &t.requests
	if len(q.list) == 0 {
		return out
	}
	t.begin(out)
	for _, p := range q.list {
		if p.cached <= 0 || p.known >= p.cached {
			continue
		}
		for r := t.orphans.last; r != nil && r.arrival > max(p.seen, p.began); r = r.older {
			t.believe(p, r)
		}
		p.seen = t.orphans.arrivals
		if !p.over || now.Sub(p.end) < settleTime {
			continue
		}
		if p.closed == 0 {
			p.closed = max(t.orphans.arrivals, 1)
		} else if p.tried == q.changes || t.rivalled(p) {
			continue
		}
		p.tried = q.changes
		t.resolve(p)
	}
	for i := 0; i < len(q.list); {
		if p := q.list[i]; p.over && now.Sub(p.end) > keepTime {
			q.drop(i)
			continue
		}
		i++
	}
	before := t.orphans.arrivals
	if len(q.list) > 0 {
		before = q.list[0].began
	}
	t.orphans.purge(before)
	return t.done()
}

// Due returns when Settle is; ok is false if it is not.
func (t *Table) Due() (at kv.Mono, ok bool) {
	for _, p := range t.requests.list {
		waits := p.over && p.closed == 0 && p.cached > p.known && t.orphans.runs > 0
		if due := p.end.Add(settleTime); waits && (!ok || due < at) {
			at, ok = due, true
		}
	}
	return at, ok
}
