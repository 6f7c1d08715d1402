// Package routing shows how a program of its own decides where prompts go: with the index
// of what workers have cached and the choice among them, and nothing else of Penstock. Both
// are plain values without goroutines, clocks or connections.
package routing_test

import (
	"fmt"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/route"
)

const blockSize = 4

// Two workers, of which one has computed the system prompt before: a prompt that begins
// with it goes there, as long as the other is not much less loaded.
func Example() {
	if err := decide(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// worker 1 has 3 blocks of the prompt
	// a goes to worker 1 at 10.0.0.1:9000, where 3 blocks are cached
	// worker 1: 4 tokens to prefill, 3 blocks, cost 4.00
	// worker 2: 14 tokens to prefill, 3 blocks, cost 6.50
	// b goes to worker 1 at 10.0.0.1:9000, where 3 blocks are cached
}

func decide() error {
	// What workers have cached comes as events, in the hashes of package kv: here one that a
	// worker sent when it had computed three blocks.
	hasher, err := kv.NewHasher(blockSize, kv.Salt{})
	if err != nil {
		return err
	}
	system := []kv.Token{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		return err
	}
	index.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: kv.Stored, Blocks: hasher.AppendBlockHashes(nil, system, nil)})

	// What is active on them is counted as requests come and go.
	active, err := activeseq.New(activeseq.Config{BlockSize: blockSize})
	if err != nil {
		return err
	}
	router, err := route.New(route.Config{Mode: route.KV, Seed: 1}, active)
	if err != nil {
		return err
	}
	err = router.SetWorkers([]route.Target{
		{Worker: kv.Worker{ID: 1}, Addr: "10.0.0.1:9000", BlockSize: blockSize, State: route.Ready},
		{Worker: kv.Worker{ID: 2}, Addr: "10.0.0.2:9000", BlockSize: blockSize, State: route.Ready},
	})
	if err != nil {
		return err
	}

	// A prompt is hashed and looked up once; the rest is arithmetic. Time is whatever clock
	// the caller has.
	var now kv.Mono
	prompt := append(system, 13, 14)
	query := route.Query{
		Key: activeseq.AttemptKey{ID: "a", Attempt: 1}, PromptTokens: len(prompt),
		Chain: hasher.AppendSeqHashes(nil, prompt, nil),
	}
	var match prefix.Match // used again, it allocates nothing
	index.Match(&match, query.Chain, nil)
	query.Overlaps = match.AppendOverlaps(nil)
	for _, o := range query.Overlaps {
		fmt.Printf("worker %d has %d blocks of the prompt\n", o.Worker.ID, o.Depth())
	}
	if err := pick(router, now, &query); err != nil {
		return err
	}

	// The next one waits for the first where its prefix is, and still costs less there.
	query.Key.ID = "b"
	x, err := router.Explain(now, &query)
	if err != nil {
		return err
	}
	for _, c := range x.Candidates {
		fmt.Printf("worker %d: %d tokens to prefill, %d blocks, cost %.2f\n", c.Worker.ID, c.PrefillTokens, c.DecodeBlocks, c.Cost)
	}
	if err := pick(router, now, &query); err != nil {
		return err
	}

	// The first token of an answer ends its prefill, the last one its reservation.
	active.MarkPrefilled(activeseq.AttemptKey{ID: "a", Attempt: 1})
	active.Free(activeseq.AttemptKey{ID: "a", Attempt: 1})
	active.Free(activeseq.AttemptKey{ID: "b", Attempt: 1})
	return nil
}

func pick(router *route.Router, now kv.Mono, q *route.Query) error {
	d, err := router.Pick(now, q)
	if err != nil {
		return err
	}
	fmt.Printf("%s goes to worker %d at %s, where %d blocks are cached\n", q.Key.ID, d.Worker.ID, d.Addr, d.OverlapBlocks)
	return nil
}
