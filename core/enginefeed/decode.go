package enginefeed

import (
	"errors"
	"slices"

	"penstock/core/kv"
)

// Bounds of one batch. No engine comes near them.
const (
	MaxPayload = 64 << 20 // bytes
	maxEvents  = 1 << 16
	maxHashes  = 1 << 20
	maxTokens  = 1 << 24
	maxKeys    = 1 << 18
)

// What Decode returns, wrapped in nothing: they are said often when something is wrong.
var (
	errTooLarge  = errors.New("decode events: the batch is larger than any engine's")
	errMalformed = errors.New("decode events: the batch is cut off, or is no msgpack of the form [time, events, rank]")
)

// Decoder reads batches of events. It keeps memory from one to the next, and nothing of
// what it read but the names of adapters, salts and media. The zero value is ready. It has one user at a time.
type Decoder struct {
	names names
	now   decoding // the batch that is being read
}

// Decode reads payload, a batch in msgpack, into b. Batches and events may be arrays or maps, with fields that are not known
// among those that are. It allocates only where b's memory has not been large enough yet, and in proportion to
// payload, whatever lengths that claims.
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

// reset empties b. Memory that an unusually large batch took is given back.
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

// marks are the lengths of a batch's memory.
type marks struct{ hashes, tokens, extra, keys, text int }

func (m *memory) marks() marks {
	return marks{len(m.hashes), len(m.tokens), len(m.extra), len(m.keys), len(m.text)}
}

// back gives back what was taken since.
func (m *memory) back(to marks) {
	m.hashes, m.tokens, m.extra, m.keys, m.text = m.hashes[:to.hashes], m.tokens[:to.tokens], m.extra[:to.extra], m.keys[:to.keys], m.text[:to.text]
}

// decoding is one batch on its way in.
type decoding struct {
	reader
	names    *names
	b        *Batch
	tooLarge bool
	hasNames bool // the event that is being read has block_hashes, be they none
}

// batch reads [time, events, rank, ...] or the map of them.
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

// event reads one event. One that is msgpack and cannot be understood is counted and passed over.
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
	// Whatever it is: it ends where msgpack says so.
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

// tag finds the type of the event that begins here.
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

// field is a field of an event.
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

// The fields of events that are arrays, behind the type.
var (
	storedFields  = [...]field{fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRA, fieldExtra, fieldGroup, fieldSpec}
	removedFields = [...]field{fieldHashes, fieldMedium, fieldGroup}
)

// positional reads an event that is an array. Some engines put a map of what is new at its end.
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

// pairs reads an event that is a map, or a map at the end of one.
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

// value reads the value of a field; nil is as if it were not there.
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
		e.HasParent = e.Parent != 0 // simulators write 0 where there is none
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

// small reads an integer of a range.
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

// tokenIDs reads the tokens. If they are pairs, or no ids of a vocabulary, the event has none.
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
	if c.isText() { // some have the name here
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

// names are strings that come again and again, so that they are made once.
type names struct{ known map[string]string }

// Bounds of names: more, or longer ones, are made each time.
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

// The media that engines are known to name.
const (
	mediumGPU  = "GPU"
	mediumCPU  = "CPU"
	mediumDisk = "DISK"
)

// mediumName returns the usual names without making a string.
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

// TierOf returns where a medium is. One that is not known is taken for the slowest a worker has of its own.
func TierOf(medium string) kv.Tier {
	switch medium {
	case "", mediumGPU:
		return kv.TierDevice
	case mediumCPU, "CPU_PINNED", "CPU_TIER1", "CPU_TIER2":
		return kv.TierHost
	}
	return kv.TierDisk
}

// knownMedium reports whether a medium is one that engines are known to name.
func knownMedium(medium string) bool {
	switch medium {
	case mediumDisk, "FS", "OBJ", "STORAGE", "SHARED_STORAGE", "EXTERNAL":
		return true
	}
	return TierOf(medium) != kv.TierDisk
}
