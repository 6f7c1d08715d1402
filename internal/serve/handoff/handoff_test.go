package handoff

import (
	"fmt"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// TestRemotePrefill: prompts computed elsewhere give the tokens of one engine, around block boundaries, for all block
// sizes, greedy and seeded, for one choice and two, over calls and a queue. The decode worker computes at most a block of
// the prompt, and as many bytes move as the blocks have.
func TestRemotePrefill(t *testing.T) {
	sizes := []int{16, 64, 128}
	for _, decode := range sizes {
		for _, prefill := range sizes {
			for _, over := range []string{"calls", "a queue"} {
				t.Run(fmt.Sprintf("%d from %d over %s", decode, prefill, over), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var q bus.Queue
						if over == "a queue" {
							q = newQueue(t)
						}
						testRemotePrefill(t, newRig(t, rigConfig{blocks: []int{decode, prefill}, queue: q}))
					})
				})
			}
		}
	}
}

func testRemotePrefill(t *testing.T, r *rig) {
	decode, prefill := r.cache.layout.BlockSize, r.prefills[0].cache.layout
	remote := 0
	for i, n := range []int{1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 255, 256, 257, 400, 1000} {
		req := newRequest(i, n, 5)
		req.Choices = 1 + i%3/2
		if i%2 == 1 {
			req.Sampling = engine.Sampling{Temperature: 1, Seed: uint64(i)}
		}
		before := r.prefills[0].Stats()
		r.cache.takeComputed()
		o := r.expect(req, r.start(r.ctx, req))
		synctest.Wait()
		moved := r.prefills[0].Stats()
		end := (n - 1) / decode * decode
		if isRemote(o) != (end > 0) {
			t.Errorf("%d tokens: %+v", n, o)
		}
		if !isRemote(o) {
			continue
		}
		remote++
		// Another choice computes its part of the last block itself. Each choice computes its tokens but the last.
		if got, most := r.cache.takeComputed(), req.Choices*(n-end+4); got > most {
			t.Errorf("%d tokens: the decode worker computed %d, at most %d are expected", n, got, most)
		}
		blocks := (end + prefill.BlockSize - 1) / prefill.BlockSize
		if o.Start != 0 || o.End != end || o.Bytes != int64(blocks*prefill.BlockBytes) {
			t.Errorf("%d tokens: %d bytes for %d to %d, want %d blocks of %d bytes", n, o.Bytes, o.Start, o.End, blocks, prefill.BlockBytes)
		}
		if got := moved.Bytes - before.Bytes; got != uint64(o.Bytes) || moved.Written != before.Written+1 {
			t.Errorf("%d tokens: the prefill worker wrote %d bytes: %+v", n, got, moved)
		}
		if o.Jobs != 1 || o.Reason != 0 || o.Decision.Inputs.Tokens != n {
			t.Errorf("%d tokens: %+v", n, o)
		}
	}
	if remote < 6 {
		t.Errorf("the test tested little: %d requests were remote", remote)
	}
	r.expectIdle()
}

// TestPrefixHeld: blocks which the decode worker holds do not move, also those of a request which resumes.
func TestPrefixHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}})
		req := newRequest(1, 300, 5)
		r.expect(req, r.start(r.ctx, req))
		next := newRequest(1, 600, 5)
		next.Prompt[599]++
		if o := r.expect(next, r.start(r.ctx, next)); o.Start != 288 || o.End != 592 || !isRemote(o) {
			t.Errorf("%+v", o)
		}
		resumed := newRequest(1, 600, 5)
		resumed.Attempt = 2
		resumed.Generated = append(resumed.Generated, r.alone(resumed)[0].Tokens[:3])
		if o := r.expect(resumed, r.start(r.ctx, resumed)); isRemote(o) || o.Decision.Inputs.Tokens != 603 {
			t.Errorf("a request whose blocks are held: %+v", o)
		}
		r.expectIdle()
	})
}

// TestResumedChoices: several choices which resume are not divided: an earlier one may have ended without being marked,
// and the tokens which would move are not those which the engine computes.
func TestResumedChoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}})
		req := newRequest(1, 400, 40)
		req.Choices, req.Attempt = 2, 2
		req.Sampling = engine.Sampling{Temperature: 1, Seed: 1}
		whole := r.alone(req)
		req.Generated = [][]kv.Token{whole[0].Tokens, whole[1].Tokens[:2]}
		r.compare(req, <-r.start(r.ctx, req))
		r.expectIdle()
		if s := r.decoder.Stats(); s.Jobs != 0 {
			t.Errorf("the request was divided: %+v", s)
		}
	})
}
