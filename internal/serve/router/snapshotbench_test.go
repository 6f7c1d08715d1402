package router

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
)

// fill makes workers store blocks in prompts of 768 blocks, a quarter of each being a system prompt
// that several share, each prompt on some of the workers. It calls say with each record and returns the
// number of distinct blocks, and of entries (block, worker).
func fill(workers, blocks, copies int, say func(*kvfeed.Record)) (distinct, entries int) {
	const shared, own, families = 192, 576, 64
	rng := rand.New(rand.NewPCG(1, 0))
	next := map[kv.Worker]uint64{}
	tell := func(w kv.Worker, ev kv.Event) {
		if next[w] == 0 {
			next[w] = 1
			say(&kvfeed.Record{Worker: w, Epoch: 1, First: 1, BlockSize: 16, Events: []kv.Event{{Kind: kv.Cleared}}})
			next[w]++
		}
		say(&kvfeed.Record{Worker: w, Epoch: 1, First: next[w], BlockSize: 16, Events: []kv.Event{ev}})
		next[w]++
	}
	hashes := func(n int) []kv.BlockHash {
		all := make([]kv.BlockHash, n)
		for i := range all {
			all[i] = kv.BlockHash(rng.Uint64())
		}
		return all
	}
	type holding struct {
		w      kv.Worker
		family int
	}
	var heads [families][]kv.BlockHash
	has, counted := map[holding]bool{}, [families]bool{}
	for distinct < blocks {
		family := rng.IntN(families)
		if heads[family] == nil {
			heads[family] = hashes(shared)
		}
		var parent kv.SeqHash
		for i, b := range heads[family] {
			parent = kv.ExtendSeq(parent, uint32(i), b)
		}
		tail, first := hashes(own), rng.IntN(workers)
		for i := range copies {
			w := kv.Worker{ID: kv.WorkerID(1 + (first+i)%workers)}
			if h := (holding{w, family}); !has[h] {
				has[h] = true
				entries += shared
				tell(w, kv.Event{Kind: kv.Stored, Blocks: heads[family]})
			}
			tell(w, kv.Event{Kind: kv.Stored, Start: shared, Parent: parent, Blocks: tail})
			entries += own
		}
		if distinct += own; !counted[family] {
			counted[family] = true
			distinct += shared
		}
	}
	return distinct, entries
}

const benchWorkers, benchBlocks = 64, 1_000_000

// benchSizes are the numbers of workers that hold each prompt.
var benchSizes = []int{1, 4}

func newBenchCache(tb testing.TB) *cacheIndex {
	tb.Helper()
	var cfg Config
	cfg.EnsureDefaults()
	c := &cacheIndex{}
	if err := c.initialize(&cfg, func() kv.Mono { return 0 }); err != nil {
		tb.Fatal(err)
	}
	return c
}

// A snapshot of a million blocks: its size, and the time to encode it, during which records wait, and
// to check and load it.
func BenchmarkSnapshot(b *testing.B) {
	for _, copies := range benchSizes {
		c := newBenchCache(b)
		seq := uint64(0)
		distinct, entries := fill(benchWorkers, benchBlocks, copies, func(rec *kvfeed.Record) {
			seq++
			if _, ok := c.acceptRecord(streamPosition{1, seq}, rec); !ok {
				b.Fatal("events are not used")
			}
		})
		_, data := c.takeSnapshot(1, 0)
		size := func(b *testing.B) {
			b.ReportMetric(float64(len(data))/float64(distinct), "B/block")
			b.ReportMetric(float64(len(data))/float64(entries), "B/entry")
		}
		b.Run(fmt.Sprintf("encode/copies=%d", copies), func(b *testing.B) {
			for range b.N {
				c.encodeContent(1, len(data))
			}
			size(b)
		})
		b.Run(fmt.Sprintf("whole/copies=%d", copies), func(b *testing.B) {
			for range b.N {
				c.takeSnapshot(1, len(data))
			}
			size(b)
		})
		b.Run(fmt.Sprintf("load/copies=%d", copies), func(b *testing.B) {
			for range b.N {
				if _, err := newBenchCache(b).restoreSnapshot(data); err != nil {
					b.Fatal(err)
				}
			}
			size(b)
		})
	}
}

// A router that starts over an embedded server, until it has caught up: with a snapshot of a million
// blocks and 10,000 messages after it, and without, from a stream with only those blocks' stores, which
// is the best case of a stream.
func BenchmarkRestart(b *testing.B) {
	for _, mode := range []string{"snapshot", "stream"} {
		b.Run(mode, func(b *testing.B) { benchmarkRestart(b, mode == "snapshot") })
	}
}

func benchmarkRestart(b *testing.B, durable bool) {
	server, err := natsd.Start(natsd.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	nc, err := server.Connect("bench")
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	events, err := bus.NewNATSBus(nc, bus.NATSBusConfig{})
	if err != nil {
		b.Fatal(err)
	}
	archive, err := bus.NewNATSArchive(nc, bus.ArchiveConfig{})
	if err != nil {
		b.Fatal(err)
	}
	topic, c, seq := bus.KVEventsTopic("penstock", "backend"), newBenchCache(b), uint64(0)
	span, err := events.DescribeTopic(b.Context(), topic)
	if err != nil {
		b.Fatal(err)
	}
	publish := func(rec *kvfeed.Record) {
		seq++
		if _, ok := c.acceptRecord(streamPosition{span.Incarnation, seq}, rec); !ok {
			b.Fatal("events are not used")
		}
		if err := events.Publish(b.Context(), topic, engine.WorkerKey(rec.Worker), kvfeed.AppendRecord(nil, rec)); err != nil {
			b.Fatal(err)
		}
	}
	fill(benchWorkers, benchBlocks, 1, publish)
	planes := Planes{Bus: events, Registry: disco.NewMemRegistry()}
	if durable {
		planes.Archive = archive
		at, data := c.takeSnapshot(time.Now().UnixMilli(), 0)
		if err := archive.Put(b.Context(), (&Router{cfg: Config{Namespace: "penstock", Component: "backend"}}).snapshotName(at), data); err != nil {
			b.Fatal(err)
		}
		if err := events.Purge(b.Context(), topic, seq+1); err != nil {
			b.Fatal(err)
		}
		for i := range uint64(10_000) { // a threshold's worth
			publish(&kvfeed.Record{Worker: kv.Worker{ID: 1000}, Epoch: 1, First: 1 + i, BlockSize: 16, Events: []kv.Event{{Kind: kv.Cleared}}})
		}
	}
	want := c.indexStats().Blocks
	b.ResetTimer()
	for range b.N {
		r, err := New(Config{}, planes, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		if r.mustRestore = true; r.restoreState(b.Context()) != nil {
			b.Fatal("no snapshot was restored")
		}
		r.mustRestore = false
		ctx, stop := context.WithCancel(b.Context())
		f := &eventSubscription{router: r, last: r.cache.position()}
		if err := events.Subscribe(ctx, topic, f.nextSeq(), func(m bus.Message) error { return f.handleMessage(ctx, m) }, stop); err != nil {
			b.Fatal(err)
		}
		if got := r.cache.indexStats().Blocks; got != want {
			b.Fatalf("%d blocks are known after the start, want %d", got, want)
		}
	}
	b.StopTimer() // without the server's shutdown
	b.ReportMetric(float64(want), "blocks")
}
