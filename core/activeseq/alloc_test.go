package activeseq

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"penstock/core/kv"
)

// prompts returns chains of depth blocks with the first shared ones in common.
func prompts(n, shared, depth int) [][]kv.SeqHash {
	rng := rand.New(rand.NewPCG(1, 2))
	common := make([]kv.SeqHash, shared)
	for i := range common {
		common[i] = kv.SeqHash(rng.Uint64())
	}
	out := make([][]kv.SeqHash, n)
	for i := range out {
		out[i] = append([]kv.SeqHash(nil), common...)
		for range depth - shared {
			out[i] = append(out[i], kv.SeqHash(rng.Uint64()))
		}
	}
	return out
}

func keys(n int) []AttemptKey {
	out := make([]AttemptKey, n)
	for i := range out {
		out[i] = AttemptKey{"request-" + strconv.Itoa(i), 1}
	}
	return out
}

// load64 reserves 16 requests on each of 64 workers.
func load64(t testing.TB, table *ReservationTable, chains [][]kv.SeqHash, keys []AttemptKey) {
	t.Helper()
	for i := range keys {
		d := Demand{Chain: chains[i%len(chains)], PromptTokens: 16 * len(chains[0])}
		if err := table.Reserve(0, keys[i], kv.Worker{ID: kv.WorkerID(i%64 + 1)}, d); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	table := mustNew(t, Config{BlockSize: 16})
	chains, keys := prompts(256, 20, 120), keys(1024)
	load64(t, table, chains, keys)
	i := 0
	step := func() {
		key, w := keys[i%len(keys)], kv.Worker{ID: kv.WorkerID(i%64 + 1)}
		table.MarkPrefilled(key)
		table.AddOutput(key, 20)
		table.Free(key)
		d := Demand{Chain: chains[i*7%len(chains)], PromptTokens: 2000, OverlapBlocks: 20}
		table.ProjectLoad(w, d)
		if err := table.Reserve(kv.Mono(i), key, w, d); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for range 4 * len(keys) { // until maps and records have reached their size
		step()
	}
	if allocs := testing.AllocsPerRun(2000, step); allocs != 0 {
		t.Errorf("%v allocations per request, want 0", allocs)
	}
}

// TestLongChainsGiveMemoryBack: a vacant record does not keep the memory of a huge prompt.
func TestLongChainsGiveMemoryBack(t *testing.T) {
	table := mustNew(t, Config{BlockSize: 16})
	long := prompts(1, 0, keepChain+1)[0]
	if err := table.Reserve(0, AttemptKey{"r", 1}, kv.Worker{ID: 1}, Demand{Chain: long, PromptTokens: 16 * len(long)}); err != nil {
		t.Fatal(err)
	}
	table.Free(AttemptKey{"r", 1})
	if c := cap(table.records[0].chain); c > keepChain {
		t.Errorf("a vacant record keeps %d blocks", c)
	}
}

func BenchmarkReserveFree(b *testing.B) {
	table := mustNew(b, Config{BlockSize: 16})
	chains, keys := prompts(256, 20, 120), keys(1024)
	load64(b, table, chains, keys)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key := keys[i%len(keys)]
		table.Free(key)
		d := Demand{Chain: chains[i*7%len(chains)], PromptTokens: 2000}
		if err := table.Reserve(0, key, kv.Worker{ID: kv.WorkerID(i%64 + 1)}, d); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReserveFreeApart reserves and frees prompts of 31 blocks which share nothing, 64 at a time on one
// worker.
func BenchmarkReserveFreeApart(b *testing.B) {
	table := mustNew(b, Config{BlockSize: 16})
	chains, keys := prompts(8192, 0, 31), keys(64)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key := keys[i%len(keys)]
		table.Free(key)
		d := Demand{Chain: chains[i%len(chains)], PromptTokens: 500}
		table.ProjectLoad(kv.Worker{ID: 1}, d)
		if err := table.Reserve(0, key, kv.Worker{ID: 1}, d); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProject64 projects the load of each of 64 workers for one prompt.
func BenchmarkProject64(b *testing.B) {
	table := mustNew(b, Config{BlockSize: 16})
	chains, keys := prompts(256, 20, 120), keys(1024)
	load64(b, table, chains, keys)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d := Demand{Chain: chains[i%len(chains)], PromptTokens: 2000}
		for w := range 64 {
			table.ProjectLoad(kv.Worker{ID: kv.WorkerID(w + 1)}, d)
		}
	}
}
