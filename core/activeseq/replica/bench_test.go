package replica

import (
	"strconv"
	"testing"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// BenchmarkRequest measures one request from start to end, with 768 blocks of which others share half: in a
// table alone, with a replica without peers, with one which publishes to others, and at one which receives.
func BenchmarkRequest(b *testing.B) {
	for _, name := range []string{"table", "alone", "telling", "told"} {
		b.Run(name, func(b *testing.B) {
			from, to := newNode(b, 1, 1, 6), newNode(b, 2, 1, 6)
			table := from.tables[1]
			if name == "table" {
				var err error
				if table, err = activeseq.New(activeseq.Config{BlockSize: 4}); err != nil {
					b.Fatal(err)
				}
			}
			if name == "telling" || name == "told" {
				for _, data := range to.replica.Tick(0, nil) {
					if err := from.replica.HandleMessage(0, data); err != nil {
						b.Fatal(err)
					}
				}
			}
			chains := make([][]kv.SeqHash, 64)
			for i := range chains {
				for j := range 768 {
					group := 0
					if j >= 384 {
						group = i + 1
					}
					chains[i] = append(chains[i], kv.SeqHash(group<<32|j))
				}
			}
			keys := make([]activeseq.AttemptKey, 256)
			for i := range keys {
				keys[i] = activeseq.AttemptKey{ID: "request-" + strconv.Itoa(i), Attempt: 1}
			}
			var out [][]byte
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				now := kv.Mono(i) * kv.Mono(time.Millisecond)
				key := keys[i%len(keys)]
				table.Free(key) // its request started len(keys) iterations ago
				err := table.Reserve(now, key, kv.Worker{ID: kv.WorkerID(1 + i%3*2)}, activeseq.Demand{Chain: chains[i%len(chains)], PromptTokens: 768 * 16})
				if err != nil {
					b.Fatal(err)
				}
				table.MarkPrefilled(key)
				if name == "telling" {
					out = from.replica.Tick(now, out[:0])
				}
				if name != "told" {
					continue
				}
				b.StopTimer()
				out = from.replica.Tick(now, out[:0])
				b.StartTimer()
				for _, data := range out {
					if err := to.replica.HandleMessage(now, data); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
