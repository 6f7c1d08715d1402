package enginefeed

import (
	"slices"

	"penstock/core/kv"
)

// Pads says which tokens an engine's events have where a prompt shows media.
type Pads uint8

// The ways.
const (
	// PadsNative: the vocabulary's own, as in requests, and who the media are stands in the keys of the block. vLLM.
	PadsNative Pads = iota
	// PadsOfKeys: kv.PadToken of each object's key, and no keys beside them. SGLang, and routers that publish for it.
	PadsOfKeys
	// PadsAbove: ids above the vocabulary that say nothing, and who the media are stands in the keys. TensorRT-LLM.
	PadsAbove
)

// firstPad is the least token that kv.PadToken gives: no vocabulary is as large.
const firstPad = kv.Token(1_000_000)

// veiledPad stands for every id above the vocabulary.
const veiledPad = ^kv.Token(0)

// The bounds of what is remembered of requests. What is older is forgotten: of blocks that the engine stores so late, those
// that show an object whose key is still known are named by that, others have no name of ours.
const (
	maxShown   = 1 << 16 // blocks
	maxObjects = 1 << 14
	maxTails   = 1 << 12 // prompts
)

// shown remembers how the prompts that show media were sent, so that blocks with other tokens in the place of media
// get the names by which requests know them, whatever tokens of structure a family puts around its media.
type shown struct {
	// blocks are our names of blocks, by what is before them and what the engine will say of them.
	blocks recent[kv.SeqHash, kv.BlockHash]
	// tails are what is known of the last block of a prompt, which answers fill, by what is before it.
	tails recent[kv.SeqHash, tail]
	// pads are objects by the token that stands for them.
	pads recent[kv.Token, object]

	view, native []kv.Token // scratch
}

// tail is the beginning of a block up to where the last of its media ends.
type tail struct {
	view, native []kv.Token
	media        []kv.Media
}

// object is a media object, and the token that holds its rows in requests.
type object struct {
	hash uint64
	pad  kv.Token
}

// recent is a map that forgets what came first when it is full.
type recent[K comparable, V any] struct {
	of    map[K]V
	order []K
	next  int
}

func (r *recent[K, V]) put(key K, v V, most int) {
	if r.of == nil {
		r.of = make(map[K]V)
	}
	if _, known := r.of[key]; !known {
		if len(r.order) < most {
			r.order = append(r.order, key)
		} else {
			delete(r.of, r.order[r.next])
			r.order[r.next] = key
			r.next = (r.next + 1) % most
		}
	}
	r.of[key] = v
}

// Shown says that a prompt that shows media is sent to the engine, before it is: prompt has the tokens of the vocabulary, media
// are in order. It does nothing where the engine's events have those tokens too.
func (t *Table) Shown(prompt []kv.Token, media []kv.Media, salt kv.Salt) {
	if t.cfg.Pads == PadsNative || len(media) == 0 {
		return
	}
	h, err := kv.NewHasher(t.cfg.BlockSize, salt)
	if err != nil {
		return // the size was checked before
	}
	v := &t.shown
	last := t.represent(prompt, media)
	size := t.cfg.BlockSize
	var prev kv.SeqHash
	at := 0
	for ; at+size <= len(prompt) && at < last; at += size {
		name := h.Block(prompt[at:at+size], at, media)
		if inside := t.within(media, at, at+size); len(inside) > 0 {
			v.blocks.put(t.key(h, prev, v.view[at:at+size], inside), name, maxShown)
		}
		prev = kv.Extend(prev, uint32(at/size), name)
	}
	if at < last { // the media reach into a block that is not full
		v.tails.put(prev, tail{
			view: append([]kv.Token(nil), v.view[at:last]...), native: append([]kv.Token(nil), prompt[at:last]...), media: append([]kv.Media(nil), t.within(media, at, last)...),
		}, maxTails)
	}
}

// represent writes a prompt to the view as the engine's events have it, and returns where the last of its media ends.
func (t *Table) represent(prompt []kv.Token, media []kv.Media) (last int) {
	v := &t.shown
	v.view = append(v.view[:0], prompt...)
	for _, m := range media {
		start, end := max(m.Start, 0), min(m.End, len(prompt))
		if start >= end {
			continue
		}
		last = max(last, end)
		pad := t.padOf(prompt[start:end])
		stands := veiledPad
		if t.cfg.Pads == PadsOfKeys {
			stands = kv.PadToken(m.Hash)
			v.pads.put(stands, object{m.Hash, pad}, maxObjects)
		}
		for i := start; i < end; i++ {
			if prompt[i] == pad || t.isMedia(prompt[i]) {
				v.view[i] = stands
			}
		}
	}
	return last
}

// padOf returns which token of an object's range holds its rows: the first that is known to, else the one that it has most of.
func (t *Table) padOf(tokens []kv.Token) kv.Token {
	best, most, run := tokens[0], 0, 0
	for i, token := range tokens {
		if t.isMedia(token) {
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

// isMedia reports whether a token of the vocabulary is known to hold rows of media.
func (t *Table) isMedia(token kv.Token) bool {
	return slices.Contains(t.cfg.MediaTokens, token)
}

// within returns the media that overlap a range of a prompt, as a block has them. The slice is used again.
func (t *Table) within(media []kv.Media, from, to int) []kv.Media {
	t.inside = t.inside[:0]
	for _, m := range media {
		if m.Start < to && m.End > from && m.Start < m.End {
			t.inside = append(t.inside, kv.Media{Hash: m.Hash, Start: 0, End: t.cfg.BlockSize})
		}
	}
	return t.inside
}

// key is what a block is remembered by: what is before it, and what the engine says of it.
func (t *Table) key(h kv.Hasher, prev kv.SeqHash, view []kv.Token, media []kv.Media) kv.SeqHash {
	if t.cfg.Pads == PadsOfKeys {
		media = nil // they are in the tokens
	}
	return kv.Extend(prev, 1, h.Block(view, 0, media))
}

// name returns our name of a block of the engine's tokens and media, behind prev.
func (t *Table) name(h kv.Hasher, prev kv.SeqHash, tokens []kv.Token, media []kv.Media) kv.BlockHash {
	if t.cfg.Pads == PadsNative {
		return h.Block(tokens, 0, media)
	}
	v := &t.shown
	v.view = append(v.view[:0], tokens...)
	odd := false
	for i, token := range v.view {
		if !t.stands(token) {
			continue
		}
		odd = true
		if t.cfg.Pads == PadsAbove {
			v.view[i] = veiledPad
		}
	}
	if name, known := v.blocks.of[t.key(h, prev, v.view, media)]; known {
		return name
	}
	if l, known := v.tails.of[prev]; known && l.begins(v.view, media, t.cfg.Pads) {
		v.native = append(append(v.native[:0], l.native...), v.view[len(l.view):]...)
		return h.Block(v.native, 0, l.media)
	}
	if !odd {
		return h.Block(tokens, 0, media)
	}
	return t.resolved(h, media)
}

// stands reports whether a token of an event stands for a media object.
func (t *Table) stands(token kv.Token) bool {
	if t.cfg.Vocabulary > 0 && int64(token) >= int64(t.cfg.Vocabulary) {
		return true
	}
	return t.cfg.Pads == PadsOfKeys && token >= firstPad
}

// begins reports whether a block is the one that l is the beginning of.
func (l *tail) begins(view []kv.Token, media []kv.Media, pads Pads) bool {
	if len(view) < len(l.view) {
		return false
	}
	for i, token := range l.view {
		if view[i] != token {
			return false
		}
	}
	if pads == PadsOfKeys {
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

// resolved names the block of the view token by token, as far as the objects are known. One that shows an object that is not is
// named by its tokens as they are, which no request here has.
func (t *Table) resolved(h kv.Hasher, media []kv.Media) kv.BlockHash {
	v := &t.shown
	v.native = append(v.native[:0], v.view...)
	t.inside = append(t.inside[:0], media...)
	for i, token := range v.view {
		if !t.stands(token) {
			continue
		}
		if t.cfg.Pads == PadsAbove {
			if len(media) == 0 || len(t.cfg.MediaTokens) == 0 {
				t.stats.Unresolved++
				return h.Block(v.view, 0, media)
			}
			v.native[i] = t.cfg.MediaTokens[0]
			continue
		}
		o, known := v.pads.of[token]
		if !known {
			t.stats.Unresolved++
			return h.Block(v.view, 0, nil)
		}
		v.native[i] = o.pad
		t.inside = append(t.inside, kv.Media{Hash: o.hash, Start: 0, End: t.cfg.BlockSize})
	}
	return h.Block(v.native, 0, t.inside)
}

// faceless reports whether a block of an event without keys shows media: all pictures would have one name. An event that
// has keys, and none for such a block, is of a text with those tokens, as a model may write it.
func (t *Table) faceless(tokens []kv.Token) bool {
	return t.cfg.Pads == PadsNative && len(t.cfg.MediaTokens) > 0 && slices.ContainsFunc(tokens, t.isMedia)
}
