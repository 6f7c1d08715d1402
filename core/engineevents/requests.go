package engineevents

import (
	"slices"
	"time"

	"penstock/core/kv"
)

// The bounds of the remembered prompts.
const (
	maxSentRequests = 512
	maxSentTokens   = 1 << 20
)

// A request's events and its answer arrive on two channels: what the engine stored for it is known
// settleDelay after its end. A prompt is remembered for requestKeepTime after that.
const (
	settleDelay     = 200 * time.Millisecond
	requestKeepTime = 30 * time.Second
)

// cachedUnreported is the cached-token count of a prompt for which the engine has reported none.
const cachedUnreported = -1

// sentRequest is a prompt which was sent to the engine, with the tokens generated for it. The cached tokens
// which the engine reports for it identify an engine hash: what the engine stores after N cached tokens
// follows the block which ends there.
type sentRequest struct {
	number uint64
	salt   kv.Salt
	hasher kv.Hasher
	// view holds the tokens as events have them. tokens holds them as requests have them; the first ones
	// are the prompt.
	view, tokens []kv.Token
	promptLen    int
	media        []kv.Media
	blocks       []kv.BlockHash // Penstock blocks
	chain        []kv.SeqHash
	sentArrival  uint64 // when it was sent, as an arrival number
	cached       int
	ended        bool
	endedAt      kv.Mono // when it ended
	seenArrival  uint64  // the arrival up to which runs were examined
	lastArrival  uint64  // the last arrival which can belong to this request; 0 until settled
	triedChanges uint64  // the value of requestLog.changes when no hash was found
	knownTokens  int     // the number of tokens up to which its blocks are known by hash
	served       bool    // the engine served it completely
	ambiguous    bool    // several hashes match it
	rival        uint64  // the number of a prompt which may own what was stored for this one; 0 if none
	rivalCached  int     // the cached tokens of the rival when it was recorded
}

// blockAt returns the i-th Penstock block.
func (p *sentRequest) blockAt(i int) blockEntry {
	b := blockEntry{hash: p.blocks[i], depth: uint32(i)}
	if i > 0 {
		b.prefix = p.chain[i-1]
	}
	return b
}

// requestLog holds the remembered prompts, oldest first.
type requestLog struct {
	list       []*sentRequest
	tokens     int
	lastNumber uint64
	// changes counts what was learned about requests: an ambiguous case may have become unambiguous.
	changes uint64
}

func (q *requestLog) findRequest(number uint64) *sentRequest {
	i, found := slices.BinarySearchFunc(q.list, number, func(p *sentRequest, number uint64) int {
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
func (q *requestLog) dropRequest(i int) {
	q.tokens -= len(q.list[i].tokens)
	q.list = slices.Delete(q.list, i, i+1)
}

// makeRoom drops prompts until the given number of tokens fits: finished requests first.
func (q *requestLog) makeRoom(tokens int) {
	for i := 0; i < len(q.list) && (len(q.list) >= maxSentRequests || q.tokens+tokens > maxSentTokens); {
		if q.list[i].ended {
			q.dropRequest(i)
			continue
		}
		i++
	}
	for len(q.list) > 0 && (len(q.list) >= maxSentRequests || q.tokens+tokens > maxSentTokens) {
		q.dropRequest(0)
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
		t.startPartialHistory()
		return out
	}
	t.beginCall(out)
	for t.inferred.oldest != nil {
		t.inferred.dropBlock(t, t.inferred.oldest)
	}
	t.forgetInferred()
	t.partial = false
	return t.finishCall()
}

// startPartialHistory starts to count which blocks events announced.
func (t *Table) startPartialHistory() {
	if t.partial {
		return
	}
	t.partial = true
	for id := uint32(1); id <= t.blocks.maxID; id++ {
		if b := t.blocks.entries.at(id); b.refs[kv.TierDevice] > 0 && b.salt != opaqueSalt {
			t.inferred.recordStored(kv.TierDevice, b.seq())
		}
	}
}

// RecordSent records a request. It is called before the request is sent to the engine. number identifies
// the request in other calls; 0 means that no further calls are needed. The slices are not kept.
func (t *Table) RecordSent(prompt []kv.Token, media []kv.Media, salt kv.Salt) (number uint64) {
	if !t.partial || len(prompt) == 0 || len(prompt) > maxSentTokens || len(media) > 0 && t.cfg.Pads == PadsAboveVocab {
		return 0
	}
	h, err := kv.NewHasher(t.cfg.BlockSize, salt)
	if err != nil {
		return 0 // the size was checked before
	}
	q := &t.requests
	q.makeRoom(len(prompt))
	q.lastNumber++
	q.tokens += len(prompt)
	t.orphans.arrivals++
	p := &sentRequest{
		number: q.lastNumber, salt: salt, hasher: h, tokens: slices.Clone(prompt), promptLen: len(prompt),
		media: slices.Clone(media), sentArrival: t.orphans.arrivals, cached: cachedUnreported,
	}
	p.view = p.tokens
	if len(media) > 0 && t.cfg.Pads == PadsFromKeys {
		t.renderEventTokens(prompt, media)
		p.view = slices.Clone(t.mediaPrompts.view)
	}
	p.extendBlocks(0)
	q.list = append(q.list, p)
	return p.number
}

// extendBlocks hashes the Penstock blocks which the tokens fill.
func (p *sentRequest) extendBlocks(from int) {
	size := p.hasher.BlockSize()
	for i := from; (i+1)*size <= len(p.tokens); i++ {
		p.blocks = append(p.blocks, p.hasher.HashBlock(p.tokens[i*size:(i+1)*size], i*size, p.media))
		p.chain = append(p.chain, kv.ExtendSeq(p.blockAt(i).prefix, uint32(i), p.blocks[i]))
	}
}

// RecordGenerated records the tokens which a request generated.
func (t *Table) RecordGenerated(number uint64, tokens []kv.Token) {
	p := t.requests.findRequest(number)
	if p == nil || p.ended || t.requests.tokens+len(tokens) > maxSentTokens {
		return
	}
	same := len(p.media) == 0 || t.cfg.Pads != PadsFromKeys
	p.tokens = append(p.tokens, tokens...)
	if same {
		p.view = p.tokens
	} else {
		p.view = append(p.view, tokens...)
	}
	t.requests.tokens += len(tokens)
	p.extendBlocks(len(p.blocks))
}

// RecordCached records how many tokens of a request the engine had cached, and appends the resulting
// changes to out.
func (t *Table) RecordCached(number uint64, cached int, out []kv.Event) []kv.Event {
	p := t.requests.findRequest(number)
	if p == nil || p.cached != cachedUnreported || cached < 0 || cached > len(p.tokens) {
		return out
	}
	p.cached = cached
	t.requests.changes++
	t.beginCall(out)
	// The engine always computes the last token, and with it that token's engine block.
	if size := t.cfg.EngineBlockSize; cached < (p.promptLen-1)/size*size {
		t.inferred.denyBlocks(t, p, cached/t.cfg.BlockSize, (p.promptLen-1)/size*size/t.cfg.BlockSize)
	}
	switch {
	case t.eventsCoverCached(p):
		p.knownTokens = max(p.knownTokens, cached)
	case p.salt.Namespace == "" || t.saltedPrompts.reported: // otherwise nothing is predicted
		t.inferred.guessPrefix(t, p, cached/t.cfg.BlockSize)
	}
	return t.finishCall()
}

// eventsCoverCached reports whether events announced all blocks before the end of p's cached tokens.
func (t *Table) eventsCoverCached(p *sentRequest) bool {
	for _, seq := range p.chain[:min(len(p.chain), p.cached/t.cfg.BlockSize)] {
		if _, named := t.inferred.named[seq]; !named {
			return false
		}
	}
	return p.cached%t.cfg.BlockSize == 0
}

// RecordEnd records that a request ended: what the engine stored for it is published, or will be soon. For
// a Served request the stored tokens are known.
func (t *Table) RecordEnd(number uint64, end RequestEnd, now kv.Mono) {
	if p := t.requests.findRequest(number); p != nil && !p.ended {
		p.ended, p.served, p.endedAt = true, end == Served, now
		t.requests.changes++
	}
}

// RequestEnd says how a request ended.
type RequestEnd uint8

// The values of RequestEnd.
const (
	Broken RequestEnd = iota // before the engine had generated the whole answer
	Served
)

// ResolveHashes resolves engine hashes from the requests which ended, and appends the resulting changes to
// out. It is called when NextResolve says so, after batches were applied, or at any time.
func (t *Table) ResolveHashes(now kv.Mono, out []kv.Event) []kv.Event {
	q := &t.requests
	if len(q.list) == 0 {
		return out
	}
	t.beginCall(out)
	for _, p := range q.list {
		if p.cached <= 0 || p.knownTokens >= p.cached {
			continue
		}
		for r := t.orphans.newest; r != nil && r.arrival > max(p.seenArrival, p.sentArrival); r = r.older {
			t.guessContinuation(p, r)
		}
		p.seenArrival = t.orphans.arrivals
		if !p.ended || now.Sub(p.endedAt) < settleDelay {
			continue
		}
		if p.lastArrival == 0 {
			p.lastArrival = max(t.orphans.arrivals, 1)
		} else if p.triedChanges == q.changes || t.hasRival(p) {
			continue
		}
		p.triedChanges = q.changes
		t.resolveParent(p)
	}
	for i := 0; i < len(q.list); {
		if p := q.list[i]; p.ended && now.Sub(p.endedAt) > requestKeepTime {
			q.dropRequest(i)
			continue
		}
		i++
	}
	before := t.orphans.arrivals
	if len(q.list) > 0 {
		before = q.list[0].sentArrival
	}
	t.orphans.purgeRemoved(before)
	return t.finishCall()
}

// NextResolve returns when ResolveHashes is due. ok is false if it is not.
func (t *Table) NextResolve() (at kv.Mono, ok bool) {
	for _, p := range t.requests.list {
		waits := p.ended && p.lastArrival == 0 && p.cached > p.knownTokens && t.orphans.runCount > 0
		if due := p.endedAt.Add(settleDelay); waits && (!ok || due < at) {
			at, ok = due, true
		}
	}
	return at, ok
}
