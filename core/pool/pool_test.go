package pool

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
)

func codeOf(err error) fault.Code {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Code
	}
	return fault.Internal
}

// TestStates: a block goes from local over in transit to pooled and evicted, and is known with its label and its mover.
func TestStates(t *testing.T) {
	b := newPool(t, testConfig, 1)
	p, q := join(t, mapBytes(t, b), testConfig, 1), join(t, mapBytes(t, b), testConfig, 2)
	c := contentOf(1, 0)
	expect := func(want kv.PoolState) {
		t.Helper()
		for _, one := range []*View{p, q} {
			f, err := one.Find(c)
			known := want != kv.LocalGPU
			if err != nil || f.State != want || known != (f.Label == labelOf(c)) || known != (f.Mover == kv.Worker{ID: 1, Rank: 1}) {
				t.Errorf("%+v, %v; want %v", f, err, want)
			}
		}
	}
	expect(kv.LocalGPU)
	w, _, err := p.Reserve(c, labelOf(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(kv.InTransit)
	for _, one := range []*View{p, q} {
		if _, _, err := one.Reserve(c, labelOf(c), nil); !errors.Is(err, ErrExists) {
			t.Errorf("reserved again: %v", err)
		}
		if _, ok := one.Acquire(c); ok {
			t.Error("a block in transit was acquired")
		}
	}
	if err := p.Publish(&w); codeOf(err) != fault.Invalid {
		t.Errorf("published before it was written: %v", err)
	}
	data := dataOf(c, p.BlockBytes())
	if err := p.Write(0, &w, data); codeOf(err) != fault.Invalid {
		t.Errorf("a chunk of the wrong size: %v", err)
	}
	if err := writeAll(p, 0, &w, data); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(&w); err != nil {
		t.Fatal(err)
	}
	expect(kv.Pooled)
	if ok, err := read(q, c); !ok || err != nil {
		t.Errorf("read: %t, %v", ok, err)
	}
	evicted := mustPublish(t, q, contentOf(2, 0))
	if len(evicted) != 1 || evicted[0] != (EvictedBlock{c.Name, kv.Worker{ID: 1, Rank: 1}}) {
		t.Errorf("evicted: %v", evicted)
	}
	expect(kv.Evicted)
	if ok, _ := read(q, c); ok {
		t.Error("an evicted block can be read")
	}
	mustPublish(t, p, c)
	expect(kv.Pooled)
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

// TestContentIsCompared: a block is found by all of its content, and by nothing else, even under the same name.
func TestContentIsCompared(t *testing.T) {
	b := newPool(t, smallConfig, 8)
	p := join(t, mapBytes(t, b), smallConfig, 1)
	mustPublish(t, p, contentOf(1, 1))
	for what, change := range map[string]func(*Content){
		"salt":              func(c *Content) { c.Salt = DigestSalt(kv.Salt{LoRA: "s"}) },
		"token":             func(c *Content) { c.Tokens[3]++ },
		"index":             func(c *Content) { c.Index++ },
		"parent":            func(c *Content) { c.Parent++ },
		"identity before":   func(c *Content) { c.ParentIdentity[31]++ },
		"hash":              func(c *Content) { c.Hash++ },
		"digest of a media": func(c *Content) { c.Media[0].Digest[31]++ },
		"place of a media":  func(c *Content) { c.Media[0].Start--; c.Media[0].End-- },
		"no media":          func(c *Content) { c.Media = nil },
		"name":              func(c *Content) { c.Name++ },
	} {
		c := contentOf(1, 1)
		change(c)
		if f, ok := p.Acquire(c); ok {
			t.Errorf("another %s: %+v", what, f)
		}
		if f, err := p.Find(c); f.State != kv.LocalGPU || err != nil {
			t.Errorf("another %s: %+v, %v", what, f, err)
		}
	}
	// A block under a name which another one has is pooled beside it.
	c := contentOf(1, 1)
	c.Tokens[0]++
	mustPublish(t, p, c)
	for _, c := range []*Content{c, contentOf(1, 1)} {
		if ok, err := read(p, c); !ok || err != nil {
			t.Errorf("%v: %t, %v", c.Tokens, ok, err)
		}
	}
	for what, change := range map[string]func(*Content){
		"too few tokens": func(c *Content) { c.Tokens = c.Tokens[:3] },
		"too many media": func(c *Content) { c.Media = slices.Repeat(c.Media, MaxMedia+1) },
		"no digest":      func(c *Content) { c.Media[0].Digest = kv.Digest{} },
		"no place":       func(c *Content) { c.Media[0].Start = -1 },
	} {
		c := contentOf(1, 1)
		change(c)
		_, err := p.Find(c)
		_, _, err2 := p.Reserve(c, kv.MoELabel{}, nil)
		_, err3 := p.Identify(c)
		if _, ok := p.Acquire(c); ok || codeOf(err) != fault.Invalid || codeOf(err2) != fault.Invalid || codeOf(err3) != fault.Invalid {
			t.Errorf("%s: %v, %v, %v", what, err, err2, err3)
		}
	}
}

// TestFull: acquired blocks and those in transit are not evicted; of the others the one which was released first is.
func TestFull(t *testing.T) {
	const n = 100
	b := newPool(t, smallConfig, n)
	p := join(t, mapBytes(t, b), smallConfig, 1)
	var refs []BlockRef
	for i := range n {
		mustPublish(t, p, contentOf(1, i))
		f, ok := p.Acquire(contentOf(1, i))
		if !ok {
			t.Fatal(i)
		}
		refs = append(refs, f.Ref)
	}
	if _, err := publish(p, 0, contentOf(2, 0)); !errors.Is(err, ErrFull) {
		t.Errorf("all are acquired: %v", err)
	}
	for _, ref := range slices.Backward(refs) {
		p.Release(ref)
		p.Release(ref) // again: no effect
	}
	for i := range n / 2 {
		if evicted := mustPublish(t, p, contentOf(3, i)); len(evicted) != 1 || evicted[0].Name != contentOf(1, n-1-i).Name {
			t.Fatalf("publication %d evicted %v", i, evicted)
		}
	}
	next, ok := p.Acquire(contentOf(1, n/2-1))
	if evicted := mustPublish(t, p, contentOf(1, n-1)); !ok || len(evicted) != 1 || evicted[0].Name != contentOf(1, n/2-2).Name {
		t.Errorf("the oldest one is acquired: evicted %v", evicted)
	}
	if f, err := p.Find(contentOf(1, n/2-1)); f.State != kv.Pooled || err != nil {
		t.Errorf("the oldest one is acquired: %+v, %v", f, err)
	}
	p.Release(next.Ref)
	for i := range n / 2 {
		if _, _, err := p.Reserve(contentOf(4, i), kv.MoELabel{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.Stats(); s.InTransit != n/2 || s.Pooled != n/2 {
		t.Errorf("%+v", s)
	}
	held, ok := p.Acquire(contentOf(1, n-1))
	for i := 1; i < n/2; i++ {
		if _, _, err := p.Reserve(contentOf(5, i), kv.MoELabel{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := p.Reserve(contentOf(6, 0), kv.MoELabel{}, nil); !ok || !errors.Is(err, ErrFull) {
		t.Errorf("one is acquired, and all others are in transit: %v", err)
	}
	if err := p.Verify(held.Ref); err != nil {
		t.Error(err)
	}
}

// TestUnusedOrder: of blocks which were published one after the other, the last of the sequence is evicted first.
func TestUnusedOrder(t *testing.T) {
	b := newPool(t, smallConfig, 4)
	p := join(t, mapBytes(t, b), smallConfig, 1)
	var all []*Content
	for i := range 4 {
		c := contentOf(1, i)
		if i > 0 {
			c.Parent = all[i-1].Name
		}
		all = append(all, c)
		mustPublish(t, p, c)
	}
	for i := range 3 {
		if evicted := mustPublish(t, p, contentOf(2, 2*i)); len(evicted) != 1 || evicted[0].Name != all[3-i].Name {
			t.Errorf("evicted %v", evicted)
		}
	}
}

// TestPausedWriter: a writer whose lease runs out stops by its own clock. When the lease was ended it can neither write nor
// publish, and what it writes all the same is found out by the reader of the block which has its place by then.
func TestPausedWriter(t *testing.T) {
	b := newPool(t, testConfig, 1)
	p, q := join(t, mapBytes(t, b), testConfig, 1), join(t, mapBytes(t, b), testConfig, 2)
	c, other := contentOf(1, 0), contentOf(2, 0)
	w, _, err := p.Reserve(c, kv.MoELabel{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(kv.Mono(testLease), &w, make([]byte, ChunkBytes)); !errors.Is(err, ErrEnded) {
		t.Errorf("a lease later: %v", err)
	}
	now, dead := reclaim(t, q, 0)
	if len(dead) != 1 || dead[0] != (kv.Worker{ID: 1, Rank: 1}) {
		t.Errorf("dead: %v", dead)
	}
	mustPublish(t, q, other)
	if err := p.Write(0, &w, make([]byte, ChunkBytes)); !errors.Is(err, ErrEnded) {
		t.Errorf("written: %v", err)
	}
	w.written = p.BlockBytes()
	if err := p.Publish(&w); !errors.Is(err, ErrEnded) {
		t.Errorf("published: %v", err)
	}
	if err := p.Renew(now); !errors.Is(err, ErrEnded) {
		t.Errorf("renewed: %v", err)
	}
	if _, _, err := p.Reserve(c, kv.MoELabel{}, nil); !errors.Is(err, ErrEnded) {
		t.Errorf("reserved: %v", err)
	}
	p.Abort(&w)
	f, ok := q.Acquire(other)
	if !ok || q.Verify(f.Ref) != nil {
		t.Fatal("the other block is not there")
	}
	b[q.BlockAt(f.Ref)+ChunkBytes]++ // a store which was on its way
	if err := q.Verify(f.Ref); !errors.Is(err, ErrDamaged) {
		t.Errorf("a block which was written over: %v", err)
	}
	if err := q.Read(f.Ref, make([]byte, q.BlockBytes())); err == nil {
		t.Error("a block which was written over can be read")
	}
	q.Release(f.Ref)
	if _, ok := q.Acquire(other); ok {
		t.Error("a damaged block is still there")
	}
	if err := p.Join(now, kv.Worker{ID: 1}); err != nil {
		t.Error(err)
	}
	mustPublish(t, p, c)
}

// TestLeaseOfReader: what a reader has acquired is taken back when its lease was ended, and what it holds then is gone when
// another block takes the place. Its pins do not come back.
func TestLeaseOfReader(t *testing.T) {
	b := newPool(t, smallConfig, 1)
	p, q := join(t, mapBytes(t, b), smallConfig, 1), join(t, mapBytes(t, b), smallConfig, 2)
	mustPublish(t, q, contentOf(1, 0))
	f, ok := p.Acquire(contentOf(1, 0))
	if !ok {
		t.Fatal("the block is not there")
	}
	if _, err := publish(q, 0, contentOf(2, 0)); !errors.Is(err, ErrFull) {
		t.Errorf("an acquired block was evicted: %v", err)
	}
	reclaim(t, q, 0)
	if err := p.Verify(f.Ref); err != nil {
		t.Errorf("the memory is as it was: %v", err)
	}
	mustPublish(t, q, contentOf(2, 0))
	if err := p.Verify(f.Ref); !errors.Is(err, ErrGone) {
		t.Errorf("the memory has another block: %v", err)
	}
	if _, ok := p.Acquire(contentOf(2, 0)); ok {
		t.Error("a process without a lease acquires")
	}
	p.Release(f.Ref)
	if s := q.Stats(); s.Pinned != 0 || s.Owners != 1 {
		t.Errorf("%+v", s)
	}
	if err := p.Join(0, kv.Worker{ID: 1}); err != nil {
		t.Fatal(err)
	}
	g, ok := p.Acquire(contentOf(2, 0))
	p.Release(f.Ref) // of the life before
	if err := p.Verify(g.Ref); !ok || err != nil {
		t.Error(err)
	}
}

// TestRenewalKeepsLease: an owner which renews is not taken for dead, however long another one watches.
func TestRenewalKeepsLease(t *testing.T) {
	b := newPool(t, smallConfig, 2)
	p, q := join(t, mapBytes(t, b), smallConfig, 1), join(t, mapBytes(t, b), smallConfig, 2)
	now := kv.Mono(0)
	for range 20 {
		now = now.Add(testLease / 2)
		for _, one := range []*View{p, q} {
			if err := one.Renew(now); err != nil {
				t.Fatal(err)
			}
			if dead := one.Reclaim(now, nil); len(dead) != 0 {
				t.Fatal(dead)
			}
		}
	}
	p.Leave()
	if s := q.Stats(); s.Owners != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTwoOwnersOfOnePath: a pool is not formatted again, and serves no process which wants another one.
func TestTwoOwnersOfOnePath(t *testing.T) {
	b := newPool(t, smallConfig, 2)
	m := mapBytes(t, b)
	p := join(t, m, smallConfig, 1)
	mustPublish(t, p, contentOf(1, 0))
	if err := Format(m, smallConfig, 5); codeOf(err) != fault.Conflict {
		t.Errorf("formatted again: %v", err)
	}
	for what, change := range map[string]func(*Config){
		"tokens": func(c *Config) { c.BlockTokens *= 2 },
		"bytes":  func(c *Config) { c.TokenBytes++ },
		"layout": func(c *Config) { c.Layout, c.Type = "lf", "loat32" },
		"type":   func(c *Config) { c.Type = "float16" },
		"model":  func(c *Config) { c.Numerics = "m" },
	} {
		cfg := smallConfig
		change(&cfg)
		if _, err := Open(m, cfg); codeOf(err) != fault.Conflict {
			t.Errorf("other %s: %v", what, err)
		}
	}
	for _, size := range []int{len(b) - 64, len(b) + 64} {
		other := make([]byte, size)
		copy(other, b)
		if _, err := Open(mapBytes(t, other), smallConfig); codeOf(err) != fault.Conflict {
			t.Errorf("%d bytes for a pool of %d: %v", size, len(b), err)
		}
	}
	if ok, err := read(join(t, m, smallConfig, 2), contentOf(1, 0)); !ok || err != nil {
		t.Error(ok, err)
	}
	// The file is formatted for another model while a process has it: that process is no owner any more.
	m.Words.Store(wordMagic, 0)
	if err := Format(m, smallConfig, testGeneration+2); err != nil {
		t.Fatal(err)
	}
	if err := p.Renew(0); !errors.Is(err, ErrEnded) {
		t.Errorf("renewed in another pool: %v", err)
	}
	if err := p.Join(0, kv.Worker{}); !errors.Is(err, ErrEnded) {
		t.Errorf("joined another pool: %v", err)
	}
	for what, err := range map[string]error{
		"few bytes":     Format(mapBytes(t, make([]byte, 8192)), smallConfig, 1),
		"no generation": Format(mapBytes(t, make([]byte, len(b))), smallConfig, 0),
		"no tokens":     Format(mapBytes(t, make([]byte, len(b))), Config{TokenBytes: 1}, 1),
		"no bytes":      Format(mapBytes(t, make([]byte, len(b))), Config{BlockTokens: 1}, 1),
		"lease":         Format(mapBytes(t, make([]byte, len(b))), Config{BlockTokens: 1, TokenBytes: 1, Lease: 1}, 1),
	} {
		if codeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := MapBytes(b[4:]); err == nil {
		t.Error("memory which is not aligned")
	}
}

// TestSuperblock: a superblock of which a word was changed is refused.
func TestSuperblock(t *testing.T) {
	b := newPool(t, smallConfig, 2)
	m := mapBytes(t, b)
	for at := 0; at < wordTick; at += 8 {
		v := m.Words.Load(at)
		m.Words.Store(at, v^4)
		if _, err := Open(m, smallConfig); !slices.Contains([]fault.Code{fault.NotFound, fault.Conflict, fault.PoolLost}, codeOf(err)) {
			t.Errorf("word %d was changed: %v", at, err)
		}
		m.Words.Store(at, v)
	}
	// With the right checksum a layout is refused which is not within the memory.
	for at, v := range map[int]uint64{
		wordBlocks: 3, wordTokens: 1 << 15, wordBlockBytes: 1 << 40, wordLease: 1, wordGeneration: 0,
	} {
		old := m.Words.Load(at)
		m.Words.Store(at, v)
		m.Words.Store(wordHeaderSum, sumHeader(m.Words))
		if _, err := readHeader(m); codeOf(err) != fault.PoolLost {
			t.Errorf("word %d is %d: %v", at, v, err)
		}
		m.Words.Store(at, old)
	}
}

// TestOwnersAreBounded: 48 processes attach a pool, and one more when one leaves.
func TestOwnersAreBounded(t *testing.T) {
	b := newPool(t, smallConfig, 2)
	m := mapBytes(t, b)
	var all []*View
	for i := range maxOwners {
		all = append(all, join(t, m, smallConfig, kv.WorkerID(i)))
	}
	p, err := Open(m, smallConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Join(0, kv.Worker{ID: 99}); codeOf(err) != fault.Overloaded {
		t.Error(err)
	}
	mustPublish(t, all[maxOwners-1], contentOf(1, 0))
	for _, one := range all {
		if _, ok := one.Acquire(contentOf(1, 0)); !ok {
			t.Fatal(one.owner)
		}
	}
	all[7].Leave()
	if err := p.Join(0, kv.Worker{ID: 99}); err != nil || p.owner != 7 {
		t.Error(p.owner, err)
	}
	if pins := m.Words.Load(p.lay.entryAt(int32(0)) + wordPins); m.Words.Load(p.lay.entryAt(1)+wordPins)&pinMask|pins&pinMask != pinMask&^(1<<7) {
		t.Errorf("pins: %x", pins)
	}
}

// TestAccess: a worker which is not in the access list cannot join, and one which is removed leaves.
func TestAccess(t *testing.T) {
	b := newPool(t, smallConfig, 2)
	m := mapBytes(t, b)
	p, q := join(t, m, smallConfig, 1), join(t, m, smallConfig, 2)
	mustPublish(t, q, contentOf(1, 0))
	if _, ok := q.Acquire(contentOf(1, 0)); !ok {
		t.Fatal("the block is not there")
	}
	expect := func(want ...kv.WorkerID) {
		t.Helper()
		got, restricted := q.AppendAllowed(nil)
		slices.Sort(got)
		if restricted != (want != nil) || !slices.Equal(got, want) {
			t.Errorf("allowed: %v, %t; want %v", got, restricted, want)
		}
	}
	expect()
	if err := p.AllowOnly([]kv.WorkerID{1, 0}); err != nil {
		t.Fatal(err)
	}
	expect(0, 1)
	if err := q.Renew(0); codeOf(err) != fault.Forbidden {
		t.Errorf("renewed: %v", err)
	}
	if s := p.Stats(); s.Pinned != 0 || s.Owners != 1 {
		t.Errorf("%+v", s)
	}
	if err := q.Join(0, kv.Worker{ID: 2}); codeOf(err) != fault.Forbidden {
		t.Errorf("joined: %v", err)
	}
	if err := p.AllowOnly([]kv.WorkerID{2, 1}); err != nil {
		t.Fatal(err)
	}
	expect(1, 2)
	if err := q.Join(0, kv.Worker{ID: 2}); err != nil {
		t.Error(err)
	}
	var many []kv.WorkerID
	for i := range maxAllowed + 1 {
		many = append(many, kv.WorkerID(10+i))
	}
	if err := p.AllowOnly(many); codeOf(err) != fault.Overloaded {
		t.Error(err)
	}
	p.AllowAll()
	expect()
}

// brokenData is memory of which a part cannot be accessed.
type brokenData struct {
	Data
	below int
}

var errBroken = errors.New("beyond the end of the file")

func (d *brokenData) CopyOut(dst []byte, at int) error {
	if at+len(dst) > d.below {
		return errBroken
	}
	return d.Data.CopyOut(dst, at)
}

func (d *brokenData) CopyIn(at int, src []byte) error {
	if at+len(src) > d.below {
		return errBroken
	}
	return d.Data.CopyIn(at, src)
}

// TestTruncated: memory which cannot be accessed is an error of the blocks there, and of no other.
func TestTruncated(t *testing.T) {
	b := newPool(t, smallConfig, 4)
	m := mapBytes(t, b)
	data := &brokenData{m.Data, len(b)}
	m.Data = data
	p := join(t, m, smallConfig, 1)
	for i := range 4 {
		mustPublish(t, p, contentOf(1, i))
	}
	data.below = p.lay.blockAt(2)
	lost := 0
	for i := range 4 {
		f, ok := p.Acquire(contentOf(1, i))
		if !ok {
			t.Fatal(i)
		}
		err := p.Read(f.Ref, make([]byte, p.BlockBytes()))
		if broken := f.Ref.Entry >= 2; broken != errors.Is(err, errBroken) || broken != (codeOf(err) == fault.PoolLost) {
			t.Errorf("block at %d: %v", f.Ref.Entry, err)
		}
		p.Release(f.Ref)
		if _, ok := p.Acquire(contentOf(1, i)); !ok {
			lost++
		}
	}
	if lost != 2 {
		t.Errorf("%d blocks were given up", lost)
	}
	w, _, err := p.Reserve(contentOf(2, 0), kv.MoELabel{}, nil)
	if err == nil {
		err = writeAll(p, 0, &w, make([]byte, p.BlockBytes()))
	}
	if codeOf(err) != fault.PoolLost {
		t.Error(err)
	}
}

// TestCheckFinds: Check reports what is wrong, whatever it is.
func TestCheckFinds(t *testing.T) {
	for what, spoil := range map[string]func(p *View, e int32){
		"data":        func(p *View, e int32) { p.words.Store(p.lay.blockAt(e)+8, 1) },
		"head":        func(p *View, e int32) { p.words.Store(p.lay.entryAt(e)+wordMover, 5) },
		"record":      func(p *View, e int32) { p.words.Store(p.lay.entryAt(e)+recordAt+64, 5) },
		"length":      func(p *View, e int32) { p.words.Store(p.lay.entryAt(e)+wordRecordLength, 1<<63) },
		"state":       func(p *View, e int32) { p.words.Store(p.lay.entryAt(e)+wordState, 9) },
		"pins":        func(p *View, e int32) { p.words.Store(p.lay.entryAt(e)+wordPins, 1<<40) },
		"index":       func(p *View, e int32) { p.words.Store(indexAt, 1<<24-1) },
		"owner":       func(p *View, e int32) { p.words.Store(ownerAt(9), 9) },
		"ended owner": func(p *View, e int32) { p.words.Store(ownerAt(9), uint64(lifeEnding)) },
		"no index": func(p *View, e int32) {
			for i := range p.lay.indexWords {
				p.words.Store(indexAt+8*i, 0)
			}
		},
		"forged": func(p *View, e int32) { // with the right checksums
			h, record, _ := p.loadContent(e, p.loadEntry(e).generation())
			h.identity[0]++
			sum := p.storeContent(e, p.loadEntry(e).generation(), &h, slices.Clone(record))
			p.words.Store(p.lay.entryAt(e)+wordEntrySum, sumEntry(sum, h.dataSum))
		},
		"other model": func(p *View, e int32) {
			p.identity[3]++
		},
	} {
		b := newPool(t, smallConfig, 4)
		p := join(t, mapBytes(t, b), smallConfig, 1)
		mustPublish(t, p, contentOf(1, 0))
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		f, ok := p.Acquire(contentOf(1, 0))
		if !ok {
			t.Fatal("the block is not there")
		}
		p.Release(f.Ref)
		spoil(p, f.Ref.Entry)
		if p.Check() == nil {
			t.Errorf("%s: Check finds nothing", what)
		}
	}
}

// TestDamageHeals: whatever words of the directory are damaged, a survivor gets all places back after a lease.
func TestDamageHeals(t *testing.T) {
	for seed := range 300 {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		b := newPool(t, smallConfig, 5)
		dead := join(t, mapBytes(t, b), smallConfig, 1)
		for i := range 3 {
			mustPublish(t, dead, contentOf(1, i))
		}
		for range 1 + rng.IntN(40) {
			at := ownersAt + rng.IntN(dead.lay.dataAt-ownersAt)/8*8
			if rng.IntN(2) == 0 {
				at = dead.lay.entryAt(int32(rng.IntN(5))) + 8*rng.IntN(2)
			}
			if at < accessAt || at >= indexAt {
				dead.words.Store(at, rng.Uint64()>>rng.IntN(64))
			}
		}
		p, err := Open(mapBytes(t, b), smallConfig)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Join(0, kv.Worker{ID: 2}); err != nil {
			t.Fatal(err)
		}
		now, _ := reclaim(t, p, 0)
		for i := range maxOwners {
			if s := p.loadLife(i).state(); s != lifeFree && i != p.owner {
				t.Errorf("owner %d is in state %d", i, s)
			}
		}
		for i := range 3 {
			if _, err := read(p, contentOf(1, i)); err != nil {
				t.Error(err)
			}
		}
		for i := range p.Blocks() {
			if _, err := publish(p, now, contentOf(2, i)); err != nil {
				t.Errorf("block %d: %v", i, err)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestTakeDamaged: each damaged block which is evicted is reported once, by its name, whatever has evicted it.
func TestTakeDamaged(t *testing.T) {
	head := func(at int, v uint64) func(*View, int32) {
		return func(p *View, e int32) { p.words.Store(p.lay.entryAt(e)+at, v) }
	}
	find := func(p *View, c *Content) { _, _ = p.Find(c) }
	for name, c := range map[string]struct {
		spoil func(p *View, e int32)
		meet  func(p *View, c *Content)
	}{
		"record":         {head(recordAt+64, 5), find},
		"length":         {head(wordRecordLength, 1<<63), find},
		"name":           {head(wordName, 5), find},
		"of an acquired": {head(wordMover, 5), func(p *View, c *Content) { p.Acquire(c) }},
		"of a reserved":  {head(wordMover, 5), func(p *View, c *Content) { _, _, _ = p.Reserve(c, kv.MoELabel{}, nil) }},
		"data": {func(p *View, e int32) { p.words.Store(p.lay.blockAt(e)+8, 1) }, func(p *View, c *Content) {
			f, _ := p.Acquire(c)
			for range 2 {
				if err := p.Verify(f.Ref); !errors.Is(err, ErrDamaged) {
					t.Error(err)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := join(t, mapBytes(t, newPool(t, smallConfig, 4)), smallConfig, 1)
			mustPublish(t, p, contentOf(1, 0))
			f, _ := p.Acquire(contentOf(1, 0))
			p.Release(f.Ref)
			if p.HasDamaged() || len(p.TakeDamaged(nil)) != 0 {
				t.Error("a block which is whole is reported")
			}
			c.spoil(p, f.Ref.Entry)
			c.meet(p, contentOf(1, 0))
			if got := p.TakeDamaged(nil); len(got) != 1 || got[0].Name != contentOf(1, 0).Name {
				t.Errorf("%x are reported", got)
			}
			if p.HasDamaged() || len(p.TakeDamaged(nil)) != 0 {
				t.Error("the block is reported once more")
			}
		})
	}
}

// TestDamagedAreBounded: while many damaged blocks wait to be reported, no other one is evicted.
func TestDamagedAreBounded(t *testing.T) {
	p := join(t, mapBytes(t, newPool(t, smallConfig, 4)), smallConfig, 1)
	c := contentOf(1, 0)
	mustPublish(t, p, c)
	f, _ := p.Acquire(c)
	p.words.Store(p.lay.blockAt(f.Ref.Entry)+8, 1)
	p.damaged = make([]EvictedBlock, maxDamaged)
	if err := p.Verify(f.Ref); !errors.Is(err, ErrDamaged) || len(p.damaged) != maxDamaged || p.Stats().Pooled != 1 {
		t.Errorf("%v: %d wait, %+v", err, len(p.damaged), p.Stats())
	}
	p.TakeDamaged(nil)
	if err := p.Verify(f.Ref); !errors.Is(err, ErrDamaged) || len(p.damaged) != 1 || p.Stats().Pooled != 0 {
		t.Errorf("%v: %d wait, %+v", err, len(p.damaged), p.Stats())
	}
}

// TestDamagedEvictedForRoom: a damaged block which makes room for another one is reported, if its name is right.
func TestDamagedEvictedForRoom(t *testing.T) {
	p := join(t, mapBytes(t, newPool(t, smallConfig, 1)), smallConfig, 1)
	mustPublish(t, p, contentOf(1, 0))
	p.words.Store(p.lay.entryAt(0)+wordRecordLength, 1<<63)
	if got := mustPublish(t, p, contentOf(2, 0)); len(got) != 1 || got[0].Name != contentOf(1, 0).Name {
		t.Errorf("%x are reported", got)
	}
	p.words.Store(p.lay.entryAt(0)+wordName, 5)
	if got := mustPublish(t, p, contentOf(1, 0)); len(got) != 0 {
		t.Errorf("%x are reported", got)
	}
}

// TestBytes holds the bytes of a pool with two blocks, and the example of docs/format/pool.md.
func TestBytes(t *testing.T) {
	b := newPool(t, smallConfig, 3)
	p := join(t, mapBytes(t, b), smallConfig, 1)
	mustPublish(t, p, contentOf(1, 0))
	mustPublish(t, p, contentOf(1, 1))
	const want = "9f8921b62311e90e0950c995474e395043a77ffa427bb93ccf12bda2b7f6b490"
	if got := fmt.Sprintf("%x", sha256.Sum256(b)); got != want {
		t.Errorf("the digest of the memory is %s", got)
	}
	c := &Content{Name: 3, Parent: 2, Hash: 4, Index: 5, Tokens: []kv.Token{6, 7, 8, 9}, Media: []kv.Media{{Hash: 10, Digest: kv.Digest{11}, Start: 12, End: 13}}}
	id, err := p.Identify(c)
	const wantID = "e8d08d6477c4d5805a81d93dcffde89f358f47ea5a574de193ad1ff934820cd4"
	if got := fmt.Sprintf("%x", id); err != nil || got != wantID {
		t.Errorf("the identity is %s, %v, of %x", got, err, p.wantedRecord())
	}
}

// TestAllocations: a look-up and a read allocate nothing, and neither does a publication.
func TestAllocations(t *testing.T) {
	b := newPool(t, testConfig, 4)
	p := join(t, mapBytes(t, b), testConfig, 1)
	c, missing := contentOf(1, 1), contentOf(1, 3)
	mustPublish(t, p, c)
	dst := make([]byte, p.BlockBytes())
	expect := func(what string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	expect("acquire and read", func() {
		f, ok := p.Acquire(c)
		if !ok || p.Read(f.Ref, dst) != nil || p.Verify(f.Ref) != nil {
			t.Error("the block is not there")
		}
		p.Release(f.Ref)
	})
	expect("find", func() {
		if f, err := p.Find(missing); f.State != kv.LocalGPU || err != nil {
			t.Error(f, err)
		}
	})
	evicted := make([]EvictedBlock, 0, 1)
	both := []*Content{contentOf(2, 1), contentOf(2, 3), contentOf(2, 5), contentOf(2, 7), contentOf(2, 9)}
	n := 0
	expect("publish", func() {
		n++
		w, _, err := p.Reserve(both[n%len(both)], kv.MoELabel{}, evicted)
		if err == nil {
			err = writeAll(p, 0, &w, dst)
		}
		if err == nil {
			err = p.Publish(&w)
		}
		if err != nil {
			t.Error(err)
		}
	})
	expect("renew and reclaim", func() {
		if p.Renew(0) != nil || len(p.Reclaim(0, nil)) != 0 {
			t.Error("not renewed")
		}
	})
}

// TestConcurrent: owners in goroutines, with the real atomics. No block has wrong bytes.
func TestConcurrent(t *testing.T) {
	b := newPool(t, smallConfig, 8)
	var all sync.WaitGroup
	for i := range 4 {
		p := join(t, mapBytes(t, b), smallConfig, kv.WorkerID(i))
		all.Go(func() {
			defer p.Leave()
			for n := range 1500 {
				c := contentOf(1, (n*7+i*3)%16)
				switch _, err := publish(p, 0, c); {
				case err == nil || errors.Is(err, ErrExists) || errors.Is(err, ErrFull):
				default:
					t.Error(err)
					return
				}
				if _, err := read(p, contentOf(1, (n*5+i)%16)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	p := join(t, mapBytes(t, b), smallConfig, 9)
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if s := p.Stats(); s.InTransit != 0 || s.Pinned != 0 || s.Pooled != 8 {
		t.Errorf("%+v", s)
	}
	if !bytes.Contains(b, dataOf(contentOf(1, 0), p.BlockBytes())) && !bytes.Contains(b, dataOf(contentOf(1, 1), p.BlockBytes())) {
		t.Log("neither block is there")
	}
}

// TestReserveUses: a block which is reserved again, because an engine has computed it too, counts as used.
func TestReserveUses(t *testing.T) {
	p := join(t, mapBytes(t, newPool(t, testConfig, 3)), testConfig, 1)
	room := p.Blocks()
	for n := range room {
		mustPublish(t, p, contentOf(n, 0))
	}
	if _, _, err := p.Reserve(contentOf(0, 0), kv.MoELabel{}, nil); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	w, evicted, err := p.Reserve(contentOf(room, 0), kv.MoELabel{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Abort(&w)
	if len(evicted) != 1 || evicted[0].Name != contentOf(1, 0).Name {
		t.Errorf("evicted are %v, want the second block", evicted)
	}
}

// TestUseOrder: blocks of one use are evicted last to first, also if others are used meanwhile, or some are not there.
func TestUseOrder(t *testing.T) {
	long, short := chainOf(1, 4), chainOf(2, 2)
	p := join(t, mapBytes(t, newPool(t, smallConfig, 5)), smallConfig, 1)
	for _, c := range []*Content{long[0], long[2], long[3], short[0], short[1]} {
		mustPublish(t, p, c)
	}
	var uses [2]Use
	for _, u := range []struct {
		use   int
		block *Content
	}{{0, long[0]}, {1, short[0]}, {0, long[1]}, {0, long[2]}, {1, short[1]}, {0, long[3]}} {
		f, err := p.FindUsed(u.block, &uses[u.use])
		if want := u.block != long[1]; err != nil || (f.State == kv.Pooled) != want {
			t.Fatalf("%+v, %v", f, err)
		}
	}
	for i, want := range []*Content{long[3], long[2], long[0], short[1], short[0]} {
		if got := mustPublish(t, p, contentOf(10+i, 0)); len(got) != 1 || got[0].Name != want.Name {
			t.Errorf("eviction %d: %v, want block %d of %d", i, got, want.Index, want.Tokens[0]/1000)
		}
	}
}
