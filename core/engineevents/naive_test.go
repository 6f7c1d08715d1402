package engineevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"penstock/core/kv"
)

// A naive twin of Decoder: it decodes everything to values, and inspects those.

type (
	anyBin  string
	anyExt  string
	anyPair struct{ k, v any }
	anyMap  []anyPair
)

var errNaive = errors.New("naive: cut off or no msgpack")

func naiveValue(b []byte) (v any, rest []byte, err error) {
	need := func(n int) ([]byte, error) {
		if n < 0 || len(b) < n {
			return nil, errNaive
		}
		out := b[:n]
		b = b[n:]
		return out, nil
	}
	num := func(n int) (uint64, error) {
		raw, err := need(n)
		if err != nil {
			return 0, err
		}
		return binary.BigEndian.Uint64(append(make([]byte, 8-n), raw...)), nil
	}
	head, err := need(1)
	if err != nil {
		return nil, nil, err
	}
	c := head[0]
	seq := func(n uint64) (any, []byte, error) {
		if n > uint64(len(b)) {
			return nil, nil, errNaive
		}
		out := []any{}
		for range n {
			var x any
			var err error
			if x, b, err = naiveValue(b); err != nil {
				return nil, nil, err
			}
			out = append(out, x)
		}
		return out, b, nil
	}
	dict := func(n uint64) (any, []byte, error) {
		flat, rest, err := seq(2 * n)
		if err != nil {
			return nil, nil, err
		}
		out := anyMap{}
		for i := 0; i < len(flat.([]any)); i += 2 {
			out = append(out, anyPair{flat.([]any)[i], flat.([]any)[i+1]})
		}
		return out, rest, nil
	}
	raw := func(lenBytes, extra int) ([]byte, error) {
		n, err := num(lenBytes)
		if err != nil || n > uint64(len(b)) {
			return nil, errNaive
		}
		return need(int(n) + extra)
	}
	switch {
	case c < 0x80:
		return int64(c), b, nil
	case c < 0x90:
		return dict(uint64(c & 15))
	case c < 0xa0:
		return seq(uint64(c & 15))
	case c < 0xc0:
		s, err := need(int(c & 31))
		return string(s), b, err
	case c >= 0xe0:
		return int64(int8(c)), b, nil
	}
	switch c {
	case 0xc0:
		return nil, b, nil
	case 0xc2, 0xc3:
		return c == 0xc3, b, nil
	case 0xc4, 0xc5, 0xc6:
		s, err := raw(1<<(c-0xc4), 0)
		return anyBin(s), b, err
	case 0xc7, 0xc8, 0xc9:
		s, err := raw(1<<(c-0xc7), 1)
		return anyExt(s), b, err
	case 0xca:
		u, err := num(4)
		return float64(math.Float32frombits(uint32(u))), b, err
	case 0xcb:
		u, err := num(8)
		return math.Float64frombits(u), b, err
	case 0xcc, 0xcd, 0xce, 0xcf:
		u, err := num(1 << (c - 0xcc))
		if u > math.MaxInt64 {
			return u, b, err
		}
		return int64(u), b, err
	case 0xd0:
		u, err := num(1)
		return int64(int8(u)), b, err
	case 0xd1:
		u, err := num(2)
		return int64(int16(u)), b, err
	case 0xd2:
		u, err := num(4)
		return int64(int32(u)), b, err
	case 0xd3:
		u, err := num(8)
		return int64(u), b, err
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		s, err := need(1 + 1<<(c-0xd4))
		return anyExt(s), b, err
	case 0xd9, 0xda, 0xdb:
		s, err := raw(1<<(c-0xd9), 0)
		return string(s), b, err
	case 0xdc, 0xdd:
		n, err := num(2 << (c - 0xdc))
		if err != nil {
			return nil, nil, err
		}
		return seq(n)
	case 0xde, 0xdf:
		n, err := num(2 << (c - 0xde))
		if err != nil || n > uint64(len(b)) {
			return nil, nil, errNaive
		}
		return dict(n)
	}
	return nil, nil, errNaive
}

// naiveBatch reads a batch, or returns an error.
func naiveBatch(payload []byte) (*Batch, error) {
	v, rest, err := naiveValue(payload)
	if err != nil || len(rest) > 0 {
		return nil, errNaive
	}
	b := &Batch{Rank: -1}
	set := func(name string, v any) error {
		switch name {
		case "ts":
			return b.naiveTime(v)
		case "events":
			return b.naiveEvents(v)
		case "data_parallel_rank", "attn_dp_rank":
			if v == nil {
				return nil
			}
			n, ok := v.(int64)
			if !ok || n < -1 || n > 1<<20 {
				return errNaive
			}
			b.Rank = int(n)
		}
		return nil
	}
	switch v := v.(type) {
	case []any:
		if len(v) < 2 {
			return nil, errNaive
		}
		for i, name := range []string{"ts", "events", "data_parallel_rank"} {
			if i < len(v) {
				if err := set(name, v[i]); err != nil {
					return nil, err
				}
			}
		}
	case anyMap:
		for _, p := range v {
			name, ok := p.k.(string)
			if !ok {
				return nil, errNaive
			}
			if err := set(name, p.v); err != nil {
				return nil, err
			}
		}
	default:
		return nil, errNaive
	}
	return b, nil
}

func (b *Batch) naiveTime(v any) error {
	switch v := v.(type) {
	case nil:
	case float64:
		b.Time = v
	case int64:
		b.Time = float64(v)
	case uint64:
		b.Time = float64(v)
	default:
		return errNaive
	}
	return nil
}

func (b *Batch) naiveEvents(v any) error {
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		return errNaive
	}
	for _, v := range list {
		if v == nil {
			continue
		}
		e, tag, err := naiveEvent(v)
		known := map[string]ChangeKind{"BlockStored": Stored, "BlockRemoved": Removed, "AllBlocksCleared": Cleared, "CxlStateTransition": Moved}
		if err == nil && known[tag] != Stored {
			e.Labels, e.Moves = nil, nil
		}
		if err == nil && known[tag] != Moved {
			e.Move = kv.PoolMove{}
		}
		if err == nil {
			if e.Kind = known[tag]; e.Kind == 0 {
				b.Unknown++
			} else {
				b.Events = append(b.Events, *e)
			}
			continue
		}
		switch known[naiveTag(v)] {
		case Stored:
			b.Skipped++
		case Moved:
			b.LostMoves++
		case Removed, Cleared:
			b.Lost++
		default:
			if naiveTag(v) == "\x00" {
				b.Lost++
			} else {
				b.Unknown++
			}
		}
	}
	return nil
}

// naiveTag returns the type of an event, "\x00" if it has none.
func naiveTag(v any) string {
	switch v := v.(type) {
	case []any:
		if len(v) > 0 {
			if s, ok := v[0].(string); ok {
				return s
			}
		}
	case anyMap:
		for _, p := range v {
			k, ok := p.k.(string)
			if !ok {
				return "\x00"
			}
			if k == "type" {
				if s, ok := p.v.(string); ok {
					return s
				}
				return "\x00"
			}
		}
	}
	return "\x00"
}

func naiveEvent(v any) (e *Event, tag string, err error) {
	e = &Event{Group: -1}
	named, badMove := false, false
	var labels, moves any
	var fromMap func(m anyMap) error
	set := func(name string, v any) error {
		if name == "block_hashes" {
			named = true
		}
		switch {
		case v == nil:
		case name == "moe_metadata":
			labels = v
			return nil
		case name == "cxl_metadata":
			moves = v
			return nil
		case name == "new_state", name == "pool_id", name == "accessible_workers":
			e.Move.OfBlocks = true
			badMove = !naiveMoveField(&e.Move, name, v) || badMove
			return nil
		}
		return e.naiveField(name, v)
	}
	fromMap = func(m anyMap) error {
		for _, p := range m {
			k, ok := p.k.(string)
			if !ok {
				return errNaive
			}
			if k == "type" {
				s, ok := p.v.(string)
				if !ok {
					return errNaive
				}
				tag = s
				continue
			}
			if err := set(k, p.v); err != nil {
				return err
			}
		}
		return nil
	}
	switch v := v.(type) {
	case anyMap:
		err = fromMap(v)
	case []any:
		if len(v) == 0 {
			return nil, "", errNaive
		}
		s, ok := v[0].(string)
		if !ok {
			return nil, "", errNaive
		}
		tag = s
		var names []string
		switch tag {
		case "BlockStored":
			if len(v) < 5 {
				return nil, tag, errNaive
			}
			names = strings.Fields("block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx kv_cache_spec_kind")
		case "BlockRemoved":
			names = strings.Fields("block_hashes medium group_idx")
		case "CxlStateTransition":
			names = strings.Fields("block_hashes new_state pool_id accessible_workers")
		case "AllBlocksCleared":
		default:
			return e, tag, nil
		}
		for i, x := range v[1:] {
			name := ""
			if i < len(names) {
				name = names[i]
			}
			if m, ok := x.(anyMap); ok && name != "extra_keys" {
				if err := fromMap(m); err != nil {
					return nil, tag, err
				}
				continue
			}
			if err := set(name, x); err != nil {
				return nil, tag, err
			}
		}
	default:
		return nil, "", errNaive
	}
	if (tag == "BlockStored" || tag == "BlockRemoved" || tag == "CxlStateTransition") && !named {
		err = errNaive
	}
	if tag == "CxlStateTransition" && (badMove || e.Move.To == 0) {
		err = errNaive
	}
	e.Labels = naivePerBlock(labels, len(e.Hashes), naiveLabel)
	e.Moves = naivePerBlock(moves, len(e.Hashes), naiveState)
	return e, tag, err
}

// naivePerBlock returns one element for each of n blocks, of a map for all or of a list of nils and maps.
func naivePerBlock[T any](v any, n int, read func(anyMap) (T, bool)) []T {
	list, isList := v.([]any)
	if m, ok := v.(anyMap); ok {
		for range n {
			list = append(list, m)
		}
		if _, ok := read(m); !ok {
			return nil
		}
	} else if !isList {
		return nil
	}
	if len(list) != n {
		return nil
	}
	all := make([]T, n)
	for i, x := range list {
		m, isMap := x.(anyMap)
		if x == nil {
			continue
		}
		var ok bool
		if all[i], ok = read(m); !isMap || !ok {
			return nil
		}
	}
	return all
}

// naiveNumber returns a number up to most.
func naiveNumber(v any, most int64) (uint64, bool) {
	n, ok := v.(int64)
	return uint64(n), ok && n >= 0 && n <= most
}

func naiveLabel(m anyMap) (l kv.MoELabel, ok bool) {
	seen := map[string]bool{}
	for _, p := range m {
		k, isText := p.k.(string)
		if !isText {
			return l, false
		}
		n, ok := naiveNumber(p.v, math.MaxUint32)
		if seen[k] = true; k == "expert_group" && p.v == nil {
			continue
		}
		switch k {
		case "layer_id":
			l.Layer = uint32(n)
		case "expert_id":
			l.Expert = uint32(n)
		case "expert_group":
			l.Group, l.Has = uint32(n), l.Has|kv.HasGroup
		default:
			ok = true
		}
		if !ok {
			return l, false
		}
	}
	l.Has |= kv.HasExpert
	return l, seen["layer_id"] && seen["expert_id"]
}

func naiveState(m anyMap) (move kv.PoolMove, ok bool) {
	move.OfBlocks = true
	for _, p := range m {
		k, isText := p.k.(string)
		if !isText {
			return move, false
		}
		name := map[string]string{"state": "new_state", "pool_id": "pool_id", "accessible_workers": "accessible_workers"}[k]
		if name == "" || p.v == nil && name != "new_state" {
			continue
		}
		if !naiveMoveField(&move, name, p.v) {
			return move, false
		}
		if len(move.Access) == 0 {
			move.Access = nil
		}
	}
	return move, move.To != 0
}

// naiveMoveField sets a field of a move.
func naiveMoveField(m *kv.PoolMove, name string, v any) bool {
	switch name {
	case "new_state":
		text, _ := v.(string)
		m.To = map[string]kv.PoolState{"local_gpu": 1, "in_transit": 2, "cxl_pooled": 3, "evicted": 4}[text]
		return m.To != 0
	case "pool_id":
		n, ok := naiveNumber(v, math.MaxUint32)
		m.Pool, m.HasPool = kv.PoolID(n), ok
		return ok
	}
	list, ok := v.([]any)
	m.Access = []kv.Worker{}
	for _, x := range list {
		rank := uint64(0)
		if pair, isPair := x.([]any); isPair {
			if len(pair) != 2 {
				return false
			}
			var isRank bool
			if rank, isRank = naiveNumber(pair[1], math.MaxUint32); !isRank {
				return false
			}
			x = pair[0]
		}
		id, isID := naiveNumber(x, int64(kv.MaxWorkerID))
		if !isID {
			return false
		}
		if len(m.Access) < kv.MaxAccess {
			m.Access = append(m.Access, kv.Worker{ID: kv.WorkerID(id), Rank: uint32(rank)})
		}
	}
	return ok
}

func (e *Event) naiveField(name string, v any) error {
	if v == nil {
		if name == "block_hashes" {
			return errNaive
		}
		return nil
	}
	text, isText := v.(string)
	n, isInt := v.(int64)
	list, isList := v.([]any)
	switch name {
	case "block_hashes":
		if !isList {
			return errNaive
		}
		e.Hashes = []kv.EngineHash{}
		for _, x := range list {
			h, ok := naiveHash(x)
			if !ok {
				return errNaive
			}
			e.Hashes = append(e.Hashes, h)
		}
	case "parent_block_hash":
		h, ok := naiveHash(v)
		if !ok {
			return errNaive
		}
		e.Parent, e.HasParent = h, h != 0
	case "token_ids":
		if !isList {
			return errNaive
		}
		return e.naiveTokens(list)
	case "block_size":
		if !isInt || n < 0 || n > 1<<20 {
			return errNaive
		}
		e.BlockSize = int(n)
	case "group_idx":
		if !isInt || n < -1 || n > 1<<20 {
			return errNaive
		}
		e.Group = int(n)
	case "lora_id":
		u, isBig := v.(uint64)
		switch {
		case isText:
			if e.LoRA == "" {
				e.LoRA = text
			}
		case isInt:
			e.LoRAID, e.HasLoRAID = n, true
		case isBig:
			e.LoRAID, e.HasLoRAID = int64(u), true
		default:
			return errNaive
		}
	case "medium", "lora_name", "kv_cache_spec_kind", "cache_salt", "origin":
		if !isText {
			return errNaive
		}
		switch name {
		case "medium":
			e.Medium = text
			e.Tier = map[string]kv.Tier{"GPU": 0, "": 0, "CPU": 1, "CPU_PINNED": 1, "CPU_TIER1": 1, "CPU_TIER2": 1}[text]
			if e.Tier == 0 && text != "GPU" && text != "" {
				e.Tier = 2
			}
		case "lora_name":
			e.LoRA = text
		case "kv_cache_spec_kind":
			e.Spec = text
		case "cache_salt":
			e.Salt = text
		case "origin":
			e.Reused = text == "REUSED"
		}
	case "extra_keys":
		return e.naiveExtra(list, isList, naiveKey)
	case "mm_keys":
		if len(e.Extra) == 0 {
			return e.naiveExtra(list, isList, naiveMediaKey)
		}
	}
	return nil
}

func (e *Event) naiveTokens(list []any) error {
	if len(list) > 0 {
		if _, pair := list[0].([]any); pair {
			e.Bigrams = true
			return nil
		}
	}
	tokens := []kv.Token{}
	for _, x := range list {
		n, ok := x.(int64)
		if s, isText := x.(string); isText {
			u, err := strconv.ParseUint(s, 10, 64)
			n, ok = int64(u), err == nil && s[0] != '+' && u <= math.MaxUint32 && len(s) <= 20
		}
		if !ok || n < 0 || n > math.MaxUint32 {
			e.InvalidTokens = true
			return nil
		}
		tokens = append(tokens, kv.Token(n))
	}
	e.Tokens = tokens
	return nil
}

func (e *Event) naiveExtra(list []any, isList bool, key func(any) ExtraKey) error {
	if !isList {
		return errNaive
	}
	e.Extra = []Extra{}
	for _, x := range list {
		var keys []ExtraKey
		if x != nil {
			inner, many := x.([]any)
			if !many {
				inner = []any{x}
			}
			for _, k := range inner {
				if k != nil {
					keys = append(keys, key(k))
				}
			}
		}
		e.Extra = append(e.Extra, Extra{keys})
	}
	return nil
}

func naiveKey(v any) ExtraKey {
	if s, ok := v.(string); ok {
		return ExtraKey{Kind: KeyText, Text: []byte(s)}
	}
	if m, ok := v.(anyMap); ok {
		return naiveTypedKey(m)
	}
	if l, ok := v.([]any); ok && len(l) == 2 {
		s, isText := l[0].(string)
		n, isInt := l[1].(int64)
		if isText && isInt {
			return ExtraKey{Kind: KeyMedia, Text: []byte(s), Offset: n}
		}
	}
	return ExtraKey{Kind: KeyOpaque}
}

func naiveTypedKey(m anyMap) ExtraKey {
	var k ExtraKey
	for _, p := range m {
		name, ok := p.k.(string)
		text, isText := p.v.(string)
		switch {
		case !ok:
			return ExtraKey{Kind: KeyOpaque}
		case name == "type" && isText:
			k.Kind = map[string]KeyKind{"MultiModalKey": KeyMedia, "LoRAKey": KeyLoRA, "CacheSaltKey": KeySalt}[text]
		case isText && (name == "hash" || name == "identifier" || name == "name" || name == "salt"):
			k.Text = []byte(text)
		case name == "offset" || name == "block_offset":
			switch n := p.v.(type) {
			case nil:
			case int64:
				k.Offset = n
			case uint64:
				k.Offset = int64(n)
			default:
				return ExtraKey{Kind: KeyOpaque}
			}
		}
	}
	if k.Kind == 0 || len(k.Text) == 0 {
		return ExtraKey{Kind: KeyOpaque}
	}
	return k
}

func naiveMediaKey(v any) ExtraKey {
	m, ok := v.(anyMap)
	if !ok {
		return ExtraKey{Kind: KeyOpaque}
	}
	k := ExtraKey{Kind: KeyMedia}
	named := false
	for _, p := range m {
		name, ok := p.k.(string)
		if !ok {
			return ExtraKey{Kind: KeyOpaque}
		}
		switch name {
		case "hash":
			if s, ok := p.v.(string); ok && !named {
				k.Text = []byte(s)
			}
		case "uuid":
			if s, ok := p.v.(string); ok && s != "" {
				k.Text, named = []byte(s), true
			}
		case "start_offset":
			switch n := p.v.(type) {
			case nil:
			case int64:
				k.Offset = n
			case uint64:
				k.Offset = int64(n)
			default:
				return ExtraKey{Kind: KeyOpaque}
			}
		}
	}
	if len(k.Text) == 0 {
		return ExtraKey{Kind: KeyOpaque}
	}
	return k
}

func naiveHash(v any) (kv.EngineHash, bool) {
	last := func(s string) (kv.EngineHash, bool) {
		if s == "" {
			return 0, false
		}
		b := append(make([]byte, 8), s...)
		return kv.EngineHash(binary.BigEndian.Uint64(b[len(b)-8:])), true
	}
	switch v := v.(type) {
	case int64:
		return kv.EngineHash(v), true
	case uint64:
		return kv.EngineHash(v), true
	case anyBin:
		return last(string(v))
	case string:
		plain := strings.TrimPrefix(v, "-")
		if u, err := strconv.ParseUint(plain, 10, 64); err == nil && plain[0] != '+' && len(plain) <= 20 {
			if plain != v {
				u = -u
			}
			return kv.EngineHash(u), true
		}
		if len(v) >= 16 && strings.Trim(v, "0123456789abcdefABCDEF") == "" {
			u, err := strconv.ParseUint(v[len(v)-16:], 16, 64)
			return kv.EngineHash(u), err == nil
		}
		return last(v)
	}
	return 0, false
}

// sameBatch returns how two batches differ, "" if they do not. Slices of length 0 are equal.
func sameBatch(a, b *Batch) string {
	if a.Time != b.Time && !(math.IsNaN(a.Time) && math.IsNaN(b.Time)) || a.Rank != b.Rank || a.Unknown != b.Unknown || a.Skipped != b.Skipped || a.Lost != b.Lost || a.LostMoves != b.LostMoves || len(a.Events) != len(b.Events) {
		return fmt.Sprintf("%v %d, %d events, %d unknown, %d skipped, %d and %d lost beside %v %d, %d events, %d unknown, %d skipped, %d and %d lost",
			a.Time, a.Rank, len(a.Events), a.Unknown, a.Skipped, a.Lost, a.LostMoves, b.Time, b.Rank, len(b.Events), b.Unknown, b.Skipped, b.Lost, b.LostMoves)
	}
	for i := range a.Events {
		if x, y := fmt.Sprintf("%+v", a.Events[i]), fmt.Sprintf("%+v", b.Events[i]); x != y {
			return fmt.Sprintf("event %d is\n%s beside\n%s", i, x, y)
		}
	}
	return ""
}
