package activeseq_test

import (
	"fmt"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// A request is counted from the decision to send it to a worker until its answer ends.
func Example() {
	table, err := activeseq.New(activeseq.Config{BlockSize: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	worker := kv.Worker{ID: 1}
	show := func(when string) {
		l := table.LoadOf(worker)
		fmt.Printf("%s: %d requests, %d tokens to prefill, %d blocks\n", when, l.Requests, l.PrefillTokens, l.Blocks)
	}

	var now kv.Mono // of the caller's clock
	a, b := activeseq.AttemptKey{ID: "a", Attempt: 1}, activeseq.AttemptKey{ID: "b", Attempt: 1}
	chain := []kv.SeqHash{11, 12} // the prompt's two full blocks, one of them cached
	demand := activeseq.Demand{Chain: chain, PromptTokens: 10, OverlapBlocks: 1}
	for _, key := range []activeseq.AttemptKey{a, b} {
		if err := table.Reserve(now, key, worker, demand); err != nil {
			fmt.Println(err)
			return
		}
		show("reserved " + key.ID)
	}
	table.MarkPrefilled(a) // its first token arrived
	show("prefilled a")
	table.AddOutput(a, 8) // which fill two more blocks
	show("generated")
	table.Free(a)
	show("freed a")
	// Output:
	// reserved a: 1 requests, 6 tokens to prefill, 2 blocks
	// reserved b: 2 requests, 12 tokens to prefill, 2 blocks
	// prefilled a: 2 requests, 6 tokens to prefill, 2 blocks
	// generated: 2 requests, 6 tokens to prefill, 4 blocks
	// freed a: 1 requests, 6 tokens to prefill, 2 blocks
}
