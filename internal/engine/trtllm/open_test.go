package trtllm

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
	"penstock/internal/zmtp"
)

func published(c *enginemock.Config) {
	c.KVEvents, c.KVReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
}

func codes(e *Engine) (all []string) {
	for _, w := range e.Warnings() {
		all = append(all, w.Code)
	}
	return all
}

// TestPredictions checks that cached tokens are as predicted: by published events, and by polled ones.
func TestPredictions(t *testing.T) {
	for name, how := range map[string]struct {
		change func(*enginemock.Config)
		block  int
	}{"published": {published, 16}, "pulled": {nil, 16}, "published, joined": {published, 32}, "pulled, joined": {nil, 32}} {
		t.Run(name, func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.TRTLLM, how.change)
			cfg := config(t, s, card)
			cfg.Spec.BlockSize = how.block
			e := opened(t, cfg)
			if c := e.Card(); c.KVPredicted || c.BlockSize != how.block || c.Blocks != 64*16/how.block {
				t.Errorf("%+v", c)
			}
			if w := codes(e); len(w) != 0 {
				t.Errorf("warnings %v", w)
			}
			ctx := enginetest.Start(t, e)
			replica := enginetest.NewCacheReplica()
			watching, stop := context.WithCancel(ctx)
			watched := make(chan error, 1)
			go func() { watched <- e.WatchKV(watching, replica.Sink) }()
			for i := range 20 {
				prompt := make([]kv.Token, 80)
				for j := range prompt {
					prompt[j] = kv.Token(1 + i%5 + j)
				}
				prompt[70] = kv.Token(200 + i)
				enginetest.MustGenerate(t, ctx, e, &engine.Request{
					ID: fmt.Sprint("prompt-", i), Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 3, IgnoreEOS: true},
				})
				h, _ := kv.NewHasher(how.block, kv.Salt{})
				last := h.AppendSeqHashes(nil, prompt, nil)
				if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[last[len(last)-1]] }); err != nil {
					t.Fatalf("the blocks of prompt %d were never reported", i)
				}
			}
			stop()
			if err := <-watched; err != nil {
				t.Error(err)
			}
			stats := e.Stats()
			if stats.Compared != 20 || stats.Mismatched != 0 || stats.Reported != 15*64 {
				t.Errorf("%d tokens predicted, %d reported, of %d requests, %d of which are apart", stats.Predicted, stats.Reported, stats.Compared, stats.Mismatched)
			}
		})
	}
}

// TestGuesses opens an engine that publishes its events without a configured endpoint.
func TestGuesses(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.TRTLLM, published)
	cfg := config(t, s, card)
	cfg.Spec.Events, cfg.Spec.Replay = zmtp.Endpoint{}, zmtp.Endpoint{}
	e := opened(t, cfg)
	if w := codes(e); !e.Card().KVPredicted || !slices.Equal(w, []string{engine.WarnNoEvents}) {
		t.Errorf("guessed %v, warnings %v", e.Card().KVPredicted, w)
	}
}

func TestBlockSize(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.TRTLLM, published)
	cfg := config(t, s, card)
	cfg.Spec.BlockSize = 24
	if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "tokens_per_block") {
		t.Errorf("blocks that do not fit: %v", err)
	}
	cfg.Spec.BlockSize = 32
	if c := opened(t, cfg).Card(); c.BlockSize != 32 || c.Blocks != 32 {
		t.Errorf("joined blocks: %+v", c)
	}
}

func TestFaults(t *testing.T) {
	for kind, want := range map[enginemock.FaultKind]fault.Code{
		enginemock.FaultError: fault.EngineError, enginemock.FaultStreamError: fault.EngineError, enginemock.FaultDisconnect: fault.Unavailable,
		enginemock.FaultLimit: fault.Overloaded,
	} {
		t.Run(string(kind), func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.TRTLLM, nil)
			e := opened(t, config(t, s, card))
			ctx := enginetest.Start(t, e)
			req := &engine.Request{ID: "fault", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3}, Stop: engine.Stop{MaxTokens: 400, IgnoreEOS: true}}
			if err := s.Faults().Set(enginemock.Fault{Kind: kind, Count: 1, After: 4}); err != nil {
				t.Fatal(err)
			}
			_, err := enginetest.Generate(ctx, e, req)
			if err == nil && kind == enginemock.FaultDisconnect {
				return // the fault came before the first byte, and the call was repeated
			}
			if fault.CodeOf(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
			enginetest.MustGenerate(t, ctx, e, req)
		})
	}
}

func TestGauges(t *testing.T) {
	want := serverGauges{LoadGauges: remote.LoadGauges{Running: 3, Waiting: 2, Usage: 0.25}, blockSize: 32, blocks: 400}
	for _, text := range []string{
		"# TYPE trtllm_num_requests_running gauge\ntrtllm_num_requests_running{model_name=\"{m\"} 3\ntrtllm_num_requests_waiting 2\ntrtllm_kv_cache_utilization 0.25\ntrtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 400\n",
		` [{"numActiveRequests":9},{"numActiveRequests":3,"numQueuedRequests":2,"kvCacheStats":{"maxNumBlocks":400,"usedNumBlocks":100,"tokensPerBlock":32}}]`,
	} {
		got, err := parseGauges([]byte(text))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	if got, err := parseGauges([]byte(`[{"iter":7}]`)); err != nil || got.Tokens != 7 {
		t.Errorf("an iteration: %+v, %v", got, err)
	}
	if got, err := parseGauges([]byte("[]")); err != nil || fmt.Sprint(got) != fmt.Sprint(serverGauges{}) {
		t.Errorf("of no iteration: %+v, %v", got, err)
	}
	if _, err := parseGauges([]byte("[{]")); err == nil {
		t.Error("what is no JSON was read")
	}
}

// TestForeignChoices checks that tokens of a choice that was not requested are an error.
func TestForeignChoices(t *testing.T) {
	card := engine.Card{
		Name: "m", Engine: "trtllm", Numerics: "x", BlockSize: 32, Blocks: 64, Ranks: 1, ContextLength: 4096, VocabSize: 2000,
		Tokenizer: engine.TokenizerRef{Kind: "builtin"},
	}
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{3}, Stop: engine.Stop{MaxTokens: 9}}
	for _, event := range []string{
		`{"choices":[{"index":0,"token_ids":[1]},{"index":1,"token_ids":[2]}]}`,
		`{"choices":[{"index":1,"token_ids":[2]}]}`,
		`{"choices":[{"token_ids":[1]},{"token_ids":[2]}]}`,
	} {
		_, err := remote.RunDialect(card, remote.LeaderFirst, &completionsDialect{}, req, [][]byte{[]byte(event)}, func(d *engine.Delta) error {
			if len(d.Tokens) > 0 {
				t.Errorf("%s: delivered %v", event, d.Tokens)
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "not asked for") {
			t.Errorf("%s: %v", event, err)
		}
	}
}

// FuzzDecode reads events made of numbers, which must come back, and any bytes, which must do no harm.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{1, 2, 250}, 7, 2, []byte(`{"choices":[{"token_ids":[4294967296]}]}`))
	f.Add([]byte{}, 0, 0, []byte(`{"object":"error","message":"no","code":400}`))
	f.Add([]byte{9}, 1, 1, []byte(`{"choices":[null],"usage":{"prompt_tokens_details":null}}`))
	f.Fuzz(func(t *testing.T, ids []byte, cached, stop int, raw []byte) {
		_, _ = decodeEvent(raw, nil)
		_, _ = parseGauges(raw)
		tokens := []kv.Token{}
		for _, id := range ids {
			tokens = append(tokens, kv.Token(id)<<kv.Token(id%24))
		}
		cached, stop = cached&0xffff, stop&0xffff
		type object = map[string]any
		data, err := json.Marshal(object{
			"id": string(raw), "object": "text_completion",
			"choices": []object{{"index": 0, "text": "", "token_ids": tokens, "logprobs": nil, "finish_reason": "stop", "stop_reason": stop}},
			"usage":   object{"prompt_tokens": 9, "prompt_tokens_details": object{"cached_tokens": cached, "audio": nil}},
		})
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEvent(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(e.tokens, tokens) || e.cached != cached || e.finish != "stop" || !e.hasStop || int(e.stop) != stop || e.isError || e.hasText {
			t.Errorf("%+v of %s", e, data)
		}
	})
}
