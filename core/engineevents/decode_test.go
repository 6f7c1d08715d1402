package engineevents

import (
	"encoding/hex"
	"math/rand/v2"
	"testing"
)

// dialect generates batches of every shape which engines use, and of some which none uses.
type dialect struct {
	*rand.Rand
	e encoder
}

func (d *dialect) maybe(of int) bool { return d.IntN(of) == 0 }

// batch writes a batch, as an array or a map.
func (d *dialect) batch() []byte {
	d.e = encoder{draw: d.Rand}
	if d.maybe(4) {
		n := d.IntN(4)
		d.e.fields(2 + n)
		order := d.Perm(2 + n)
		for _, i := range order {
			switch i {
			case 0:
				d.e.str("ts")
				d.time()
			case 1:
				d.e.str("events")
				d.events()
			case 2:
				d.e.str([]string{"data_parallel_rank", "attn_dp_rank"}[d.IntN(2)])
				d.rank()
			default:
				d.e.str("news")
				d.anything(3)
			}
		}
		return d.e.b
	}
	n := 2 + d.IntN(4)
	d.e.array(n)
	d.time()
	d.events()
	if n > 2 {
		d.rank()
	}
	for ; n > 3; n-- {
		d.anything(3)
	}
	return d.e.b
}

func (d *dialect) time() {
	switch d.IntN(4) {
	case 0:
		d.e.float32(float32(d.Float64()))
	case 1:
		d.e.int(d.Int64())
	case 2:
		d.e.nil()
	default:
		d.e.float(d.Float64() * 2e9)
	}
}

func (d *dialect) rank() {
	if d.maybe(2) {
		d.e.nil()
		return
	}
	d.e.int(int64(d.IntN(9)))
}

func (d *dialect) events() {
	if d.maybe(30) {
		d.e.nil()
		return
	}
	n := d.IntN(6)
	d.e.array(n)
	for range n {
		d.event()
	}
}

var fieldNames = []string{
	"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
	"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "session_id", "cache_salt", "origin", "mm_keys",
	"moe_metadata", "cxl_metadata", "new_state", "pool_id", "accessible_workers",
}

func (d *dialect) event() {
	tag := []string{"BlockStored", "BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared", "BlocksTaught", "CxlStateTransition"}[d.IntN(7)]
	if d.maybe(40) {
		d.anything(2)
		return
	}
	if d.maybe(2) {
		pick := d.Perm(len(fieldNames))[:d.IntN(len(fieldNames))]
		if d.maybe(2) {
			pick = append(pick, 0)
		}
		n := 1 + len(pick)
		at := d.IntN(n)
		if d.maybe(30) {
			at = -1 // no type
			n--
		}
		d.e.fields(n)
		for i := range n {
			if i == at {
				d.e.str("type")
				d.e.str(tag)
				continue
			}
			p := i
			if at >= 0 && i > at {
				p--
			}
			d.e.str(fieldNames[pick[p]])
			d.field(fieldNames[pick[p]])
		}
		return
	}
	fields := fieldNames[:0:0]
	switch tag {
	case "BlockStored":
		fields = append(fields, fieldNames[:11]...)
		fields = append(fields, "news", "news")[:d.IntN(14)]
	case "BlockRemoved":
		fields = append(fields, "block_hashes", "medium", "group_idx", "news")[:d.IntN(5)]
	case "CxlStateTransition":
		fields = append(fields, "block_hashes", "new_state", "pool_id", "accessible_workers", "news")[:d.IntN(6)]
	default:
		fields = append(fields, "news", "news")[:d.IntN(3)]
	}
	tail := d.maybe(5)
	n := 1 + len(fields)
	if tail {
		n++
	}
	d.e.array(n)
	d.e.str(tag)
	for _, f := range fields {
		d.field(f)
	}
	if tail {
		d.e.fields(3)
		d.e.str("cache_salt")
		d.field("cache_salt")
		d.e.str("moe_metadata")
		d.field("moe_metadata")
		d.e.str("session_id")
		d.anything(1)
	}
}

func (d *dialect) field(name string) {
	switch {
	case d.maybe(60):
		d.anything(2)
		return
	case d.maybe(6):
		d.e.nil()
		return
	}
	switch name {
	case "block_hashes":
		n := d.IntN(5)
		d.e.array(n)
		for range n {
			d.hash()
		}
	case "parent_block_hash":
		d.hash()
	case "token_ids":
		d.tokens()
	case "block_size", "group_idx", "kv_cache_spec_sliding_window":
		d.e.int(int64(d.IntN(70)))
	case "lora_id":
		if d.maybe(6) {
			d.e.str("7f3e")
			return
		}
		d.e.int(int64(d.IntN(5)) - 1)
	case "medium":
		d.e.str([]string{"GPU", "CPU", "CPU_PINNED", "DISK", "FS", "MOON", ""}[d.IntN(7)])
	case "extra_keys":
		d.extra()
	case "mm_keys":
		d.mediaKeys()
	case "moe_metadata", "cxl_metadata":
		d.metadata(name == "cxl_metadata")
	case "new_state":
		d.state()
	case "pool_id":
		d.e.int(int64(d.IntN(3)))
	case "accessible_workers":
		d.workers()
	case "origin":
		d.e.str([]string{"NEW", "REUSED"}[d.IntN(2)])
	default:
		d.e.str([]string{"", "full_attention", "a", "salt", "sliding_window"}[d.IntN(5)])
	}
}

// metadata writes labels or states of blocks.
func (d *dialect) metadata(pooled bool) {
	if d.maybe(2) {
		d.oneMetadata(pooled)
		return
	}
	n := d.IntN(5)
	d.e.array(n)
	for range n {
		if d.maybe(3) {
			d.e.nil()
		} else {
			d.oneMetadata(pooled)
		}
	}
}

func (d *dialect) oneMetadata(pooled bool) {
	names := []string{"layer_id", "expert_id", "expert_group", "heat"}
	if pooled {
		names = []string{"state", "pool_id", "accessible_workers", "heat"}
	}
	n := 1 + d.IntN(4)
	d.e.fields(n)
	for _, name := range names[:n] {
		d.e.str(name)
		switch {
		case d.maybe(20):
			d.anything(1)
		case name == "state":
			d.state()
		case name == "accessible_workers":
			d.workers()
		default:
			d.e.int(int64(d.IntN(9)))
		}
	}
}

func (d *dialect) state() {
	d.e.str([]string{"local_gpu", "in_transit", "cxl_pooled", "evicted", "melted"}[d.IntN(5)])
}

func (d *dialect) workers() {
	n := d.IntN(4)
	d.e.array(n)
	for range n {
		if d.maybe(3) {
			d.e.array(2)
			d.e.int(int64(d.IntN(9)))
		}
		d.e.int(int64(d.IntN(9)) - int64(d.IntN(12)/11))
	}
}

func (d *dialect) hash() {
	switch d.IntN(12) {
	case 0:
		d.e.int(-d.Int64())
	case 1:
		d.e.uint(uint64(d.IntN(200)))
	case 2:
		d.e.bin(string(d.raw(32)))
	case 3:
		d.e.bin(string(d.raw(1 + d.IntN(12))))
	case 4:
		d.e.str(hex.EncodeToString(d.raw(d.IntN(33))))
	case 5:
		d.e.str([]string{"-12", "18446744073709551615", "18446744073709551616", "+1", "x", "00000000000000001"}[d.IntN(6)])
	default:
		d.e.uint(d.Uint64())
	}
}

func (d *dialect) raw(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(d.Uint32())
	}
	return b
}

func (d *dialect) tokens() {
	n := d.IntN(60)
	d.e.array(n)
	odd := d.maybe(10)
	for i := range n {
		switch {
		case odd && d.maybe(8) || odd && i == 0 && d.maybe(2):
			switch d.IntN(5) {
			case 0:
				d.e.array(2)
				d.e.uint(1)
				d.e.uint(2)
			case 1:
				d.e.str([]string{"17", "4294967296", "-1", "x", ""}[d.IntN(5)])
			case 2:
				d.e.int(-1)
			case 3:
				d.e.uint(d.Uint64())
			default:
				d.e.nil()
			}
		case d.maybe(9):
			d.e.uint(uint64(d.Uint32()))
		default:
			d.e.uint(uint64(d.IntN(1 << (1 + d.IntN(18)))))
		}
	}
}

func (d *dialect) extra() {
	n := d.IntN(5)
	d.e.array(n)
	for range n {
		if d.maybe(3) {
			d.e.nil()
			continue
		}
		k := d.IntN(4)
		d.e.array(k)
		for range k {
			switch d.IntN(7) {
			case 6:
				d.typedKey()
			case 0, 1:
				d.e.str([]string{"a", "salt", "c705ea9eafcdcde9000000000000000000000000000000000000000000000000"}[d.IntN(3)])
			case 2:
				d.e.bin("digest")
			case 3:
				d.anything(2)
			default:
				d.e.array(2)
				d.e.str("image")
				d.e.int(int64(d.IntN(100)) - 50)
			}
		}
	}
}

// typedKey writes a key as a map with its type.
func (d *dialect) typedKey() {
	n := d.IntN(5)
	d.e.fields(n)
	for range n {
		d.e.str([]string{"type", "hash", "identifier", "name", "salt", "block_offset", "offset", "modality"}[d.IntN(8)])
		switch d.IntN(5) {
		case 0:
			d.anything(1)
		case 1:
			d.e.int(int64(d.IntN(100)) - 50)
		case 2:
			d.e.str("value")
		default:
			d.e.str([]string{"MultiModalKey", "LoRAKey", "CacheSaltKey", "PromptEmbedsKey"}[d.IntN(4)])
		}
	}
}

func (d *dialect) mediaKeys() {
	n := d.IntN(4)
	d.e.array(n)
	for range n {
		if d.maybe(3) {
			d.e.nil()
			continue
		}
		d.e.array(1)
		d.e.fields(4)
		d.e.str("type")
		d.e.str("mm_key")
		d.e.str("hash")
		if d.maybe(9) {
			d.anything(1)
		} else {
			d.e.str("abcd")
		}
		d.e.str("start_offset")
		if d.maybe(9) {
			d.anything(1)
		} else {
			d.e.int(int64(d.IntN(9)) - 4)
		}
		d.e.str("uuid")
		switch d.IntN(3) {
		case 0:
			d.e.str([]string{"mine", ""}[d.IntN(2)])
		case 1:
			d.anything(1)
		default:
			d.e.nil()
		}
	}
}

// anything writes any value.
func (d *dialect) anything(depth int) {
	switch d.IntN(9) {
	case 0:
		d.e.nil()
	case 1:
		d.e.bool(d.maybe(2))
	case 2:
		d.e.int(d.Int64() >> d.IntN(64))
	case 3:
		d.e.float(1)
	case 4:
		d.e.str("x")
	case 5:
		d.e.bin("y")
	case 6:
		d.e.b = append(d.e.b, 0xd4, 1, 2) // an extension
	case 7:
		if depth == 0 {
			d.e.nil()
			return
		}
		n := d.IntN(3)
		d.e.array(n)
		for range n {
			d.anything(depth - 1)
		}
	default:
		if depth == 0 {
			d.e.nil()
			return
		}
		n := d.IntN(3)
		d.e.fields(n)
		for range n {
			d.e.str("k")
			d.anything(depth - 1)
		}
	}
}

// TestDecodeAgreesWithNaive: batches of any shape decode to the values which were encoded.
func TestDecodeAgreesWithNaive(t *testing.T) {
	var dec Decoder
	var b Batch
	kinds := map[ChangeKind]int{}
	skipped, lost, bad := 0, 0, 0
	for seed := range uint64(20000) {
		d := dialect{Rand: rand.New(rand.NewPCG(seed, 3))}
		payload := d.batch()
		if d.maybe(8) { // the payload is damaged
			if d.maybe(2) {
				payload = payload[:d.IntN(len(payload)+1)]
			} else {
				payload[d.IntN(len(payload))] ^= 1 << d.IntN(8)
			}
		}
		want, wantErr := naiveBatch(payload)
		err := dec.Decode(payload, &b)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("seed %d: %x gives %v, naively %v", seed, payload, err, wantErr)
		}
		if err != nil {
			bad++
			continue
		}
		if diff := sameBatch(&b, want); diff != "" {
			t.Fatalf("seed %d: %x: %s", seed, payload, diff)
		}
		for i := range b.Events {
			kinds[b.Events[i].Kind]++
		}
		skipped += b.Skipped
		lost += b.Lost
	}
	if kinds[Stored] < 1000 || kinds[Removed] < 1000 || kinds[Cleared] < 1000 || skipped < 100 || lost < 100 || bad < 100 {
		t.Errorf("the batches are too much alike: %v, %d skipped, %d lost, %d bad", kinds, skipped, lost, bad)
	}
}

// TestDecodeAllocatesNothing: a warm decoder does not allocate.
func TestDecodeAllocatesNothing(t *testing.T) {
	var dec Decoder
	var b Batch
	for name, payload := range map[string][]byte{"array": storeOf(1, 0, 32, 16, false), "map": storeOf(2, 9, 32, 16, true)} {
		if err := dec.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(50, func() { _ = dec.Decode(payload, &b) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestDecodeHostile: false lengths cost nothing, and no nesting is too deep.
func TestDecodeHostile(t *testing.T) {
	deep := append([]byte{0x92}, make([]byte, 1<<20)...)
	for i := range deep[1:] {
		deep[1+i] = 0x91
	}
	deep[1] = 0xc0
	var dec Decoder
	var b Batch
	for name, payload := range map[string][]byte{
		"nothing":         nil,
		"deep":            deep,
		"deep and closed": append(append([]byte{0x93, 0xc0, 0xc0, 0xc0}[:1:1], 0xc0, 0xc0), deep[2:]...),
		"many events":     {0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"many hashes":     {0x92, 0xc0, 0x91, 0x95, 0xab, 'B', 'l', 'o', 'c', 'k', 'S', 't', 'o', 'r', 'e', 'd', 0xdd, 0x7f, 0xff, 0xff, 0xff},
		"many fields":     {0x92, 0xc0, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"long text":       {0x92, 0xc0, 0x91, 0x91, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"too long":        make([]byte, MaxPayload+1),
	} {
		if err := dec.Decode(payload, &b); err == nil {
			t.Errorf("%s is a batch of %d events", name, len(b.Events))
		}
		if n := testing.AllocsPerRun(1, func() { _ = dec.Decode(payload, &b) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzDecode: no input panics, and valid input decodes to its values.
func FuzzDecode(f *testing.F) {
	for seed := range uint64(40) {
		d := dialect{Rand: rand.New(rand.NewPCG(seed, 5))}
		f.Add(d.batch())
	}
	f.Add(storeOf(1, 2, 3, 4, true))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var dec Decoder
		var b Batch
		err := dec.Decode(payload, &b)
		want, wantErr := naiveBatch(payload)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, naively %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if diff := sameBatch(&b, want); diff != "" {
			t.Fatal(diff)
		}
		if n := cap(b.mem.hashes)*8 + cap(b.mem.tokens)*4 + cap(b.mem.extra)*24 + cap(b.mem.keys)*48 + cap(b.mem.text); n > 200*len(payload)+4096 {
			t.Fatalf("%d bytes take %d", len(payload), n)
		}
	})
}
