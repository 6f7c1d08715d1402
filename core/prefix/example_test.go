package prefix_test

import (
	"fmt"

	"penstock/core/kv"
	"penstock/core/prefix"
)

// Two workers report what they have cached; the index answers how much of a prompt each of them has.
func Example() {
	hasher, err := kv.NewHasher(4, kv.Salt{})
	if err != nil {
		fmt.Println(err)
		return
	}
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt := []kv.Token{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	blocks := hasher.AppendBlockHashes(nil, prompt, nil)
	chain := hasher.AppendSeqHashes(nil, prompt, nil)

	// Worker 1 stored the whole prompt, and then evicted its last block; worker 2 stored the first block.
	index.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: kv.Stored, Blocks: blocks})
	index.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: kv.Removed, Seqs: chain[2:]})
	index.ApplyEvent(kv.Worker{ID: 2}, kv.Event{Kind: kv.Stored, Blocks: blocks[:1]})

	var match prefix.Match // reused from prompt to prompt, it allocates nothing
	index.Match(&match, chain, nil)
	for _, o := range match.AppendOverlaps(nil) {
		fmt.Printf("worker %d has %d of %d blocks\n", o.Worker.ID, o.Depth(), len(chain))
	}
	// Output:
	// worker 1 has 2 of 3 blocks
	// worker 2 has 1 of 3 blocks
}

// Without events from the engine, the index predicts that a worker keeps what was sent to it, for a while.
func ExampleApprox() {
	approx, err := prefix.NewApprox(prefix.ApproxConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	chain := []kv.SeqHash{11, 12, 13}
	approx.RecordSent(0, kv.Worker{ID: 1}, chain[:2])

	var match prefix.Match
	approx.Match(&match, chain, nil)
	for _, o := range match.AppendOverlaps(nil) {
		fmt.Printf("worker %d is predicted to have %d blocks\n", o.Worker.ID, o.Depth())
	}
	approx.ExpireBlocks(kv.Mono(130e9)) // 130 s later
	approx.Match(&match, chain, nil)
	fmt.Println(len(match.AppendOverlaps(nil)), "workers after the TTL")
	// Output:
	// worker 1 is predicted to have 2 blocks
	// 0 workers after the TTL
}
