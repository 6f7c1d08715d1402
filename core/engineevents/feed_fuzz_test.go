package engineevents

import (
	"math/rand/v2"
	"testing"
	"time"

	"penstock/core/kv"
)

// feedTable applies b to tables of several kinds, and checks the contract of their events.
func feedTable(t *testing.T, b *Batch) {
	for _, cfg := range []Config{{BlockSize: 2}, {BlockSize: 4, EngineBlockSize: 1, Clears: ClearsAll}, {BlockSize: 32, EngineBlockSize: 16, MaxBlocks: 3}, {BlockSize: 2, Capacity: 9}, {BlockSize: 4, EngineBlockSize: 1, Capacity: 9, Clears: ClearsAll}} {
		table := newTable(t, cfg)
		told := tierPrefixes{}
		for range 2 {
			for _, ev := range applyBeside(t, table, b) {
				switch ev.Kind {
				case kv.Cleared:
					told = tierPrefixes{}
				case kv.Stored:
					seq := ev.Parent
					for i, h := range ev.Blocks {
						seq = kv.ExtendSeq(seq, ev.Start+uint32(i), h)
						told.add(ev.Tier, seq)
					}
				case kv.Removed:
					for _, seq := range ev.Seqs {
						delete(told[ev.Tier], seq)
					}
				}
			}
		}
		// Two engine hashes may be one block of ours, so a description may have fewer blocks.
		again := tierPrefixes{}
		for _, ev := range table.Describe(nil) {
			seq := ev.Parent
			for i, h := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), h)
				again.add(ev.Tier, seq)
			}
		}
		for tier := range kv.Tier(kv.Tiers) {
			for seq := range told[tier] {
				if !again[tier][seq] {
					t.Fatalf("%v block %x was told of, and is not described", tier, seq)
				}
			}
		}
		table.Clear(nil)
		if s := table.Stats(); s.Held != 0 || s.Blocks != [kv.Tiers]int{} {
			t.Fatalf("a cleared table has %+v", s)
		}
	}
}

// applyBeside applies b while the engine serves a prompt with tokens of it, if the table follows requests.
func applyBeside(t *testing.T, table *Table, b *Batch) []kv.Event {
	var prompt []kv.Token
	for i := range b.Events {
		prompt = append(prompt, b.Events[i].Tokens[:min(len(b.Events[i].Tokens), 40)]...)
	}
	out := table.SetHistory(PartialHistory, nil)
	number := table.RecordSent(prompt, nil, kv.Salt{})
	out = table.RecordCached(number, len(prompt)/3, out)
	out = table.Apply(b, out)
	table.RecordGenerated(number, []kv.Token{1, 2, 3})
	table.RecordEnd(number, Served, 0)
	out = table.ResolveHashes(kv.Mono(settleDelay), out)
	if err := table.inferred.check(); err != nil {
		t.Fatal(err)
	}
	if err := table.orphans.check(); err != nil {
		t.Fatal(err)
	}
	return out
}

// FuzzTable: no batch breaks a table.
func FuzzTable(f *testing.F) {
	for seed := range uint64(20) {
		d := dialect{Rand: rand.New(rand.NewPCG(seed, 9))}
		f.Add(d.batch())
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var dec Decoder
		var b Batch
		if dec.Decode(payload, &b) == nil {
			feedTable(t, &b)
		}
	})
}

// FuzzMachine: no frames break the machine, in any order.
func FuzzMachine(f *testing.F) {
	f.Add([]byte("kv\x00sgl-kv-epoch=1"), []byte("\x00\x00\x00\x00\x00\x00\x00\x05"), []byte("batch"), uint64(3))
	f.Add([]byte(""), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), []byte(""), uint64(77))
	f.Fuzz(func(t *testing.T, topic, number, payload []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := NewMachine(MachineConfig{Replay: ReplaySupport(seed % 2), HeldFrames: 4})
		now := kv.Mono(0)
		attempt := uint32(0)
		var out []Effect
		for range 40 {
			frames := [][]byte{topic, number, payload}[rng.IntN(2):]
			if rng.IntN(3) > 0 {
				frames = [][]byte{nil, {0, 0, 0, 0, 0, 0, 0, byte(rng.IntN(9))}, payload}
			}
			switch rng.IntN(8) {
			case 0:
				out = m.Connected(now, out)
			case 1:
				out = m.Disconnected(now, out)
			case 2:
				out = m.ReplayFailed(now, attempt, out)
			case 3, 4:
				out = m.HandleReplay(now, attempt, frames, out)
			case 5:
				now = now.Add(time.Second)
				out = m.Tick(now, out)
			default:
				out = m.HandleLive(now, frames, out)
			}
			for _, e := range out {
				if e.Kind == Ask {
					attempt = e.Attempt
				}
			}
			out = out[:0]
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
