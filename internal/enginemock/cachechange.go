package enginemock

import (
	"encoding/binary"

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
	dialect      *dialect
	asMaps       bool // events are maps, not arrays
	binaryHashes bool // names are 32 bytes
	noExtraKeys  bool // without vLLM's extra keys
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

// eventField is a field of an event; arrays omit its key.
type eventField struct {
	key  string
	pack func([]byte) []byte
}

// textField is a text, or nil if it is empty.
func textField(key, text string) eventField {
	return eventField{key, func(b []byte) []byte { return packOptional(b, text) }}
}

// appendEvent appends one event.
func (f *eventEncoder) appendEvent(b []byte, c *cacheChange) []byte {
	fields := f.eventFields(c)
	if !f.asMaps {
		b = packArray(b, len(fields))
		for _, field := range fields {
			b = field.pack(b)
		}
		return b
	}
	b = packMap(b, len(fields))
	for _, field := range fields {
		b = field.pack(packString(b, field.key))
	}
	return b
}

// eventFields returns the fields of an event: the fields of all dialects, and then the dialect's own.
func (f *eventEncoder) eventFields(c *cacheChange) []eventField {
	fields := []eventField{textField("type", tags[c.kind])}
	names := eventField{"block_hashes", func(b []byte) []byte { return f.appendNames(b, c.names) }}
	switch c.kind {
	case blockRemoved:
		fields = append(fields, names, textField("medium", c.medium))
	case blockStored:
		fields = append(
			fields, names,
			eventField{"parent_block_hash", func(b []byte) []byte { return f.appendParent(b, c) }},
			eventField{"token_ids", func(b []byte) []byte { return packTokens(b, c.tokens) }},
			eventField{"block_size", func(b []byte) []byte { return packUint(b, uint64(c.size)) }},
			eventField{"lora_id", func(b []byte) []byte { return f.appendAdapter(b, c) }},
			textField("medium", c.medium),
		)
	}
	if f.dialect.extraFields != nil {
		return append(fields, f.dialect.extraFields(f, c)...)
	}
	if f.asMaps && c.kind == blockStored {
		fields = append(fields, textField("lora_name", c.salt.LoRA))
	}
	return fields
}

// appendNames appends names of blocks.
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
	case f.dialect.signedNames:
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
	if c.salt.LoRA == "" || f.dialect.noAdapterIDs {
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
			if f.dialect.noOffsets {
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
