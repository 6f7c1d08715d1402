package enginefeed

import (
	"errors"
	"slices"

	"penstock/core/kv"
)

// The bounds of one batch. Real engines stay far below them.
const (
	MaxPayload = 64 << 20 // bytes
	maxEvents  = 1 << 16
	maxHashes  = 1 << 20
	maxTokens  = 1 << 24
	maxKeys    = 1 << 18
)

// The errors of Decode. They are not wrapped, because a broken feed returns them often.
var (
	errTooLarge  = errors.New("decode events: the batch is larger than any engine's")
	errMalformed = errors.New("decode events: the batch is cut off, or is no msgpack of the form [time, events, rank]")
)

// Decoder reads batches of events. It keeps its memory from batch to batch. Of a batch's contents it keeps
// only interned names of adapters, salts and media. The zero value is ready. It must have one user at a
// time.
type Decoder struct {
	names names
	now   decoding // the batch being read
}

// Decode reads payload, a batch in msgpack, into b. Batches and events may be arrays or maps, and may have
// unknown fields among the known ones. It allocates only where b's memory is too small, and in proportion
// to payload, whatever lengths the payload claims.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	b.reset()
	if len(payload) > MaxPayload {
		return errTooLarge
	}
	c := &d.now
	*c = decoding{reader: reader{buf: payload}, names: &d.names, b: b}
	ok, tooLarge := c.batch() && c.rest() == 0, c.tooLarge
	*c = decoding{}
	if ok {
		return nil
	}
	b.reset()
	if tooLarge {
		return errTooLarge
	}
	return errMalformed
}

// reset empties b. It releases the memory of an unusually large batch.
func (b *Batch) reset() {
	m := &b.mem
	*b = Batch{Rank: -1, Events: b.Events[:0], mem: memory{m.hashes[:0], m.tokens[:0], m.extra[:0], m.keys[:0], m.text[:0]}}
	if cap(b.Events) > maxEvents/16 {
		b.Events = nil
	}
	if cap(b.mem.hashes) > maxHashes/16 || cap(b.mem.tokens) > maxTokens/16 || cap(b.mem.keys) > maxKeys/16 || cap(b.mem.text) > MaxPayload/64 {
		b.mem = memory{}
	}
}

// memoryLengths holds the lengths of a batch's memory.
type marks struct{ hashes, tokens, extra, keys, text int }

func (m *memory) marks() marks {
	return marks{len(m.hashes), len(m.tokens), len(m.extra), len(m.keys), len(m.text)}
}

// truncateTo releases what was appended since the lengths were taken.
func (m *memory) back(to marks) {
	m.hashes, m.tokens, m.extra, m.keys, m.text = m.hashes[:to.hashes], m.tokens[:to.tokens], m.extra[:to.extra], m.keys[:to.keys], m.text[:to.text]
}

// batchReader reads one batch.
type decoding struct {
	reader
	names    *names
	b        *Batch
	tooLarge bool
	hasNames bool // the event being read has block_hashes, even if empty
}

// readBatch reads [time, events, rank, ...] or the map of those fields.
func (c *decoding) batch() bool {
	if c.isMap() {
		n, ok := c.fields()
		for ; ok && n > 0; n-- {
			ok = c.batchField()
		}
		return ok
	}
	n, ok := c.array()
	if !ok || n < 2 || !c.time() || !c.events() {
		return false
	}
	if n > 2 && !c.rank() {
		return false
	}
	for ; n > 3; n-- {
		if !c.skip() {
			return false
		}
	}
	return true
}

func (c *decoding) batchField() bool {
	key, ok := c.text()
	if !ok {
		return false
	}
	switch string(key) {
	case "ts":
		return c.time()
	case "events":
		return c.events()
	case "data_parallel_rank", "attn_dp_rank":
		return c.rank()
	}
	return c.skip()
}

func (c *decoding) time() (ok bool) {
	if c.null() {
		return true
	}
	c.b.Time, ok = c.number()
	return ok
}

func (c *decoding) rank() bool {
	if c.null() {
		return true
	}
	v, high, ok := c.integer()
	if high || v < -1 || v > 1<<20 {
		return false
	}
	c.b.Rank = int(v)
	return ok
}

func (c *decoding) events() bool {
	if c.null() {
		return true
	}
	n, ok := c.array()
	if !ok || n > maxEvents-len(c.b.Events) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	for range n {
		if !c.event() {
			return false
		}
	}
	return true
}

// readEvent reads one event. It counts and skips an event which is valid msgpack and cannot be parsed.
func (c *decoding) event() bool {
	if c.null() {
		return true
	}
	start, marks := c.at, c.b.mem.marks()
	e := Event{Group: -1}
	c.hasNames = false
	var ok bool
	switch {
	case c.isArray():
		ok = c.positional(&e)
	case c.isMap():
		ok = c.pairs(&e)
	}
	if ok = ok && (c.hasNames || e.Kind != Stored && e.Kind != Removed); ok && e.Kind != 0 {
		c.b.Events = append(c.b.Events, e)
		return true
	}
	c.b.mem.back(marks)
	if c.tooLarge {
		return false
	}
	if ok {
		c.b.Unknown++
		return true
	}
	// The event cannot be parsed: msgpack still says where it ends.
	c.at = start
	tag, tagged := c.tag()
	c.at = start
	if !c.skip() {
		return false
	}
	switch kind := kindOf(tag); {
	case kind == Stored:
		c.b.Skipped++
	case kind != 0, !tagged:
		c.b.Lost++
	default:
		c.b.Unknown++
	}
	return true
}

// findEventType finds the type of the event which starts here.
func (c *decoding) tag() (tag []byte, ok bool) {
	if c.isArray() {
		if n, ok := c.array(); !ok || n == 0 {
			return nil, false
		}
		return c.text()
	}
	if !c.isMap() {
		return nil, false
	}
	n, ok := c.fields()
	for ; ok && n > 0; n-- {
		key, isText := c.text()
		if !isText {
			return nil, false
		}
		if string(key) == "type" {
			return c.text()
		}
		ok = c.skip()
	}
	return nil, false
}

func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	}
	return 0
}

// eventField is a field of an event.
type field uint8

const (
	ignored field = iota
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRA
	fieldExtra
	fieldGroup
	fieldSpec
	fieldSalt
	fieldOrigin
	fieldMedia
)

// The fields, after the type, of events in array form.
var (
	storedFields  = [...]field{fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRA, fieldExtra, fieldGroup, fieldSpec}
	removedFields = [...]field{fieldHashes, fieldMedium, fieldGroup}
)

// readArrayEvent reads an event in array form. Some engines append a map of newer fields.
func (c *decoding) positional(e *Event) bool {
	n, ok := c.array()
	if !ok || n == 0 {
		return false
	}
	tag, ok := c.text()
	if !ok {
		return false
	}
	var known []field
	switch e.Kind = kindOf(tag); e.Kind {
	case Stored:
		known = storedFields[:]
		if n < 5 {
			return false
		}
	case Removed:
		known = removedFields[:]
	}
	for i := range n - 1 {
		f := ignored
		if i < len(known) {
			f = known[i]
		}
		switch {
		case e.Kind != 0 && f != fieldExtra && c.isMap():
			ok = c.pairs(e)
		default:
			ok = c.value(f, e)
		}
		if !ok {
			return false
		}
	}
	return true
}

// readMapEvent reads an event in map form, or the map at the end of an array.
func (c *decoding) pairs(e *Event) bool {
	n, ok := c.fields()
	for ; ok && n > 0; n-- {
		key, isText := c.text()
		if !isText {
			return false
		}
		if string(key) == "type" {
			tag, isText := c.text()
			e.Kind = kindOf(tag)
			ok = isText
			continue
		}
		ok = c.value(fieldOf(key), e)
	}
	return ok
}

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRA
	case "extra_keys":
		return fieldExtra
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpec
	case "cache_salt":
		return fieldSalt
	case "origin":
		return fieldOrigin
	case "mm_keys":
		return fieldMedia
	}
	return ignored
}

// readField reads the value of a field. A nil counts as absent.
func (c *decoding) value(f field, e *Event) (ok bool) {
	if f == ignored {
		return c.skip()
	}
	if c.null() {
		return f != fieldHashes
	}
	switch f {
	case fieldHashes:
		return c.blockHashes(e)
	case fieldParent:
		e.Parent, ok = c.hash()
		e.HasParent = e.Parent != 0 // simulators write 0 for no parent
	case fieldTokens:
		return c.tokenIDs(e)
	case fieldBlockSize:
		e.BlockSize, ok = c.small(0, 1<<20)
	case fieldGroup:
		e.Group, ok = c.small(-1, 1<<20)
	case fieldLoRAID:
		return c.loraID(e)
	case fieldMedium:
		return c.medium(e)
	case fieldLoRA:
		e.LoRA, ok = c.name()
	case fieldSpec:
		e.Spec, ok = c.name()
	case fieldSalt:
		e.Salt, ok = c.name()
	case fieldOrigin:
		origin, isText := c.text()
		e.Reused, ok = string(origin) == "REUSED", isText
	case fieldExtra:
		return c.extra(e)
	case fieldMedia:
		return c.mediaKeys(e)
	}
	return ok
}

// readBoundedInt reads an integer between least and most.
func (c *decoding) small(least, most int64) (int, bool) {
	v, high, ok := c.integer()
	return int(v), ok && !high && v >= least && v <= most
}

func (c *decoding) name() (string, bool) {
	b, ok := c.text()
	if !ok {
		return "", false
	}
	return c.names.of(b), true
}

func (c *decoding) blockHashes(e *Event) bool {
	n, ok := c.array()
	m := &c.b.mem
	if !ok || n > maxHashes-len(m.hashes) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	c.hasNames = true
	from := len(m.hashes)
	m.hashes = slices.Grow(m.hashes, n)[:from+n]
	e.Hashes = m.hashes[from : from+n : from+n]
	return c.hashes(e.Hashes)
}

// readTokenIDs reads the tokens. If they are pairs, or are not token ids, the event has no tokens.
func (c *decoding) tokenIDs(e *Event) bool {
	start := c.at
	n, ok := c.array()
	m := &c.b.mem
	if !ok || n > maxTokens-len(m.tokens) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	from := len(m.tokens)
	if n > 0 && c.isArray() {
		e.Pairs = true
		c.at = start
		return c.skip()
	}
	m.tokens = slices.Grow(m.tokens, n)[:from+n]
	if c.tokens(m.tokens[from:]) {
		e.Tokens = m.tokens[from : from+n : from+n]
		return true
	}
	m.tokens = m.tokens[:from]
	e.Odd = true
	c.at = start
	return c.skip()
}

func (c *decoding) loraID(e *Event) bool {
	if c.isText() { // some engines put the name here
		name, ok := c.name()
		if e.LoRA == "" {
			e.LoRA = name
		}
		return ok
	}
	v, _, ok := c.integer()
	e.LoRAID, e.HasLoRAID = v, ok
	return ok
}

func (c *decoding) medium(e *Event) bool {
	b, ok := c.text()
	if !ok {
		return false
	}
	e.Medium = mediumName(b)
	if e.Medium == "" {
		e.Medium = c.names.of(b)
	}
	e.Tier = TierOf(e.Medium)
	return true
}

// stringInterner caches strings which repeat, so that each is allocated once.
type names struct{ known map[string]string }

// The bounds of stringInterner. Strings above them are allocated each time.
const (
	maxNames = 1024
	maxName  = 256
)

func (n *names) of(b []byte) string {
	if s, ok := n.known[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) > maxName {
		return s
	}
	if n.known == nil || len(n.known) >= maxNames {
		n.known = make(map[string]string)
	}
	n.known[s] = s
	return s
}

// The media names in common use.
const (
	mediumGPU  = "GPU"
	mediumCPU  = "CPU"
	mediumDisk = "DISK"
)

// commonMediumName returns a common medium name without allocating a string.
func mediumName(b []byte) string {
	switch string(b) {
	case mediumGPU:
		return mediumGPU
	case mediumCPU:
		return mediumCPU
	case mediumDisk:
		return mediumDisk
	}
	return ""
}

// TierOfMedium returns the tier of a medium. An unknown medium counts as the slowest tier which a worker
// has.
func TierOf(medium string) kv.Tier {
	switch medium {
	case "", mediumGPU:
		return kv.TierDevice
	case mediumCPU, "CPU_PINNED", "CPU_TIER1", "CPU_TIER2":
		return kv.TierHost
	}
	return kv.TierDisk
}

// isKnownMedium reports whether known engines use this medium name.
func knownMedium(medium string) bool {
	switch medium {
	case mediumDisk, "FS", "OBJ", "STORAGE", "SHARED_STORAGE", "EXTERNAL":
		return true
	}
	return TierOf(medium) != kv.TierDisk
}
