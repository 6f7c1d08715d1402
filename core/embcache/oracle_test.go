package embcache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// naive is the simplest possible cache: a list of what has memory, the least recently used first, and the
// region itself. It says everything but where a slot goes.
type naive struct {
	memory []byte
	slots  []*naiveSlot
	now    kv.Mono
	stats  Stats
}

type naiveSlot struct {
	item     Item
	slot     Slot
	fill     []byte // what was written there
	refs     []Ref
	readable bool
}

func (s *naiveSlot) size() int { return roundUp(s.item.Bytes) }

// gap returns the longest run of memory without any of the slots.
func (n *naive) gap(slots []*naiveSlot) int {
	slots = slices.SortedFunc(slices.Values(slots), func(a, b *naiveSlot) int { return a.slot.Offset - b.slot.Offset })
	longest, end := 0, 0
	for _, s := range slots {
		longest, end = max(longest, s.slot.Offset-end), s.slot.Offset+s.size()
	}
	return max(longest, len(n.memory)/Unit*Unit-end)
}

func (n *naive) find(key *RowKey) *naiveSlot {
	for _, s := range n.slots {
		if s.readable && s.item.Key == *key {
			return s
		}
	}
	return nil
}

// end makes a slot unreadable and returns the change.
func (n *naive) end(s *naiveSlot, cause Cause) Change {
	s.readable = false
	n.drop(s)
	return Change{Cause: cause, Item: s.item, Slot: s.slot}
}

// drop frees a slot which is neither readable nor pinned.
func (n *naive) drop(s *naiveSlot) {
	if !s.readable && len(s.refs) == 0 {
		n.slots = slices.DeleteFunc(n.slots, func(o *naiveSlot) bool { return o == s })
	}
}

// touch makes a slot the most recently used.
func (n *naive) touch(s *naiveSlot) {
	n.slots = append(slices.DeleteFunc(n.slots, func(o *naiveSlot) bool { return o == s }), s)
}

func (n *naive) ended(i *Item) bool { return i.Until != 0 && i.Until <= n.now }

// expire returns the changes of the entries which end by now, ordered by their end.
func (n *naive) expire() (changes []Change) {
	all := slices.DeleteFunc(slices.Clone(n.slots), func(s *naiveSlot) bool { return !s.readable || !n.ended(&s.item) })
	slices.SortFunc(all, func(a, b *naiveSlot) int { return int(a.item.Until - b.item.Until) })
	for _, s := range all {
		n.stats.Expirations++
		changes = append(changes, n.end(s, Expired))
	}
	return changes
}

// makeRoom returns why there is no room for an item, or what is evicted for it.
func (n *naive) makeRoom(item *Item) (Refusal, []Change) {
	pinned := slices.DeleteFunc(slices.Clone(n.slots), func(s *naiveSlot) bool { return len(s.refs) == 0 })
	size := roundUp(item.Bytes)
	switch {
	case n.ended(item):
		return Ended, nil
	case size > n.gap(nil):
		return TooLarge, nil
	case size > n.gap(pinned):
		return InUse, nil
	}
	var changes []Change
	for n.gap(n.slots) < size {
		i := slices.IndexFunc(n.slots, func(s *naiveSlot) bool { return len(s.refs) == 0 })
		n.stats.Evictions++
		changes = append(changes, n.end(n.slots[i], Evicted))
	}
	return NotRefused, changes
}

// sums returns the statistics of now.
func (n *naive) sums() Stats {
	s := n.stats
	s.Capacity = len(n.memory) / Unit * Unit
	for _, one := range n.slots {
		if one.readable {
			s.Entries++
			s.Bytes += one.size()
		} else {
			s.HeldBytes += one.size()
		}
		if len(one.refs) > 0 {
			s.PinnedBytes += one.size()
		}
	}
	return s
}

// twins are a cache and its naive twin.
type twins struct {
	naive
	cache *RowCache
	fills uint64
}

func newTwins(capacity int) *twins {
	return &twins{naive: naive{memory: make([]byte, capacity), now: 1}, cache: New(capacity)}
}

// step does one thing with both and returns what differs. draw returns a number below n.
func (w *twins) step(draw func(n int) int) error {
	var err error
	switch draw(16) {
	case 0, 1, 2:
		err = w.get(w.key(draw))
	case 3, 4, 5:
		err = w.reserve(draw)
	case 6, 7, 8:
		err = w.commit(draw)
	case 9, 10, 11, 12, 13, 14:
		w.release(draw)
	default:
		switch draw(4) {
		case 0:
			key, want := w.key(draw), []Change(nil)
			if s := w.find(&key); s != nil {
				w.stats.Removals++
				want = append(want, w.end(s, Removed))
			}
			err = same("changes of remove", w.cache.Remove(&key, nil), want)
		case 1:
			w.now += kv.Mono(draw(8))
			err = w.compareExpired(w.cache.Expire(w.now, nil))
		default:
			w.now++
		}
	}
	if err != nil {
		return err
	}
	return w.compare()
}

func (w *twins) key(draw func(n int) int) RowKey {
	return RowKey{Salt: []string{"", "a"}[draw(2)], Kind: uint8(1 + draw(2)), Digest: kv.Digest{1, byte(draw(8))}}
}

func (w *twins) get(key RowKey) error {
	has := w.cache.Contains(&key, w.now)
	if e, ok := w.cache.Pin(&key, w.now); ok {
		defer w.cache.Release(e.Ref)
	}
	got, ok := w.cache.Get(&key, w.now)
	s := w.find(&key)
	if s != nil && w.ended(&s.item) {
		s = nil
	}
	if ok != (s != nil) || has != ok {
		return fmt.Errorf("get of %v: %t, contains: %t", key, ok, has)
	}
	if s == nil {
		w.stats.Misses++
		return nil
	}
	w.stats.Hits++
	s.refs = append(s.refs, got.Ref)
	if got.Slot != s.slot || got.Shape != s.item.Shape || !bytes.Equal(w.memory[got.Slot.Offset:][:got.Slot.Length], s.fill) {
		return fmt.Errorf("get of %v: %+v, want %+v", key, got, s)
	}
	return nil
}

func (w *twins) reserve(draw func(n int) int) error {
	item := Item{Key: w.key(draw), Bytes: 1 + draw(40)*Unit/3, Shape: Shape{Rows: draw(9)}}
	if draw(20) == 0 {
		item.Bytes = draw(2 * len(w.memory))
	}
	if draw(3) == 0 {
		item.Until = w.now + kv.Mono(draw(30))
	}
	got, refused, changes := w.cache.Reserve(&item, w.now, nil)
	expired := 0
	for expired < len(changes) && changes[expired].Cause == Expired {
		expired++
	}
	if err := w.compareExpired(changes[:expired]); err != nil {
		return err
	}
	want, evicted := w.makeRoom(&item)
	if err := same("changes of reserve", changes[expired:], evicted); err != nil {
		return err
	}
	if refused != want {
		return fmt.Errorf("reserve of %+v: %v, want %v", item, refused, want)
	}
	if refused != NotRefused {
		w.stats.Refusals++
		return nil
	}
	if got.Slot.Offset%Unit != 0 || got.Slot.Length != item.Bytes || got.Shape != item.Shape || got.Slot.Offset+item.Bytes > len(w.memory) {
		return fmt.Errorf("reserve of %+v: %+v", item, got)
	}
	s := &naiveSlot{item: item, slot: got.Slot, refs: []Ref{got.Ref}, fill: make([]byte, item.Bytes)}
	for i := range s.fill {
		if i%8 == 0 {
			w.fills++
		}
		s.fill[i] = byte(splitmix.Mix(w.fills) >> (i % 8 * 8))
	}
	copy(w.memory[got.Slot.Offset:], s.fill) // over nothing that can be read, as the next Get of it says
	w.slots = append(w.slots, s)
	return nil
}

func (w *twins) commit(draw func(n int) int) error {
	s, ref := w.pinned(draw)
	if s == nil || s.readable || w.cache.entries[ref.index].state != writing {
		return nil
	}
	changes := w.cache.Commit(ref, nil)
	var want []Change
	if old := w.find(&s.item.Key); old != nil {
		w.stats.Replacements++
		want = append(want, w.end(old, Replaced))
	}
	s.readable = true
	w.stats.Additions++
	return same("changes of commit", changes, append(want, Change{Cause: Added, Item: s.item, Slot: s.slot}))
}

func (w *twins) release(draw func(n int) int) {
	s, ref := w.pinned(draw)
	if s == nil {
		return
	}
	w.cache.Release(ref)
	s.refs = s.refs[1:] // pins of one entry are equal
	if len(s.refs) == 0 {
		w.touch(s)
	}
	w.drop(s)
}

// pinned draws a pinned slot; nil if there is none.
func (w *twins) pinned(draw func(n int) int) (*naiveSlot, Ref) {
	all := slices.DeleteFunc(slices.Clone(w.slots), func(s *naiveSlot) bool { return len(s.refs) == 0 })
	if len(all) == 0 {
		return nil, Ref{}
	}
	s := all[draw(len(all))]
	return s, s.refs[0]
}

// compareExpired compares the changes with the expired entries. Entries with the same end may come in any order.
func (w *twins) compareExpired(got []Change) error {
	order := func(a, b Change) int {
		return int(a.Item.Until-b.Item.Until)<<20 + a.Slot.Offset - b.Slot.Offset
	}
	if !slices.IsSortedFunc(got, func(a, b Change) int { return int(a.Item.Until - b.Item.Until) }) {
		return fmt.Errorf("expired out of order: %+v", got)
	}
	return same("expired", slices.SortedFunc(slices.Values(got), order), slices.SortedFunc(slices.Values(w.expire()), order))
}

func (w *twins) compare() error {
	got := w.cache.Stats()
	free := w.gap(w.slots)
	if got.LargestFree > free || got.LargestFree < free*7/8/Unit*Unit {
		return fmt.Errorf("largest free %d, want %d", got.LargestFree, free)
	}
	want := w.sums()
	want.LargestFree = got.LargestFree
	if got != want {
		return fmt.Errorf("statistics\n%+v, want\n%+v", got, want)
	}
	next := kv.Mono(0)
	for _, s := range w.slots {
		if s.readable && s.item.Until != 0 && (next == 0 || s.item.Until < next) {
			next = s.item.Until
		}
	}
	if w.cache.NextEnd() != next {
		return fmt.Errorf("next end %d, want %d", w.cache.NextEnd(), next)
	}
	return w.cache.Check()
}

func same(what string, got, want []Change) error {
	if slices.Equal(got, want) {
		return nil
	}
	return fmt.Errorf("%s:\n%+v, want\n%+v", what, got, want)
}

// TestTwin compares the cache with its naive twin.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTwins(rapid.IntRange(0, 100).Draw(t, "units")*Unit + 13)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if err := w.step(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestMillionSteps compares the cache with its twin over a million random steps: after each the sums over the
// entries are the statistics, and what is read is what was written.
func TestMillionSteps(t *testing.T) {
	const seed = 23
	w, drawn := newTwins(200*Unit), uint64(0)
	draw := func(n int) int {
		drawn++
		return int(splitmix.Mix(seed+drawn*splitmix.Step) % uint64(n))
	}
	for step := range 1_000_000 {
		if err := w.step(draw); err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, step, err)
		}
	}
	s := w.cache.Stats()
	t.Logf("%+v", s)
	if s.Hits == 0 || s.Misses == 0 || s.Evictions == 0 || s.Replacements == 0 || s.Expirations == 0 || s.Removals == 0 || s.Refusals == 0 {
		t.Errorf("something never happened: %+v", s)
	}
}

// FuzzTwin has a fuzzer draw the steps.
func FuzzTwin(f *testing.F) {
	f.Add([]byte("2000000000000000000000000000400000055511111111"))
	f.Fuzz(func(t *testing.T, steps []byte) {
		w := newTwins(40 * Unit)
		draw := func(n int) int {
			if len(steps) < 2 {
				steps = nil
				return 0
			}
			v := binary.LittleEndian.Uint16(steps)
			steps = steps[2:]
			return int(v) % n
		}
		for len(steps) > 0 {
			if err := w.step(draw); err != nil {
				t.Fatal(err)
			}
		}
	})
}
