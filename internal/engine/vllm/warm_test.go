package vllm

import (
	"context"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/zmtp"
)

// TestLearnsWarmServer checks that for a server which served before it was followed, and does not replay its
// events, hits are predicted after the first requests that find them, also where blocks are joined.
func TestLearnsWarmServer(t *testing.T) {
	for name, size := range map[string]int{"blocks": 16, "joined": 32} {
		t.Run(name, func(t *testing.T) {
			before := run(t, nil, func(s *remote.Spec) { s.Replay, s.BlockSize = zmtp.Endpoint{}, size })
			ask := func(r *rig, seed uint64, tail int) (cached int, last kv.SeqHash) {
				req := request(seed, 128, 4)
				for i := range 70 {
					req.Prompt = append(req.Prompt, kv.Token(100+10*tail+i%7))
				}
				h, err := kv.NewHasher(size, kv.Salt{})
				if err != nil {
					t.Fatal(err)
				}
				chain := h.AppendSeqHashes(nil, req.Prompt, nil)
				return r.cached(t, req), chain[len(chain)-1]
			}
			ask(before, 1, 1)
			e := opened(t, before.spec, before.Card())
			r := &rig{e, before.server, enginetest.Start(t, e)}
			for seed := uint64(100); r.Stats().Batches == 0; seed++ { // events from before the subscription are lost
				r.cached(t, request(seed, 20, 1))
			}
			begun := r.Stats()
			for i := range 16 {
				cached, last := ask(r, 1, 2+i%5)
				if i == 0 && cached != 128 || i > 4 && cached != 192 {
					t.Errorf("request %d finds %d tokens", i, cached)
				}
				r.has(t, last)
				for i == 4 && r.Stats().Waiting > 0 { // hashes are found shortly after the requests that reveal them
					select {
					case <-time.After(time.Millisecond):
					case <-r.ctx.Done():
						t.Fatalf("blocks still wait: %+v", r.Stats())
					}
				}
			}
			s := r.Stats()
			if s.Compared-begun.Compared != 16 || s.Mismatched-begun.Mismatched != 1 || s.Reported-s.Predicted != begun.Reported-begun.Predicted+128 {
				t.Errorf("predicted beside reported: %+v, before %+v", s, begun)
			}
			if slices.Contains(codes(r.Warnings()), engine.WarnOrphans) {
				t.Error("blocks still wait")
			}
		})
	}
}

// has waits until the adapter knows a block of the server's.
func (r *rig) has(t *testing.T, seq kv.SeqHash) {
	t.Helper()
	replica := enginetest.NewCacheReplica()
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.WatchKV(ctx, replica.Sink) }()
	if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[seq] }); err != nil {
		t.Errorf("the adapter never knows of block %x", seq)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch: %v", err)
	}
}
