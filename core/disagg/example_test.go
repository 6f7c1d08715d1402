package disagg_test

import (
	"fmt"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/rates"
)

// A decode worker with many running answers gets a prompt of 8,000 tokens, of which it holds none. A prefill worker computes it.
func Example() {
	learner, err := rates.New(rates.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	here, there := learner.WorkerOf(kv.Worker{ID: 1}), learner.WorkerOf(kv.Worker{ID: 2})
	perform := func(out []disagg.HandoffEffect) {
		for _, e := range out {
			fmt.Println(e)
		}
	}
	cfg := disagg.HandoffConfig{
		MaxAttempts: 3, LocalWait: time.Second, QueueWait: 2 * time.Second, AddressedWait: time.Second, Silence: 2 * time.Second, Budget: 30 * time.Second,
	}
	var now kv.Mono // of the caller's clock
	first := disagg.AttemptRef{Epoch: 7, Attempt: 1}
	h, out := disagg.StartHandoff(now, cfg, disagg.HandoffRequest{First: first, Tokens: 8000, BlockSize: 16}, nil)
	perform(out)

	split := disagg.DefaultSplit()
	in := disagg.SplitInputs{Tokens: 8000, BlockSize: 16, Decoding: 32, PrefillWorkers: 1, TransferFixedMs: 2, TransferTokenMs: 0.005}
	d := disagg.Decide(&split, &in, here, there)
	fmt.Printf("%v: %.0f ms local, %.0f ms remote\n", d.Reason, d.LocalCost.Sum(), d.RemoteCost.Sum())

	perform(h.HandlePrefix(now, &d, nil))
	perform(h.HandleReserved(now, 0, nil))
	perform(h.HandlePull(now, first, disagg.Incarnation{Worker: kv.Worker{ID: 2}, Epoch: 5}, nil))
	perform(h.HandleNotify(first, nil))
	// Output:
	// look up the prefix of 8000 tokens
	// remote prefill costs less: 5610 ms local, 552 ms remote
	// reserve blocks of 8000 tokens
	// enqueue job 7.1, tokens 0 to 7984, within 30s
	// open transfer 7.1, tokens 0 to 7984
	// admit 7.1 of 2:0/5, within 30s
	// decode 7.1, tokens 0 to 7984
}
