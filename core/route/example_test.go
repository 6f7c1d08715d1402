package route_test

import (
	"fmt"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/route"
)

// A cached prefix draws requests to a worker until its load costs more than computing the prefix elsewhere.
func Example() {
	active, err := activeseq.New(activeseq.Config{BlockSize: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	router, err := route.New(route.Config{Mode: route.KV, Seed: 1}, active)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = router.SetWorkers([]route.Target{
		{Worker: kv.Worker{ID: 1}, Addr: "10.0.0.1:9000", BlockSize: 4, State: route.Ready},
		{Worker: kv.Worker{ID: 2}, Addr: "10.0.0.2:9000", BlockSize: 4, State: route.Ready},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	query := route.Query{
		PromptTokens: 16,
		Chain:        []kv.SeqHash{11, 12, 13, 14},
		// As prefix.Index answers it: worker 1 has three blocks of the prompt on its device.
		Overlaps: []kv.Overlap{{Worker: kv.Worker{ID: 1}, Blocks: [4]int{3}}},
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		query.Key = activeseq.AttemptKey{ID: id, Attempt: 1}
		d, err := router.Pick(0, &query)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: worker %d, %d blocks cached\n", id, d.Worker.ID, d.OverlapBlocks)
	}
	// Output:
	// a: worker 1, 3 blocks cached
	// b: worker 1, 3 blocks cached
	// c: worker 1, 3 blocks cached
	// d: worker 2, 0 blocks cached
}
