package pool

import (
	"encoding/binary"
	"testing"

	"penstock/core/kv"
)

// useAll calls all methods of a pool which may have any content, and reports wrong bytes.
func useAll(t *testing.T, p *View) {
	t.Helper()
	now := kv.Mono(0)
	_ = p.Check()
	_ = p.Join(now, kv.Worker{ID: 5})
	for n := range 3 {
		if _, err := read(p, contentOf(1, n)); err != nil {
			t.Error(err)
		}
		if _, err := p.Find(contentOf(1, n)); err != nil {
			t.Error(err)
		}
	}
	all, next := p.AppendPooled(nil, 0, 1<<30)
	if owners := p.AppendOwners(nil); len(all) > p.Blocks() || next != p.Blocks() || len(owners) > maxOwners {
		t.Errorf("%d blocks and %d owners are listed, of %d and %d", len(all), len(owners), p.Blocks(), maxOwners)
	}
	p.Reclaim(now, nil)
	for n := range 4 {
		_, _ = publish(p, now, contentOf(2, n))
	}
	_ = p.Renew(now)
	now = now.Add(testLease)
	p.Reclaim(now, nil)
	if err := p.Join(now, kv.Worker{ID: 6}); err == nil {
		for n := range 4 {
			_, _ = publish(p, now, contentOf(3, n))
			if _, err := read(p, contentOf(3, n)); err != nil {
				t.Error(err)
			}
		}
		_ = p.AllowOnly([]kv.WorkerID{6})
		p.Leave()
	}
	p.Stats()
}

func fuzzConfig() (Config, int) { return smallConfig, 4 }

// FuzzOpen: whatever memory holds, it is opened without an access outside of it, and then used.
func FuzzOpen(f *testing.F) {
	cfg, blocks := fuzzConfig()
	good := newPool(f, cfg, blocks)
	p := join(f, mapBytes(f, good), cfg, 1)
	mustPublish(f, p, contentOf(1, 0))
	f.Add(good[:wordRestricted], uint32(len(good)))
	f.Add(good[:wordRestricted], uint32(len(good)+64))
	f.Add(good, uint32(len(good)))
	f.Fuzz(func(t *testing.T, begin []byte, size uint32) {
		b := make([]byte, size%(1<<17)/8*8+8)
		copy(b, begin)
		m := mapBytes(t, b)
		if len(b) >= pageSize && len(begin) >= wordHeaderSum { // the checksum is no obstacle
			m.Words.Store(wordMagic, poolMagic)
			m.Words.Store(wordHeaderSum, sumHeader(m.Words))
		}
		if p, err := Open(m, cfg); err == nil {
			useAll(t, p)
		}
	})
}

// FuzzDirectory changes words of a pool: no method accesses memory outside of it, loops for ever, or takes a block for
// what it is not. Each ten bytes say which word, and what is in it.
func FuzzDirectory(f *testing.F) {
	cfg, blocks := fuzzConfig()
	good := newPool(f, cfg, blocks)
	p := join(f, mapBytes(f, good), cfg, 1)
	for n := range 3 {
		mustPublish(f, p, contentOf(1, n))
	}
	change := func(at int, v uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16(nil, uint16(at/8)), v)
	}
	e := p.lay.entryAt(0)
	f.Add(change(e+wordState, 0xffff_ffff_ffff_ff02))
	f.Add(change(e+wordState, uint64(packEntry(entryInTransit, 200, 1, 1))))
	f.Add(change(e+wordRecordLength, 1<<40))
	f.Add(change(e+wordPins, 1<<64-1))
	f.Add(change(e+wordName, 1))
	f.Add(change(p.lay.historyAt, 1<<64-1))
	f.Add(change(ownerAt(1), uint64(packLife(lifeEnding, 4, 4))))
	f.Add(change(ownerAt(0), 1<<64-1))
	f.Add(change(wordTick, 1<<64-1))
	f.Add(change(p.lay.dataAt, 1))
	f.Add(append(change(indexAt, 1<<64-1), change(wordGeneration, 0)...))
	f.Fuzz(func(t *testing.T, changes []byte) {
		b := append([]byte(nil), good...)
		m := mapBytes(t, b)
		for ; len(changes) >= 10; changes = changes[10:] {
			at := int(binary.LittleEndian.Uint16(changes)) * 8 % len(b)
			m.Words.Store(at, binary.LittleEndian.Uint64(changes[2:]))
		}
		if p, err := Open(m, cfg); err == nil {
			useAll(t, p)
		}
	})
}
