package enginefeed

import (
	"slices"
	"time"

	"penstock/core/kv"
)

// The bounds of the remembered prompts.
const (
	maxSent       = 512
	maxSentTokens = 1 << 20
)

// A request's events and its answer arrive on two channels: what the engine stored for it is known
// settleDelay after its end. A prompt is remembered for requestKeepTime after that.
const (
	settleTime = 200 * time.Millisecond
	keepTime   = 30 * time.Second
)

// cachedUnreported is the cached-token count of a prompt for which the engine has reported none.
const unreported = -1

// sentRequest is a prompt which was sent to the engine, with the tokens generated for it. The cached tokens
// which the engine reports for it identify an engine hash: what the engine stores after N cached tokens
// follows the block which ends there.
type sent struct {
	number uint64
	salt   kv.Salt
	hasher kv.Hasher
	// view holds the tokens as events have them. tokens holds them as requests have them; the first ones
	// are the prompt.
	view, tokens []kv.Token
	prompt       int
	media        []kv.Media
	blocks       []kv.BlockHash // Penstock blocks
	chain        []kv.SeqHash
	began        uint64 // when it was sent, as an arrival number
	cached       int
	over         bool
	end          kv.Mono // when it ended
	seen         uint64  // the arrival up to which runs were examined
	closed       uint64  // the last arrival which can belong to this request; 0 until settled
	tried        uint64  // the value of requestLog.changes when no hash was found
	known        int     // the number of tokens up to which its blocks are known by hash
	whole        bool    // the engine served it completely
	doubtful     bool    // several hashes match it
	rival        uint64  // the number of a prompt which may own what was stored for this one; 0 if none
	rivalCached  int     // the cached tokens of the rival when it was recorded
}

// blockAt returns the i-th Penstock block.
func (p *sent) block(i int) block {
	b := block{hash: p.blocks[i], depth: uint32(i)}
	if i > 0 {
		b.prev = p.chain[i-1]
	}
	return b
}

// requestLog holds the remembered prompts, oldest first.
type requests struct {
	list   []*sent
	tokens int
	number uint64
	// changes counts what was learned about requests: an ambiguous case may have become unambiguous.
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

// dropRequest drops a prompt.
func (q *requests) drop(i int) {
	q.tokens -= len(q.list[i].tokens)
	q.list = slices.Delete(q.list, i, i+1)
}

// makeRoom drops prompts until the given number of tokens fits: finished requests first.
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

// History says how much of an engine's cache is known from its events.
type History uint8

// The values of History.
const (
	// PartialHistory: the engine may have blocks which it stored before its events were followed, or in
	// events which were lost.
	PartialHistory History = iota
	// WholeHistory: its events were followed from the start.
	WholeHistory
)

// SetHistory sets how much is known of the engine, and appends the resulting changes to out. An orphan
// proves that the history is partial until the engine's cache is empty. While it is partial, prompts are
// remembered, to resolve engine hashes.
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

// startPartialHistory starts to count which blocks events announced.
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

// RecordSent records a request. It is called before the request is sent to the engine. number identifies
// the request in other calls; 0 means that no further calls are needed. The slices are not kept.
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

// extendBlocks hashes the Penstock blocks which the tokens fill.
func (p *sent) extend(from int) {
	size := p.hasher.BlockSize()
	for i := from; (i+1)*size <= len(p.tokens); i++ {
		p.blocks = append(p.blocks, p.hasher.Block(p.tokens[i*size:(i+1)*size], i*size, p.media))
		p.chain = append(p.chain, kv.Extend(p.block(i).prev, uint32(i), p.blocks[i]))
	}
}

// RecordGenerated records the tokens which a request generated.
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

// RecordCached records how many tokens of a request the engine had cached, and appends the resulting
// changes to out.
func (t *Table) Reported(number uint64, cached int, out []kv.Event) []kv.Event {
	p := t.requests.find(number)
	if p == nil || p.cached != unreported || cached < 0 || cached > len(p.tokens) {
		return out
	}
	p.cached = cached
	t.requests.changes++
	t.begin(out)
	// The engine always computes the last token, and with it that token's engine block.
	if size := t.cfg.EngineBlock; cached < (p.prompt-1)/size*size {
		t.inferred.deny(t, p, cached/t.cfg.BlockSize, (p.prompt-1)/size*size/t.cfg.BlockSize)
	}
	switch {
	case t.told(p):
		p.known = max(p.known, cached)
	case p.salt.Namespace == "" || t.veil.told: // otherwise nothing is predicted
		t.inferred.guess(t, p, cached/t.cfg.BlockSize)
	}
	return t.done()
}

// eventsCoverCached reports whether events announced all blocks before the end of p's cached tokens.
func (t *Table) told(p *sent) bool {
	for _, seq := range p.chain[:min(len(p.chain), p.cached/t.cfg.BlockSize)] {
		if _, named := t.inferred.named[seq]; !named {
			return false
		}
	}
	return p.cached%t.cfg.BlockSize == 0
}

// RecordEnd records that a request ended: what the engine stored for it is published, or will be soon. For
// a Served request the stored tokens are known.
func (t *Table) Ended(number uint64, end End, now kv.Mono) {
	if p := t.requests.find(number); p != nil && !p.over {
		p.over, p.whole, p.end = true, end == Served, now
		t.requests.changes++
	}
}

// RequestEnd says how a request ended.
type End uint8

// The values of RequestEnd.
const (
	Broken End = iota // before the engine had generated the whole answer
	Served
)

// ResolveHashes resolves engine hashes from the requests which ended, and appends the resulting changes to
// out. It is called when NextResolve says so, after batches were applied, or at any time.
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

// NextResolve returns when ResolveHashes is due. ok is false if it is not.
func (t *Table) Due() (at kv.Mono, ok bool) {
	for _, p := range t.requests.list {
		waits := p.over && p.closed == 0 && p.cached > p.known && t.orphans.runs > 0
		if due := p.end.Add(settleTime); waits && (!ok || due < at) {
			at, ok = due, true
		}
	}
	return at, ok
}
