package pool_test

import (
	"fmt"

	"penstock/core/kv"
	"penstock/core/pool"
)

// A prefill worker puts a block into the pool, and a decode worker reads it there.
func Example() {
	cfg := pool.Config{BlockTokens: 2, TokenBytes: 32, Layout: "layer-k.head.dim.token-v.head.token.dim", Type: "float32", Numerics: "a model, a build"}
	mapped := make([]uint64, 4<<10) // a file which both have mapped, in place of this
	memory := memoryOf(mapped)
	if err := pool.Format(memory, cfg, 0x9e3779b97f4a7c15); err != nil { // a random number
		fmt.Println(err)
	}
	open := func(id kv.WorkerID) *pool.View {
		p, err := pool.Open(memory, cfg)
		if err == nil {
			err = p.Join(0, kv.Worker{ID: id})
		}
		if err != nil {
			fmt.Println(err)
		}
		return p
	}
	prefill, decode := open(1), open(2)
	block := &pool.Content{Name: 7, Hash: 7, Tokens: []kv.Token{40, 41}}
	show := func() {
		f, err := decode.Find(block)
		fmt.Println(f.State, err)
	}

	w, _, err := prefill.Reserve(block, kv.MoELabel{}, nil)
	fmt.Println("reserved", err)
	show()
	fmt.Println("written", prefill.Write(0, &w, make([]byte, prefill.BlockBytes())))
	fmt.Println("published", prefill.Publish(&w))
	show()

	f, ok := decode.Acquire(block)
	fmt.Println("acquired", ok)
	prefill.Leave() // the block stays
	fmt.Println("verified", decode.Verify(f.Ref))
	decode.Release(f.Ref)
	// Output:
	// reserved <nil>
	// in_transit <nil>
	// written <nil>
	// published <nil>
	// cxl_pooled <nil>
	// acquired true
	// verified <nil>
}

func memoryOf(words []uint64) pool.Memory {
	b := make([]byte, 8*len(words))
	m, err := pool.MapBytes(b)
	if err != nil {
		panic(err)
	}
	return m
}
