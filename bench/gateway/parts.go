package main

import (
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/replay"
)

// stepTime is the time of one step of a gateway's work on a request before the first response byte.
type stepTime struct {
	Name string  `json:"part"`
	US   float64 `json:"us"` // median, on a single otherwise idle goroutine
}

// measureSteps measures the steps of a workload's requests separately, with the gateway's code: parse (JSON
// to a request), template (a conversation to its text), tokenize, hash (blocks and their chain), match
// (against the index of a worker with the earlier prompts), and forward (the frame to the worker, without the
// adapter's body and the network).
func measureSteps(pipe *prep.Pipeline, source replay.Source, skip, n int) ([]stepTime, int, error) {
	hasher, err := kv.NewHasher(blockSize, kv.Salt{})
	if err != nil {
		return nil, 0, err
	}
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		return nil, 0, err
	}
	var (
		times  [6][]time.Duration
		r      replay.Request
		ids    []kv.Token
		blocks []kv.BlockHash
		chain  []kv.SeqHash
		match  prefix.Match
		frame  []byte
		tokens int
	)
	worker := kv.Worker{ID: 1}
	for i := range skip + n {
		if err := source.Next(&r); err != nil {
			return nil, 0, err
		}
		at := [7]time.Time{time.Now()}
		q, err := openai.Decode(api.Chat, r.Payload)
		if err != nil {
			return nil, 0, err
		}
		at[1] = time.Now()
		chat := &prep.Chat{AddGenerationPrompt: true, Messages: make([]prep.Message, len(q.Messages))}
		for j, m := range q.Messages {
			chat.Messages[j] = prep.Message{Role: m.Role, Content: m.Content}
		}
		segments, err := pipe.RenderChat(chat)
		if err != nil {
			return nil, 0, err
		}
		at[2] = time.Now()
		ids, _ = pipe.EncodeSegments(ids[:0], segments, 0)
		at[3] = time.Now()
		blocks = hasher.AppendBlockHashes(blocks[:0], ids, nil)
		chain = kv.AppendChain(chain[:0], blocks)
		at[4] = time.Now()
		index.Match(&match, chain, nil)
		at[5] = time.Now()
		frame = engine.AppendRequest(frame[:0], &engine.Request{ID: "bench", Attempt: 1, Choices: 1, Prompt: ids, Stop: engine.Stop{MaxTokens: 1}, Logprobs: -1})
		at[6] = time.Now()
		index.ApplyEvent(worker, kv.Event{Kind: kv.Stored, Blocks: blocks})
		if i < skip {
			continue
		}
		tokens += len(ids)
		for p := range times {
			times[p] = append(times[p], at[p+1].Sub(at[p]))
		}
	}
	var all []stepTime
	var sum float64
	for p, name := range []string{"parse", "template", "tokenize", "hash", "match", "forward"} {
		slices.Sort(times[p])
		us := float64(times[p][len(times[p])/2].Nanoseconds()) / 1000
		sum += us
		all = append(all, stepTime{name, us})
	}
	return append(all, stepTime{"sum", sum}), tokens / n, nil
}

func (p stepTime) String() string { return fmt.Sprintf("%s %.0f", p.Name, p.US) }
