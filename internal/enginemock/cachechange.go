package enginemock

import (
	"encoding/binary"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// changeKind is the kind of a cache change.
type changeKind uint8

const (
	blockStored changeKind = iota
	blockRemoved
	allCleared
)

// tags are the names of the kinds in every dialect with events over ZeroMQ.
var tags = [...]string{"BlockStored", "BlockRemoved", "AllBlocksCleared"}

// cacheChange is one change of an engine's cache, as the engine would publish it.
type cacheChange struct {
	kind   changeKind
	names  []uint64 // the engine's names of the blocks
	parent uint64   // name of the block before the first; 0 at the start of a prompt
	tokens []kv.Token
	keys   [][]mediaKey // media keys of each block
	size   int          // tokens per block
	salt   kv.Salt
	first  bool // names[0] starts a prompt, and carries the salt
	medium string
	level  int // TensorRT-LLM's number of the medium
	group  int // cache group; 1 is the group with a sliding window
}

// mediaKeysAt returns the media keys of block i; events without tokens have none.
func (c *cacheChange) mediaKeysAt(i int) []mediaKey {
	if i < len(c.keys) {
		return c.keys[i]
	}
	return nil
}

// blockNamer gives blocks the names of one engine instance: as with a seeded hash function, they differ per
// instance.
type blockNamer uint64

func (n blockNamer) blockName(seq kv.SeqHash) uint64 {
	v := splitmix.Mix(uint64(n) ^ splitmix.Mix(uint64(seq)))
	return max(v, 1) // 0 means none
}

// longHash is the long form of a name: 32 bytes that end with it.
func longHash(name uint64) []byte {
	d := make([]byte, 0, 32)
	for i := range uint64(3) {
		d = binary.BigEndian.AppendUint64(d, splitmix.Mix(name+i*splitmix.Step))
	}
	return binary.BigEndian.AppendUint64(d, name)
}

// eventEncoder encodes batches as a dialect does.
type eventEncoder struct {
	dialect      Dialect
	asMaps       bool // events are maps, not arrays
	binaryHashes bool // names are 32 bytes
	noExtraKeys  bool // without vLLM's extra keys
	noOffsets    bool // vLLM's media keys without offsets
}

// encodeBatch returns the payload of one rank's batch; seconds is its time.
func (f *eventEncoder) encodeBatch(changes []cacheChange, rank int, seconds float64) []byte {
	b := packArray(nil, 3)
	b = packFloat(b, seconds)
	b = packArray(b, len(changes))
	for i := range changes {
		b = f.appendEvent(b, &changes[i])
	}
	return packUint(b, uint64(rank))
}

// appendEvent appends one event.
func (f *eventEncoder) appendEvent(b []byte, c *cacheChange) []byte {
	if f.asMaps {
		return f.appendMapEvent(b, c)
	}
	switch c.kind {
	case allCleared:
		return packString(packArray(b, 1), tags[c.kind])
	case blockRemoved:
		b = packString(packArray(b, 3), tags[c.kind])
		return packOptional(f.appendNames(b, c.names), c.medium)
	}
	salted := f.dialect == SGLang && c.salt.Namespace != ""
	fields := 7
	switch {
	case salted:
		fields = 8
	case f.dialect.isVLLM() && f.noExtraKeys:
		fields = 8
	case f.dialect.isVLLM():
		fields = 9
	}
	b = packString(packArray(b, fields), tags[c.kind])
	b = f.appendNames(b, c.names)
	b = f.appendParent(b, c)
	b = packTokens(b, c.tokens)
	b = packUint(b, uint64(c.size))
	b = f.appendAdapter(b, c)
	b = packOptional(b, c.medium)
	switch {
	case salted:
		b = packString(packString(packMap(b, 1), "cache_salt"), c.salt.Namespace)
	case f.dialect.isVLLM() && f.noExtraKeys:
		b = packOptional(b, c.salt.LoRA)
	case f.dialect.isVLLM():
		b = f.appendExtraKeys(packOptional(b, c.salt.LoRA), c)
	}
	return b
}

// appendMapEvent appends one event as a map.
func (f *eventEncoder) appendMapEvent(b []byte, c *cacheChange) []byte {
	type field struct {
		key  string
		pack func([]byte) []byte
	}
	text := func(s string) func([]byte) []byte {
		return func(b []byte) []byte { return packOptional(b, s) }
	}
	fields := []field{{"type", text(tags[c.kind])}}
	names := field{"block_hashes", func(b []byte) []byte { return f.appendNames(b, c.names) }}
	switch c.kind {
	case blockRemoved:
		fields = append(fields, names, field{"medium", text(c.medium)})
	case blockStored:
		fields = append(
			fields, names,
			field{"parent_block_hash", func(b []byte) []byte { return f.appendParent(b, c) }},
			field{"token_ids", func(b []byte) []byte { return packTokens(b, c.tokens) }},
			field{"block_size", func(b []byte) []byte { return packUint(b, uint64(c.size)) }},
			field{"lora_id", func(b []byte) []byte { return f.appendAdapter(b, c) }},
			field{"medium", text(c.medium)},
		)
		if f.dialect == SGLang { // SGLang omits absent fields
			for _, named := range []struct{ key, value string }{{"cache_salt", c.salt.Namespace}, {"lora_name", c.salt.LoRA}} {
				if named.value != "" {
					fields = append(fields, field{named.key, text(named.value)})
				}
			}
		} else {
			fields = append(fields, field{"lora_name", text(c.salt.LoRA)})
		}
		switch {
		case f.dialect.isVLLM() && !f.noExtraKeys:
			fields = append(fields, field{"extra_keys", func(b []byte) []byte { return f.appendExtraKeys(b, c) }})
		case f.dialect == TRTLLM:
			fields = append(fields, field{"locality", text("LOCAL")})
			if slices.ContainsFunc(c.keys, func(k []mediaKey) bool { return len(k) > 0 }) {
				fields = append(fields, field{"mm_keys", func(b []byte) []byte { return appendMediaKeys(b, c.keys) }})
			}
			if c.salt.Namespace != "" {
				fields = append(fields, field{"cache_salt", text(c.salt.Namespace)})
			}
		}
	}
	if f.dialect == VLLM && c.kind != allCleared {
		fields = append(fields, field{"group_idx", func(b []byte) []byte { return packUint(b, uint64(c.group)) }})
		if c.kind == blockStored {
			kind := "full_attention"
			if c.group > 0 {
				kind = "sliding_window"
			}
			fields = append(fields, field{"kv_cache_spec_kind", text(kind)})
		}
	}
	b = packMap(b, len(fields))
	for _, field := range fields {
		b = field.pack(packString(b, field.key))
	}
	return b
}

// appendNames appends names of blocks. SGLang's are signed.
func (f *eventEncoder) appendNames(b []byte, names []uint64) []byte {
	b = packArray(b, len(names))
	for _, n := range names {
		b = f.appendName(b, n)
	}
	return b
}

func (f *eventEncoder) appendName(b []byte, n uint64) []byte {
	switch {
	case f.binaryHashes:
		return packBytes(b, longHash(n))
	case f.dialect == SGLang:
		return packInt(b, int64(n))
	}
	return packUint(b, n)
}

func (f *eventEncoder) appendParent(b []byte, c *cacheChange) []byte {
	if c.parent == 0 {
		return packNil(b)
	}
	return f.appendName(b, c.parent)
}

// appendAdapter appends the engine's own number of an adapter; SGLang has none.
func (f *eventEncoder) appendAdapter(b []byte, c *cacheChange) []byte {
	if c.salt.LoRA == "" || f.dialect == SGLang {
		return packNil(b)
	}
	return packUint(b, uint64(loraID(c.salt.LoRA)))
}

// loraID numbers adapters; the numbers only need to differ.
func loraID(name string) uint32 {
	id := uint64(1)
	for i := range len(name) {
		id = splitmix.Mix(id ^ uint64(name[i]))
	}
	return uint32(id>>40) + 1
}

// appendExtraKeys appends vLLM's extra keys: for each block its adapter, then its media, then for the first
// block of a prompt the salt; nil for a block without any.
func (f *eventEncoder) appendExtraKeys(b []byte, c *cacheChange) []byte {
	b = packArray(b, len(c.names))
	for i := range c.names {
		salted := c.salt.Namespace != "" && c.first && i == 0
		n := len(c.mediaKeysAt(i))
		if c.salt.LoRA != "" {
			n++
		}
		if salted {
			n++
		}
		if n == 0 {
			b = packNil(b)
			continue
		}
		b = packArray(b, n)
		if c.salt.LoRA != "" {
			b = packString(b, c.salt.LoRA)
		}
		for _, k := range c.mediaKeysAt(i) {
			if f.noOffsets {
				b = packString(b, k.id)
				continue
			}
			b = packInt(packString(packArray(b, 2), k.id), int64(k.offset))
		}
		if salted {
			b = packString(b, c.salt.Namespace)
		}
	}
	return b
}

// appendMediaKeys appends TensorRT-LLM's mm_keys: the media of each block.
func appendMediaKeys(b []byte, blocks [][]mediaKey) []byte {
	b = packArray(b, len(blocks))
	for _, keys := range blocks {
		b = packArray(b, len(keys))
		for _, k := range keys {
			b = packMap(b, 4)
			b = packString(packString(b, "type"), "mm_key")
			b = packString(packString(b, "hash"), k.contentHash())
			b = packInt(packString(b, "start_offset"), int64(k.offset))
			b = packString(packString(b, "uuid"), k.id)
		}
	}
	return b
}
