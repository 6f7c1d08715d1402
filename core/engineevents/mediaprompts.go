package engineevents

import (
	"slices"

	"penstock/core/kv"
)

// PadStyle says which tokens an engine's events have in the place of media.
type PadStyle uint8

// The pad styles.
const (
	// PadsNative: the same vocabulary tokens as in requests. The block's keys identify the media. vLLM.
	PadsNative PadStyle = iota
	// PadsFromKeys: kv.PadToken of each object's key, and no keys. SGLang, and routers which publish for
	// it.
	PadsFromKeys
	// PadsAboveVocab: placeholder ids above the vocabulary, without identity. The block's keys identify the
	// media. TensorRT-LLM.
	PadsAboveVocab
)

// minPadToken is the smallest token which kv.PadToken returns: it is larger than any vocabulary.
const minPadToken = kv.Token(1_000_000)

// normalizedPad replaces every id above the vocabulary.
const normalizedPad = ^kv.Token(0)

// The bounds of what is remembered of media prompts. The oldest entries are dropped. A block stored after
// that is hashed from its media object if the object's key is still known; otherwise it cannot be hashed.
const (
	maxShownBlocks  = 1 << 16 // blocks
	maxMediaObjects = 1 << 14
	maxTails        = 1 << 12 // prompts
)

// mediaPrompts remembers how prompts with media were sent. Blocks whose events have other tokens in the
// place of media then get the hashes which requests use, whatever structure tokens a model family puts
// around its media.
type mediaPrompts struct {
	// blocks maps a lookup key (parent prefix, and tokens and media as the engine reports them) to a block
	// hash.
	blocks fifoMap[kv.SeqHash, kv.BlockHash]
	// tails maps a parent prefix to the prompt's partial last block, which generated tokens will complete.
	tails fifoMap[kv.SeqHash, partialBlock]
	// pads maps a placeholder token to its media object.
	pads fifoMap[kv.Token, mediaObject]

	view, native []kv.Token // scratch
}

// partialBlock is the start of a block, up to the end of its last media object.
type partialBlock struct {
	view, native []kv.Token
	media        []kv.Media
}

// mediaObject is a media object, and the token which requests have in its place.
type mediaObject struct {
	hash uint64
	pad  kv.Token
}

// fifoMap is a map which drops its oldest entry when it is full.
type fifoMap[K comparable, V any] struct {
	values map[K]V
	keys   []K
	next   int
}

func (r *fifoMap[K, V]) put(key K, v V, most int) {
	if r.values == nil {
		r.values = make(map[K]V)
	}
	if _, known := r.values[key]; !known {
		if len(r.keys) < most {
			r.keys = append(r.keys, key)
		} else {
			delete(r.values, r.keys[r.next])
			r.keys[r.next] = key
			r.next = (r.next + 1) % most
		}
	}
	r.values[key] = v
}

// RecordMediaPrompt records a prompt with media. It is called before the prompt is sent to the engine.
// prompt has the vocabulary's tokens; media are in order. It does nothing if the engine's events have those
// tokens too.
func (t *Table) RecordMediaPrompt(prompt []kv.Token, media []kv.Media, salt kv.Salt) {
	if t.cfg.Pads == PadsNative || len(media) == 0 {
		return
	}
	h, err := kv.NewHasher(t.cfg.BlockSize, salt)
	if err != nil {
		return // the size was checked before
	}
	v := &t.mediaPrompts
	last := t.renderEventTokens(prompt, media)
	size := t.cfg.BlockSize
	var prev kv.SeqHash
	at := 0
	for ; at+size <= len(prompt) && at < last; at += size {
		name := h.HashBlock(prompt[at:at+size], at, media)
		if inside := t.mediaInRange(media, at, at+size); len(inside) > 0 {
			v.blocks.put(t.blockLookupKey(h, prev, v.view[at:at+size], inside), name, maxShownBlocks)
		}
		prev = kv.ExtendSeq(prev, uint32(at/size), name)
	}
	if at < last { // the media reach into a block which is not full
		v.tails.put(prev, partialBlock{
			view: append([]kv.Token(nil), v.view[at:last]...), native: append([]kv.Token(nil), prompt[at:last]...), media: append([]kv.Media(nil), t.mediaInRange(media, at, last)...),
		}, maxTails)
	}
}

// renderEventTokens writes a prompt to v.view as the engine's events have it, and returns the end of the
// last media object.
func (t *Table) renderEventTokens(prompt []kv.Token, media []kv.Media) (last int) {
	v := &t.mediaPrompts
	v.view = append(v.view[:0], prompt...)
	for _, m := range media {
		start, end := max(m.Start, 0), min(m.End, len(prompt))
		if start >= end {
			continue
		}
		last = max(last, end)
		pad := t.findPadToken(prompt[start:end])
		stands := normalizedPad
		if t.cfg.Pads == PadsFromKeys {
			stands = kv.PadToken(m.Hash)
			v.pads.put(stands, mediaObject{m.Hash, pad}, maxMediaObjects)
		}
		for i := start; i < end; i++ {
			if prompt[i] == pad || t.isMediaToken(prompt[i]) {
				v.view[i] = stands
			}
		}
	}
	return last
}

// findPadToken returns the token which fills a media object's range: the first known media token, otherwise
// the token with the longest run.
func (t *Table) findPadToken(tokens []kv.Token) kv.Token {
	best, most, run := tokens[0], 0, 0
	for i, token := range tokens {
		if t.isMediaToken(token) {
			return token
		}
		if run++; i > 0 && tokens[i-1] != token {
			run = 1
		}
		if run > most {
			best, most = token, run
		}
	}
	return best
}

// isMediaToken reports whether a vocabulary token is known to stand for media.
func (t *Table) isMediaToken(token kv.Token) bool {
	return slices.Contains(t.cfg.MediaTokens, token)
}

// mediaInRange returns the media which overlap a range of a prompt, in the form in which blocks have them.
// The next call reuses the slice.
func (t *Table) mediaInRange(media []kv.Media, from, to int) []kv.Media {
	t.inside = t.inside[:0]
	for _, m := range media {
		if m.Start < to && m.End > from && m.Start < m.End {
			t.inside = append(t.inside, kv.Media{Hash: m.Hash, Start: 0, End: t.cfg.BlockSize})
		}
	}
	return t.inside
}

// blockLookupKey returns the key under which a block is remembered: its parent prefix, and its tokens and
// media as the engine reports them.
func (t *Table) blockLookupKey(h kv.Hasher, prev kv.SeqHash, view []kv.Token, media []kv.Media) kv.SeqHash {
	if t.cfg.Pads == PadsFromKeys {
		media = nil // they are in the tokens
	}
	return kv.ExtendSeq(prev, 1, h.HashBlock(view, 0, media))
}

// hashBlock returns the Penstock hash of the block after prev with the engine's tokens and media.
func (t *Table) hashBlock(h kv.Hasher, prev kv.SeqHash, tokens []kv.Token, media []kv.Media) kv.BlockHash {
	if t.cfg.Pads == PadsNative {
		return h.HashBlock(tokens, 0, media)
	}
	v := &t.mediaPrompts
	v.view = append(v.view[:0], tokens...)
	odd := false
	for i, token := range v.view {
		if !t.isMediaPlaceholder(token) {
			continue
		}
		odd = true
		if t.cfg.Pads == PadsAboveVocab {
			v.view[i] = normalizedPad
		}
	}
	if name, known := v.blocks.values[t.blockLookupKey(h, prev, v.view, media)]; known {
		return name
	}
	if l, known := v.tails.values[prev]; known && l.isPrefixOf(v.view, media, t.cfg.Pads) {
		v.native = append(append(v.native[:0], l.native...), v.view[len(l.view):]...)
		return h.HashBlock(v.native, 0, l.media)
	}
	if !odd {
		return h.HashBlock(tokens, 0, media)
	}
	return t.hashResolvedMedia(h, media)
}

// isMediaPlaceholder reports whether a token of an event stands for a media object.
func (t *Table) isMediaPlaceholder(token kv.Token) bool {
	if t.cfg.Vocabulary > 0 && int64(token) >= int64(t.cfg.Vocabulary) {
		return true
	}
	return t.cfg.Pads == PadsFromKeys && token >= minPadToken
}

// isPrefixOf reports whether a block starts with l.
func (l *partialBlock) isPrefixOf(view []kv.Token, media []kv.Media, pads PadStyle) bool {
	if len(view) < len(l.view) {
		return false
	}
	for i, token := range l.view {
		if view[i] != token {
			return false
		}
	}
	if pads == PadsFromKeys {
		return true
	}
	if len(media) == 0 || len(media) != len(l.media) {
		return false
	}
	for i := range media {
		if media[i].Hash != l.media[i].Hash {
			return false
		}
	}
	return true
}

// hashResolvedMedia hashes the block in v.view token by token, with the objects which are known. A block
// with an unknown object is hashed from its placeholder tokens, which no request here has.
func (t *Table) hashResolvedMedia(h kv.Hasher, media []kv.Media) kv.BlockHash {
	v := &t.mediaPrompts
	v.native = append(v.native[:0], v.view...)
	t.inside = append(t.inside[:0], media...)
	for i, token := range v.view {
		if !t.isMediaPlaceholder(token) {
			continue
		}
		if t.cfg.Pads == PadsAboveVocab {
			if len(media) == 0 || len(t.cfg.MediaTokens) == 0 {
				t.stats.Unresolved++
				return h.HashBlock(v.view, 0, media)
			}
			v.native[i] = t.cfg.MediaTokens[0]
			continue
		}
		o, known := v.pads.values[token]
		if !known {
			t.stats.Unresolved++
			return h.HashBlock(v.view, 0, nil)
		}
		v.native[i] = o.pad
		t.inside = append(t.inside, kv.Media{Hash: o.hash, Start: 0, End: t.cfg.BlockSize})
	}
	return h.HashBlock(v.native, 0, t.inside)
}

// hasUnidentifiedMedia reports whether a block of an event without keys shows media: all images would have
// one hash. If an event has keys and none for such a block, the block is text with those tokens, as a model
// may generate.
func (t *Table) hasUnidentifiedMedia(tokens []kv.Token) bool {
	return t.cfg.Pads == PadsNative && len(t.cfg.MediaTokens) > 0 && slices.ContainsFunc(tokens, t.isMediaToken)
}
