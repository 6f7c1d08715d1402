package engineevents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"penstock/core/kv"
)

// PullDecoder reads the events which TensorRT-LLM serves over HTTP: a JSON array of what happened since the
// last request. Events are numbered, and a request consumes them, so missing events cannot be requested
// again. This is not a hot path, and it allocates its memory for each answer.
type PullDecoder struct {
	// BlockSize is the number of tokens in the engine's blocks (tokens_per_block). It must be set: blocks
	// with fewer tokens are not full yet, and are left out.
	BlockSize int
	// Rank is the data-parallel rank whose events are read; -1 means 0. Events without a rank belong to
	// every rank. Each rank numbers its own events, so an answer is read once per rank.
	Rank int

	maxWindow int   // the largest attention window seen
	next      int64 // the number of the next event
	known     bool
}

// The errors of Decode.
var (
	errPullSize  = errors.New("decode events: the answer is larger than any engine's")
	errPullBytes = errors.New("decode events: the answer is no JSON array of events")
)

// pulledEvent is one event of the answer.
type pulledEvent struct {
	ID     *int64          `json:"event_id"`
	Rank   *int            `json:"attention_dp_rank"`
	Window *int            `json:"window_size"`
	Group  *int            `json:"layer_group_id"`
	Data   json.RawMessage `json:"data"`
}

type pulledData struct {
	Type   string            `json:"type"`
	Parent json.RawMessage   `json:"parent_hash"`
	Blocks []pulledBlock     `json:"blocks"`
	Hashes []json.RawMessage `json:"block_hashes"`
	Hash   json.RawMessage   `json:"block_hash"`
	Level  json.RawMessage   `json:"cache_level"`
	LoRA   string            `json:"lora_name"`
	Salt   string            `json:"cache_salt"`
}

type pulledBlock struct {
	Hash   json.RawMessage `json:"block_hash"`
	Tokens []pulledToken   `json:"tokens"`
	Level  int             `json:"cache_level"`
	LoRA   *int64          `json:"lora_id"`
	Media  []pulledMedia   `json:"mm_keys"`
}

type pulledToken struct {
	ID    json.Number `json:"token_id"`
	Extra json.Number `json:"token_extra_id"`
}

type pulledMedia struct {
	Hash   string `json:"hash"`
	UUID   string `json:"uuid"` // the object's name in the request; its hash depends on the content too
	Offset int64  `json:"start_offset"`
}

type pulledLevel struct {
	Old int `json:"old_value"`
	New int `json:"new_value"`
}

// Decode reads data into b. lost says that events before it are missing, or that the engine restarted: the
// table must be cleared before b is applied. It must be cleared after an error too, because the unread
// events are gone.
func (d *PullDecoder) Decode(data []byte, b *Batch) (lost bool, err error) {
	b.reset()
	defer func() { d.known = d.known && err == nil }()
	if len(data) > MaxPayload {
		return false, errPullSize
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return false, errPullBytes
	}
	for n := 0; dec.More(); n++ {
		var p pulledEvent
		if n == maxEvents || dec.Decode(&p) != nil {
			return false, errPullBytes
		}
		if p.Rank != nil {
			if *p.Rank != max(0, d.Rank) {
				continue
			}
			b.Rank = *p.Rank
		}
		if p.ID != nil {
			lost = d.checkNumber(*p.ID, b) || lost
		}
		d.addEvent(&p, b)
	}
	if t, err := dec.Token(); err != nil || t != json.Delim(']') {
		return false, errPullBytes
	}
	if _, err := dec.Token(); err != io.EOF {
		return false, errPullBytes
	}
	return lost, nil
}

// checkNumber records an event's number. It reports whether the event before it is missing, and then resets
// b, because nothing before the gap counts.
func (d *PullDecoder) checkNumber(id int64, b *Batch) bool {
	jumped := d.known && id != d.next
	d.next, d.known = id+1, true
	if jumped {
		b.reset()
	}
	return jumped
}

// addEvent adds the changes of p to b.
func (d *PullDecoder) addEvent(p *pulledEvent, b *Batch) {
	var data pulledData
	err := json.Unmarshal(p.Data, &data)
	group, spec := d.layerGroup(p)
	ok := err == nil
	switch data.Type {
	case "created":
		return
	case "stored":
		if !ok || !d.addStored(&data, group, spec, b) {
			b.Skipped++
		}
	case "removed":
		if !ok || !addRemoved(&data, group, b) {
			b.Lost++
		}
	case "updated":
		if !ok || !addUpdated(&data, group, b) {
			b.Lost++
		}
	default:
		if data.Type == "" {
			b.Lost++
		} else {
			b.Unknown++
		}
	}
}

// layerGroup returns the layer group of p. If layers have several attention windows, the largest one counts
// and the others are sliding: the engine reports all of them when it starts.
func (d *PullDecoder) layerGroup(p *pulledEvent) (group int, spec string) {
	group = -1
	if p.Window != nil {
		group = *p.Window
		d.maxWindow = max(d.maxWindow, *p.Window)
		if *p.Window < d.maxWindow {
			spec = "sliding_window"
		}
	}
	if p.Group != nil {
		group = *p.Group
	}
	return group, spec
}

// addStored adds one store for each run of full blocks of one tier and adapter.
func (d *PullDecoder) addStored(data *pulledData, group int, spec string, b *Batch) bool {
	parent, hasParent, ok := parseJSONParent(data.Parent)
	if !ok {
		return false
	}
	e := Event{}
	for i := range data.Blocks {
		blk := &data.Blocks[i]
		h, ok := parseJSONHash(blk.Hash)
		tokens, extra := d.blockTokens(blk)
		switch {
		case !ok:
			return false
		case len(blk.Tokens) < d.BlockSize:
			continue // the last block, not full
		}
		if e.Hashes == nil || e.Tier != levelTier(blk.Level) || !hasSameLoRA(&e, blk.LoRA) {
			b.appendStored(&e)
			e = Event{Kind: Stored, Parent: parent, HasParent: hasParent, BlockSize: d.BlockSize, Group: group, Spec: spec, LoRA: data.LoRA, Salt: data.Salt}
			e.Tier, e.Medium = levelTier(blk.Level), levelMedium(blk.Level)
			if blk.LoRA != nil {
				e.LoRAID, e.HasLoRAID = *blk.LoRA, true
			}
		}
		e.InvalidTokens = e.InvalidTokens || tokens == nil
		e.Hashes, e.Tokens, e.Extra = append(e.Hashes, h), append(e.Tokens, tokens...), append(e.Extra, extra)
		parent, hasParent = h, true
	}
	b.appendStored(&e)
	return true
}

// appendStored appends a store to b if it has blocks.
func (b *Batch) appendStored(e *Event) {
	if e.Hashes == nil {
		return
	}
	if e.InvalidTokens {
		e.Tokens = nil
	}
	b.Events = append(b.Events, *e)
}

func hasSameLoRA(e *Event, id *int64) bool {
	if id == nil {
		return !e.HasLoRAID
	}
	return e.HasLoRAID && e.LoRAID == *id
}

// blockTokens returns the tokens of a block, or nil if some are not token ids, and the other keys of the
// block. A token's extra id stands for content which is not in the tokens: without a media object which
// explains it, the block cannot be hashed.
func (d *PullDecoder) blockTokens(blk *pulledBlock) ([]kv.Token, Extra) {
	tokens := make([]kv.Token, 0, len(blk.Tokens))
	var x Extra
	for _, m := range blk.Media {
		x.Keys = append(x.Keys, ExtraKey{Kind: KeyMedia, Text: []byte(cmp.Or(m.UUID, m.Hash)), Offset: m.Offset})
	}
	strange := false
	for _, t := range blk.Tokens {
		id, err := strconv.ParseUint(string(t.ID), 10, 32)
		if err != nil {
			return nil, x
		}
		tokens = append(tokens, kv.Token(id))
		strange = strange || t.Extra != "" && t.Extra != "0"
	}
	if strange && len(x.Keys) == 0 {
		x.Keys = []ExtraKey{{Kind: KeyOpaque}}
	}
	return tokens, x
}

func addRemoved(data *pulledData, group int, b *Batch) bool {
	e := Event{Kind: Removed, Group: group, AllTiers: true}
	for _, raw := range data.Hashes {
		h, ok := parseJSONHash(raw)
		if !ok {
			return false
		}
		e.Hashes = append(e.Hashes, h)
	}
	b.Events = append(b.Events, e)
	return true
}

// addUpdated adds the events for a block which moved from one cache level to another.
func addUpdated(data *pulledData, group int, b *Batch) bool {
	h, ok := parseJSONHash(data.Hash)
	if !ok {
		return false
	}
	if len(data.Level) == 0 || string(data.Level) == "null" {
		return true // its priority changed
	}
	var l pulledLevel
	if json.Unmarshal(data.Level, &l) != nil {
		return false
	}
	b.Events = append(b.Events,
		Event{Kind: Stored, Hashes: []kv.EngineHash{h}, Tier: levelTier(l.New), Medium: levelMedium(l.New), Group: group},
		Event{Kind: Removed, Hashes: []kv.EngineHash{h}, Tier: levelTier(l.Old), Medium: levelMedium(l.Old), Group: group})
	return true
}

// levelTier returns the tier of a level of the engine's cache: 0 is the device, 1 the host.
func levelTier(level int) kv.Tier {
	return kv.Tier(min(uint(level), tierCount-1))
}

func levelMedium(level int) string {
	return [...]string{mediumGPU, mediumCPU, mediumDisk}[levelTier(level)]
}

// parseJSONParent parses the parent hash, or null.
func parseJSONParent(raw json.RawMessage) (h kv.EngineHash, has, ok bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, false, true
	}
	h, ok = parseJSONHash(raw)
	return h, h != 0, ok
}

// parseJSONHash parses a hash: a number of either sign, or a text as in msgpack.
func parseJSONHash(raw json.RawMessage) (kv.EngineHash, bool) {
	if len(raw) > 2 && raw[0] == '"' {
		return parseTextHash(raw[1 : len(raw)-1]), true
	}
	if len(raw) > 1 && raw[0] == '-' {
		u, ok := parseDecimal(raw[1:])
		return kv.EngineHash(-u), ok
	}
	u, ok := parseDecimal(raw)
	return kv.EngineHash(u), ok
}
