package engineevents

import (
	"cmp"
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
	interner stringInterner
	current  batchReader // the batch being read
}

// Decode reads payload, a batch in msgpack, into b. Batches and events may be arrays or maps, and may have
// unknown fields among the known ones. It allocates only where b's memory is too small, and in proportion
// to payload, whatever lengths the payload claims.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	b.reset()
	if len(payload) > MaxPayload {
		return errTooLarge
	}
	c := &d.current
	*c = batchReader{msgpackReader: msgpackReader{buf: payload}, interner: &d.interner, b: b}
	ok, tooLarge := c.readBatch() && c.remaining() == 0, c.tooLarge
	*c = batchReader{}
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
	*b = Batch{Rank: -1, Events: b.Events[:0], mem: batchMemory{m.hashes[:0], m.tokens[:0], m.extra[:0], m.keys[:0], m.text[:0]}}
	if cap(b.Events) > maxEvents/16 {
		b.Events = nil
	}
	if cap(b.mem.hashes) > maxHashes/16 || cap(b.mem.tokens) > maxTokens/16 || cap(b.mem.keys) > maxKeys/16 || cap(b.mem.text) > MaxPayload/64 {
		b.mem = batchMemory{}
	}
}

// memoryLengths holds the lengths of a batch's memory.
type memoryLengths struct{ hashes, tokens, extra, keys, text int }

func (m *batchMemory) lengths() memoryLengths {
	return memoryLengths{len(m.hashes), len(m.tokens), len(m.extra), len(m.keys), len(m.text)}
}

// truncateTo releases what was appended since the lengths were taken.
func (m *batchMemory) truncateTo(to memoryLengths) {
	m.hashes, m.tokens, m.extra, m.keys, m.text = m.hashes[:to.hashes], m.tokens[:to.tokens], m.extra[:to.extra], m.keys[:to.keys], m.text[:to.text]
}

// batchReader reads one batch.
type batchReader struct {
	msgpackReader
	interner *stringInterner
	b        *Batch
	eventMetadata
	tooLarge  bool
	hasHashes bool // the event being read has block_hashes, even if empty
}

// readBatch reads [time, events, rank, ...] or the map of those fields.
func (c *batchReader) readBatch() bool {
	if c.isMap() {
		n, ok := c.readMapHeader()
		for ; ok && n > 0; n-- {
			ok = c.readBatchField()
		}
		return ok
	}
	n, ok := c.readArrayHeader()
	if !ok || n < 2 || !c.readTime() || !c.readEvents() {
		return false
	}
	if n > 2 && !c.readRank() {
		return false
	}
	for ; n > 3; n-- {
		if !c.skipValue() {
			return false
		}
	}
	return true
}

func (c *batchReader) readBatchField() bool {
	key, ok := c.readString()
	if !ok {
		return false
	}
	switch string(key) {
	case "ts":
		return c.readTime()
	case "events":
		return c.readEvents()
	case "data_parallel_rank", "attn_dp_rank":
		return c.readRank()
	}
	return c.skipValue()
}

func (c *batchReader) readTime() (ok bool) {
	if c.readNil() {
		return true
	}
	c.b.Time, ok = c.readFloat()
	return ok
}

func (c *batchReader) readRank() bool {
	if c.readNil() {
		return true
	}
	v, high, ok := c.readInteger()
	if high || v < -1 || v > 1<<20 {
		return false
	}
	c.b.Rank = int(v)
	return ok
}

func (c *batchReader) readEvents() bool {
	if c.readNil() {
		return true
	}
	n, ok := c.readArrayHeader()
	if !ok || n > maxEvents-len(c.b.Events) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	for range n {
		if !c.readEvent() {
			return false
		}
	}
	return true
}

// readEvent reads one event. It counts and skips an event which is valid msgpack and cannot be parsed.
func (c *batchReader) readEvent() bool {
	if c.readNil() {
		return true
	}
	start, marks := c.pos, c.b.mem.lengths()
	e := Event{Group: -1}
	c.hasHashes = false
	c.startEvent()
	var ok bool
	switch {
	case c.isArray():
		ok = c.readArrayEvent(&e)
	case c.isMap():
		ok = c.readMapEvent(&e)
	}
	if ok = ok && (c.hasHashes || e.Kind != Stored && e.Kind != Removed && e.Kind != Moved) && c.finishEvent(&e); ok && e.Kind != 0 {
		c.b.Events = append(c.b.Events, e)
		return true
	}
	c.b.mem.truncateTo(marks)
	if c.tooLarge {
		return false
	}
	if ok {
		c.b.Unknown++
		return true
	}
	// The event cannot be parsed: msgpack still says where it ends.
	c.pos = start
	tag, tagged := c.findEventType()
	c.pos = start
	if !c.skipValue() {
		return false
	}
	switch kind := parseEventKind(tag); {
	case kind == Stored:
		c.b.Skipped++
	case kind == Moved:
		c.b.LostMoves++
	case kind != 0, !tagged:
		c.b.Lost++
	default:
		c.b.Unknown++
	}
	return true
}

// findEventType finds the type of the event which starts here.
func (c *batchReader) findEventType() (tag []byte, ok bool) {
	if c.isArray() {
		if n, ok := c.readArrayHeader(); !ok || n == 0 {
			return nil, false
		}
		return c.readString()
	}
	if !c.isMap() {
		return nil, false
	}
	n, ok := c.readMapHeader()
	for ; ok && n > 0; n-- {
		key, isText := c.readString()
		if !isText {
			return nil, false
		}
		if string(key) == "type" {
			return c.readString()
		}
		ok = c.skipValue()
	}
	return nil, false
}

func parseEventKind(tag []byte) ChangeKind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	case "CxlStateTransition":
		return Moved
	}
	return 0
}

// eventField is a field of an event.
type eventField uint8

const (
	fieldIgnored eventField = iota
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
	fieldLabels
	fieldMoves
	fieldState
	fieldPool
	fieldAccess
)

// The fields, after the type, of events in array form.
var (
	storedFields  = [...]eventField{fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRA, fieldExtra, fieldGroup, fieldSpec}
	removedFields = [...]eventField{fieldHashes, fieldMedium, fieldGroup}
	movedFields   = [...]eventField{fieldHashes, fieldState, fieldPool, fieldAccess}
)

// readArrayEvent reads an event in array form. Some engines append a map of newer fields.
func (c *batchReader) readArrayEvent(e *Event) bool {
	n, ok := c.readArrayHeader()
	if !ok || n == 0 {
		return false
	}
	tag, ok := c.readString()
	if !ok {
		return false
	}
	var known []eventField
	switch e.Kind = parseEventKind(tag); e.Kind {
	case Stored:
		known = storedFields[:]
		if n < 5 {
			return false
		}
	case Removed:
		known = removedFields[:]
	case Moved:
		known = movedFields[:]
	}
	for i := range n - 1 {
		f := fieldIgnored
		if i < len(known) {
			f = known[i]
		}
		switch {
		case e.Kind != 0 && f != fieldExtra && c.isMap():
			ok = c.readMapEvent(e)
		default:
			ok = c.readField(f, e)
		}
		if !ok {
			return false
		}
	}
	return true
}

// readMapEvent reads an event in map form, or the map at the end of an array.
func (c *batchReader) readMapEvent(e *Event) bool {
	n, ok := c.readMapHeader()
	for ; ok && n > 0; n-- {
		key, isText := c.readString()
		if !isText {
			return false
		}
		if string(key) == "type" {
			tag, isText := c.readString()
			e.Kind = parseEventKind(tag)
			ok = isText
			continue
		}
		ok = c.readField(parseEventField(key), e)
	}
	return ok
}

func parseEventField(key []byte) eventField {
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
	case "moe_metadata":
		return fieldLabels
	case "cxl_metadata":
		return fieldMoves
	case "new_state":
		return fieldState
	case "pool_id":
		return fieldPool
	case "accessible_workers":
		return fieldAccess
	}
	return fieldIgnored
}

// readField reads the value of a field. A nil counts as absent.
func (c *batchReader) readField(f eventField, e *Event) (ok bool) {
	if f == fieldIgnored {
		return c.skipValue()
	}
	if c.readNil() {
		return f != fieldHashes
	}
	switch f {
	case fieldHashes:
		return c.readBlockHashes(e)
	case fieldParent:
		e.Parent, ok = c.readHash()
		e.HasParent = e.Parent != 0 // simulators write 0 for no parent
	case fieldTokens:
		return c.readTokenIDs(e)
	case fieldBlockSize:
		e.BlockSize, ok = c.readBoundedInt(0, 1<<20)
	case fieldGroup:
		e.Group, ok = c.readBoundedInt(-1, 1<<20)
	case fieldLoRAID:
		return c.readLoRAID(e)
	case fieldMedium:
		return c.readMedium(e)
	case fieldLoRA:
		e.LoRA, ok = c.readInterned()
	case fieldSpec:
		e.Spec, ok = c.readInterned()
	case fieldSalt:
		e.Salt, ok = c.readInterned()
	case fieldOrigin:
		origin, isText := c.readString()
		e.Reused, ok = string(origin) == "REUSED", isText
	case fieldExtra:
		return c.readExtraKeys(e)
	case fieldMedia:
		return c.readMediaKeys(e)
	case fieldLabels:
		return c.readLabels()
	case fieldMoves:
		return c.readMoves()
	case fieldState, fieldPool, fieldAccess:
		return c.readTransition(f, e)
	}
	return ok
}

// readBoundedInt reads an integer between least and most.
func (c *batchReader) readBoundedInt(least, most int64) (int, bool) {
	v, high, ok := c.readInteger()
	return int(v), ok && !high && v >= least && v <= most
}

func (c *batchReader) readInterned() (string, bool) {
	b, ok := c.readString()
	if !ok {
		return "", false
	}
	return c.interner.intern(b), true
}

func (c *batchReader) readBlockHashes(e *Event) bool {
	n, ok := c.readArrayHeader()
	m := &c.b.mem
	if !ok || n > maxHashes-len(m.hashes) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	c.hasHashes = true
	from := len(m.hashes)
	m.hashes = slices.Grow(m.hashes, n)[:from+n]
	e.Hashes = m.hashes[from : from+n : from+n]
	return c.readHashes(e.Hashes)
}

// readTokenIDs reads the tokens. If they are pairs, or are not token ids, the event has no tokens.
func (c *batchReader) readTokenIDs(e *Event) bool {
	start := c.pos
	n, ok := c.readArrayHeader()
	m := &c.b.mem
	if !ok || n > maxTokens-len(m.tokens) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	from := len(m.tokens)
	if n > 0 && c.isArray() {
		e.Bigrams = true
		c.pos = start
		return c.skipValue()
	}
	m.tokens = slices.Grow(m.tokens, n)[:from+n]
	if c.readTokens(m.tokens[from:]) {
		e.Tokens = m.tokens[from : from+n : from+n]
		return true
	}
	m.tokens = m.tokens[:from]
	e.InvalidTokens = true
	c.pos = start
	return c.skipValue()
}

func (c *batchReader) readLoRAID(e *Event) bool {
	if c.isString() { // some engines put the name here
		name, ok := c.readInterned()
		e.LoRA = cmp.Or(e.LoRA, name)
		return ok
	}
	v, _, ok := c.readInteger()
	e.LoRAID, e.HasLoRAID = v, ok
	return ok
}

func (c *batchReader) readMedium(e *Event) bool {
	b, ok := c.readString()
	if !ok {
		return false
	}
	e.Medium = commonMediumName(b)
	if e.Medium == "" {
		e.Medium = c.interner.intern(b)
	}
	e.Tier = TierOfMedium(e.Medium)
	return true
}

// stringInterner caches strings which repeat, so that each is allocated once.
type stringInterner struct{ known map[string]string }

// The bounds of stringInterner. Strings above them are allocated each time.
const (
	maxInterned    = 1024
	maxInternedLen = 256
)

func (n *stringInterner) intern(b []byte) string {
	if s, ok := n.known[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) > maxInternedLen {
		return s
	}
	if n.known == nil || len(n.known) >= maxInterned {
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
func commonMediumName(b []byte) string {
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
func TierOfMedium(medium string) kv.Tier {
	switch medium {
	case "", mediumGPU:
		return kv.TierDevice
	case mediumCPU, "CPU_PINNED", "CPU_TIER1", "CPU_TIER2":
		return kv.TierHost
	}
	return kv.TierDisk
}

// isKnownMedium reports whether known engines use this medium name.
func isKnownMedium(medium string) bool {
	switch medium {
	case mediumDisk, "FS", "OBJ", "STORAGE", "SHARED_STORAGE", "EXTERNAL":
		return true
	}
	return TierOfMedium(medium) != kv.TierDisk
}
