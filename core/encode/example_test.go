package encode_test

import (
	"fmt"
	"time"

	"penstock/core/encode"
	"penstock/core/kv"
)

// A prompt shows one picture, whose rows an encoder makes while the text before it is prefilled. The rows are staged,
// merged and discarded.
func Example() {
	m, err := encode.New(encode.Config{
		MaxJobs: 32, MaxBatch: 8, BatchWait: 5 * time.Millisecond, MaxAttempts: 3, Timeout: time.Minute,
		CPUBudget: 16_000_000_000, StagingBudget: 4_000_000_000, MaxObjects: 4096,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var now kv.Mono // of the caller's clock
	perform := func(out []encode.Action, err error) {
		if err != nil {
			fmt.Println(err)
		}
		for _, a := range out {
			fmt.Println(a)
		}
	}
	perform(m.AddEncoder(now, 0, encode.EncoderLimits{Runs: 1}, nil))

	const image = 1 // media.Image
	id, out, err := m.SubmitRequest(now, encode.Submission{
		Placeholders: []encode.Placeholder{{Position: 6, Kind: image}},
		Objects:      []encode.SubmittedObject{{Kind: image, Position: 6, Tokens: 1024, Bytes: 1024 * 4096 * 2}},
	}, nil)
	perform(out, err)
	position, _, _ := m.FirstUnfinished(id)
	fmt.Printf("the first %d tokens may be prefilled\n", position)

	now = now.Add(5 * time.Millisecond)
	perform(m.FinishRun(now, out[0].Run, []encode.Result{{Tokens: 1024, Bytes: 1024 * 4096 * 2}}, nil))
	perform(m.StageRequest(now, id, nil))
	perform(m.MarkCopied(now, id, nil))
	perform(m.MarkMerged(now, id, nil))
	perform(m.MarkPrefilled(now, id, nil))
	st := m.Stats()
	fmt.Printf("%d bytes in %v, %d bytes in use\n", st.EncodedBytes, st.EncodeTime, st.CPUBytes+st.StagingBytes)
	// Output:
	// run 1 on encoder 0: 1.0 to rows 1
	// the first 6 tokens may be prefilled
	// request 1 is ready
	// copy to staging for request 1: 0 from rows 1
	// drop rows 1
	// request 1 has ended: completed
	// 8388608 bytes in 5ms, 0 bytes in use
}
