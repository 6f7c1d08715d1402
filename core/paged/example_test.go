package paged_test

import (
	"fmt"

	"penstock/core/kv"
	"penstock/core/paged"
)

// The loop of an engine: two requests with a common prefix, one after the other.
func Example() {
	s, err := paged.New(paged.Config{
		Blocks: 16, BlockSize: 4,
		MaxSeqs: 2, TokenBudget: 6, MaxContext: 32, MaxWaiting: 8,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var step paged.Step
	for id, prompt := range [][]kv.Token{
		{1, 2, 3, 4, 5, 6, 7, 8, 9},
		{1, 2, 3, 4, 5, 6, 7, 8, 10},
	} {
		id := paged.SeqID(id)
		if err := s.AddSequence(paged.Sequence{ID: id, Tokens: prompt, Prompt: len(prompt)}); err != nil {
			fmt.Println(err)
			return
		}
		for outputs := 0; outputs < 2; {
			s.Step(&step)
			var sampled []paged.SampledToken
			for _, w := range step.Work {
				fmt.Printf("sequence %d: compute %v after %d, in blocks %v\n", w.ID, w.Tokens, w.Start, w.Blocks)
				if w.Sample {
					sampled = append(sampled, paged.SampledToken{ID: w.ID, Token: 11})
					outputs++
				}
			}
			s.Commit(sampled)
		}
		s.RemoveSequence(id)
	}
	st := s.Stats()
	fmt.Printf("%d of %d prompt tokens came from the cache\n", st.CachedTokens, st.PromptTokens)
	// Output:
	// sequence 0: compute [1 2 3 4 5 6] after 0, in blocks [0 1]
	// sequence 0: compute [7 8 9] after 6, in blocks [0 1 2]
	// sequence 0: compute [11] after 9, in blocks [0 1 2]
	// sequence 1: compute [10] after 8, in blocks [0 1 2]
	// sequence 1: compute [11] after 9, in blocks [0 1 2]
	// 8 of 18 prompt tokens came from the cache
}
