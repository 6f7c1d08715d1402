package embcache

import (
	"encoding/binary"
	"flag"
	"fmt"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

var tierDraws = flag.Int("tier-draws", 1_000_000, "random draws of TestTierAgainstTwin for each capacity")

// naiveTier is the simplest possible tier: a list of its readable entries, the least recently used first, and one of
// entries which are being written.
type naiveTier struct {
	readable, writing []TierEntry
	stats             TierStats
}

func (n *naiveTier) sum(all []TierEntry) (bytes int64) {
	for _, e := range all {
		bytes += (max(e.Bytes, 1) + 4095) / 4096 * 4096
	}
	return bytes
}

func indexTier(all []TierEntry, key kv.Digest) int {
	return slices.IndexFunc(all, func(e TierEntry) bool { return e.Key == key })
}

// use moves an entry to the end.
func (n *naiveTier) use(i int) {
	e := n.readable[i]
	n.readable = append(slices.Delete(n.readable, i, i+1), e)
}

func (n *naiveTier) makeRoom(size int64) (evicted []TierEntry) {
	for len(n.readable) > 0 && n.sum(n.readable)+n.sum(n.writing)+size > n.stats.Capacity {
		evicted = append(evicted, n.readable[0])
		n.readable = n.readable[1:]
		n.stats.Evictions++
	}
	return evicted
}

func (n *naiveTier) reserve(e TierEntry, now int64) (Refusal, []TierEntry) {
	if indexTier(n.readable, e.Key) >= 0 || indexTier(n.writing, e.Key) >= 0 {
		return InUse, nil
	}
	size, refused := n.sum([]TierEntry{e}), NotRefused
	if e.Until != 0 && e.Until <= now {
		refused = Ended
	} else if size > n.stats.Capacity {
		refused = TooLarge
	} else if size+n.sum(n.writing) > n.stats.Capacity {
		refused = InUse
	}
	if refused != NotRefused {
		n.stats.Refusals++
		return refused, nil
	}
	evicted := n.makeRoom(size)
	n.writing = append(n.writing, e)
	return NotRefused, evicted
}

func (n *naiveTier) endLookup(key kv.Digest, end LookupEnd) (remove bool) {
	i := indexTier(n.readable, key)
	if end == LookupHit {
		n.stats.Hits++
		if i >= 0 {
			n.use(i)
		}
		return false
	}
	n.stats.Misses++
	if end == LookupAbsent || i < 0 && end != LookupCorrupt {
		return false
	}
	switch end {
	case LookupCorrupt:
		n.stats.Corrupt++
	case LookupExpired:
		n.stats.Expirations++
	default:
		n.stats.Removals++
	}
	if i >= 0 {
		n.readable = slices.Delete(n.readable, i, i+1)
	}
	return true
}

func (n *naiveTier) observe(e TierEntry) []TierEntry {
	if indexTier(n.writing, e.Key) >= 0 {
		return nil
	}
	if i := indexTier(n.readable, e.Key); i >= 0 {
		n.readable[i] = e
		n.use(i)
	} else {
		n.readable = append(n.readable, e)
		n.stats.Additions++
	}
	return n.makeRoom(0)
}

// playTier compares a tier with its twin over the steps which draw makes until it has no more.
func playTier(t *testing.T, capacity int64, draw func(n int) (int, bool)) {
	t.Helper()
	tier, twin := NewTier(capacity), &naiveTier{}
	twin.stats.Capacity = capacity / 4096 * 4096
	now := int64(0)
	for step := 0; ; step++ {
		op, ok := draw(9)
		if !ok {
			return
		}
		k, _ := draw(24)
		size, _ := draw(7 * 4096)
		key := kv.Digest{byte(k)}
		e := TierEntry{Key: key, Bytes: int64(size)}
		var got, want string
		switch op {
		case 0, 1:
			if until, _ := draw(8); until > 5 {
				e.Until = now + int64(until-6)*10
			}
			refused, evicted := tier.Reserve(e, now, nil)
			got = fmt.Sprintln(refused, evicted)
			refused, evicted = twin.reserve(e, now)
			want = fmt.Sprintln(refused, evicted)
		case 2, 3:
			if i := indexTier(twin.writing, key); i >= 0 {
				twin.readable = append(twin.readable, twin.writing[i])
				twin.writing = slices.Delete(twin.writing, i, i+1)
				twin.stats.Additions++
				tier.Commit(key)
			}
		case 4:
			if i := indexTier(twin.writing, key); i >= 0 {
				twin.writing = slices.Delete(twin.writing, i, i+1)
				twin.stats.WriteFailure++
				tier.Abort(key)
			}
		case 5:
			found, ok := tier.Find(key)
			got = fmt.Sprintln(found, ok)
			var entry TierEntry
			i := indexTier(twin.readable, key)
			if i >= 0 {
				entry = twin.readable[i]
			}
			want = fmt.Sprintln(entry, i >= 0)
		case 6:
			end, _ := draw(8)
			end = max(0, end-3) // hits are more frequent
			got = fmt.Sprintln(tier.EndLookup(key, LookupEnd(end)))
			want = fmt.Sprintln(twin.endLookup(key, LookupEnd(end)))
		case 7:
			got, want = fmt.Sprintln(tier.Observe(e, nil)), fmt.Sprintln(twin.observe(e))
		case 8:
			i := indexTier(twin.readable, key)
			switch how, _ := draw(16); {
			case how == 0:
				tier.Clear()
				twin.readable = nil
			case how < 4:
				tier.Remove(key)
				if i >= 0 {
					twin.stats.Removals++
					twin.readable = slices.Delete(twin.readable, i, i+1)
				}
			default:
				got, want = fmt.Sprintln(tier.Refresh(key)), fmt.Sprintln(i >= 0)
				if i >= 0 {
					twin.use(i)
				}
				now++
			}
		}
		s := twin.stats
		s.Entries, s.Bytes, s.WritingBytes = len(twin.readable), twin.sum(twin.readable), twin.sum(twin.writing)
		if got != want || tier.Stats() != s {
			t.Fatalf("step %d, operation %d on %d: %s, want %s; %+v, want %+v", step, op, k, got, want, tier.Stats(), s)
		}
		if err := tier.Check(); err != nil {
			t.Fatalf("step %d, operation %d: %v", step, op, err)
		}
	}
}

// TestTierAgainstTwin compares a tier with its twin: what is evicted, in which order, and the statistics after every
// step, which are the sums over the entries and within the capacity.
func TestTierAgainstTwin(t *testing.T) {
	const seed = 2323
	drawn := uint64(0)
	for _, capacity := range []int64{0, 4095, 5 * 4096, 40*4096 + 1} {
		left := *tierDraws // draws, of which a step has three or four
		playTier(t, capacity, func(n int) (int, bool) {
			left--
			drawn++
			return int(splitmix.Mix(seed+drawn*splitmix.Step) % uint64(n)), left > 0
		})
	}
}

// FuzzTier has a fuzzer draw the steps.
func FuzzTier(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 0, 16, 2, 0, 1, 0, 0, 0, 5, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		playTier(t, 6*4096, func(n int) (int, bool) {
			if len(b) < 2 {
				return 0, false
			}
			v := int(binary.LittleEndian.Uint16(b)) % n
			b = b[2:]
			return v, true
		})
	})
}

// TestTierKey: every part of a key is in its name, and no two parts can be exchanged.
func TestTierKey(t *testing.T) {
	base := RowKey{Salt: "s", Kind: 1, Digest: kv.Digest{2}, Encoder: "e", Type: 3, Reduction: "r"}
	seen := map[kv.Digest]RowKey{}
	for _, edit := range []func(*RowKey){
		func(*RowKey) {},
		func(k *RowKey) { k.Salt = "" },
		func(k *RowKey) { k.Salt = "S" },
		func(k *RowKey) { k.Salt, k.Encoder = "e", "s" },
		func(k *RowKey) { k.Salt, k.Reduction = "r", "s" },
		func(k *RowKey) { k.Salt, k.Encoder = "", "es" },
		func(k *RowKey) { k.Kind = 2 },
		func(k *RowKey) { k.Type = 1 },
		func(k *RowKey) { k.Digest[31] = 1 },
		func(k *RowKey) { k.Reduction = "" },
	} {
		k := base
		edit(&k)
		if other, ok := seen[k.TierKey()]; ok {
			t.Errorf("%+v and %+v have one name", k, other)
		}
		if k.TierKey() == k.EventKey() {
			t.Errorf("%+v: its events have the name", k)
		}
		seen[k.TierKey()] = k
	}
}
