package paged

import (
	"slices"
	"testing"

	"penstock/core/kv"
)

// forged returns a block of 8 tokens whose hash under salt does not depend on a and b. XXH3 folds each 16
// bytes of a short input into a product whose first factor is the input's first 8 bytes, exclusive-or a
// constant plus the seed: if those are equal, the product is 0 for any other 8 bytes.
func forged(salt kv.Salt, a, b kv.Token, rest [4]kv.Token) []kv.Token {
	const secret = 0xbe4ba423396cfeb8 // the first 8 bytes of XXH3's default secret
	lane := secret + salt.Seed()
	return []kv.Token{kv.Token(uint32(lane)), kv.Token(lane >> 32), a, b, rest[0], rest[1], rest[2], rest[3]}
}

func TestForgedBlockIsNotShared(t *testing.T) {
	salt := kv.Salt{Namespace: "victim"}
	rest := [4]kv.Token{7, 7, 7, 7}
	mine, theirs := forged(salt, 1, 2, rest), forged(salt, 3, 4, rest)

	h, err := kv.NewHasher(8, salt)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := h.HashBlock(mine, 0, nil), h.HashBlock(theirs, 0, nil); a != b {
		t.Fatalf("the blocks hash to %x and %x: the forgery does not work, so this test proves nothing", a, b)
	}

	r, err := newRig(Config{Blocks: 16, BlockSize: 8, MaxSeqs: 4, TokenBudget: 64, MaxContext: 64, MaxWaiting: 4})
	if err != nil {
		t.Fatal(err)
	}
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(id SeqID, tokens []kv.Token) Work {
		t.Helper()
		try(r.add(Sequence{ID: id, Salt: salt, Tokens: tokens, Prompt: len(tokens)}))
		try(r.plan())
		w := r.step.Work[len(r.step.Work)-1]
		try(r.compute())
		try(r.commit(nil))
		return w
	}
	tail := []kv.Token{5, 5, 5, 5, 5, 5, 5, 5, 9}
	run(1, slices.Concat(mine, tail))
	if w := run(2, slices.Concat(theirs, tail)); w.Cached != 0 {
		t.Errorf("a forged prefix was served %d tokens from another's cache", w.Cached)
	}
	if got := len(r.s.pool.index); got != 2 {
		t.Errorf("%d blocks are registered, want the 2 of the first sequence", got)
	}
	if got := r.s.Stats().Collisions; got != 1 {
		t.Errorf("%d collisions counted, want 1: blocks after the first are not tried", got)
	}
	if w := run(3, slices.Concat(mine, tail)); w.Cached != 16 {
		t.Errorf("the first prefix is served %d tokens from the cache, want 16", w.Cached)
	}
	// When the first block is gone, the hash is free for the other.
	try(r.remove(1))
	try(r.remove(2))
	try(r.remove(3))
	try(r.clear())
	run(4, slices.Concat(theirs, tail))
	try(r.remove(4))
	if w := run(5, slices.Concat(theirs, tail)); w.Cached != 16 {
		t.Errorf("after the first has gone, the other is served %d tokens, want 16", w.Cached)
	}
}
