package vllm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
)

// onlyGenerate makes the adapter take /inference/v1/generate.
func onlyGenerate(p *serverProbe) { p.endpoints = p.endpoints[1:] }

// runConnected starts a server and an adapter with its connector.
func runConnected(t *testing.T, change func(*enginemock.Config), probe func(*serverProbe)) *rig {
	t.Helper()
	s, card := served(t, change)
	at := spec(t, s.URL())
	at.KVConnector = engine.NIXLConnector
	e := openedBy(t, at, card, probe)
	s.EndLeases() // that of the check at the start
	return &rig{e, s, enginetest.Start(t, e)}
}

// legs serves a request by a prefill leg on p and a decode leg on d, and returns the last delta of the first and the answer
// of the second.
func legs(t *testing.T, p, d *rig, req *engine.Request, between func()) (handoff *engine.Handoff, answer enginetest.Choice) {
	t.Helper()
	first := *req
	first.Leg = engine.LegPrefill
	var last engine.Delta
	tokens := 0
	err := p.Generate(p.ctx, &first, func(d *engine.Delta) error {
		tokens += len(d.Tokens)
		last = *d
		return nil
	})
	if err != nil || tokens != 1 || last.Finish != engine.FinishLength || last.Handoff == nil {
		t.Fatalf("the prefill leg gave %d tokens and ended with %+v, %v", tokens, last, err)
	}
	if between != nil {
		between()
	}
	second := *req
	second.Leg, second.Handoff = engine.LegDecode, last.Handoff
	return last.Handoff, enginetest.MustGenerate(t, d.ctx, d.Engine, &second)[0]
}

// TestLegs: a request which two servers serve has the answer of one, and the second computes nothing that the first
// did. What they tell each other goes through here unread.
func TestLegs(t *testing.T) {
	for name, probe := range map[string]func(*serverProbe){"completions": func(*serverProbe) {}, "generate": onlyGenerate} {
		t.Run(name, func(t *testing.T) {
			p := runConnected(t, func(c *enginemock.Config) { c.Seed = 3 }, probe)
			d := runConnected(t, func(c *enginemock.Config) { c.Seed = 4 }, probe)
			whole := runConnected(t, func(c *enginemock.Config) { c.Seed = 5 }, probe)
			if p.Card().KVConnector != engine.NIXLConnector {
				t.Errorf("the card says %q", p.Card().KVConnector)
			}
			req := request(1, 100, 8)
			want := enginetest.MustGenerate(t, whole.ctx, whole.Engine, req)[0]
			handoff, got := legs(t, p, d, req, nil)
			if !slices.Equal(got.Tokens, want.Tokens) || got.Finish != want.Finish {
				t.Errorf("%v, %v, want %v, %v", got.Tokens, got.Finish, want.Tokens, want.Finish)
			}
			if sent, recv := p.server.TransferStats(), d.server.TransferStats(); sent != (enginemock.TransferStats{Sent: 1}) || recv != (enginemock.TransferStats{Received: 1}) {
				t.Errorf("the prefill server has %+v, the decode server %+v", sent, recv)
			}
			// The same reference again: what was fetched has another prompt's values now.
			again := *request(2, 100, 8)
			again.Leg, again.Handoff = engine.LegDecode, handoff
			enginetest.MustGenerate(t, d.ctx, d.Engine, &again)
			if sent := p.server.TransferStats(); sent.Reused != 1 {
				t.Errorf("after the reference was used again: %+v", sent)
			}
			// Of a lease which ended before the decode leg, the prompt is computed again.
			req = request(3, 100, 8)
			want = enginetest.MustGenerate(t, whole.ctx, whole.Engine, req)[0]
			if _, got = legs(t, p, d, req, p.server.EndLeases); !slices.Equal(got.Tokens, want.Tokens) {
				t.Errorf("after the end of the lease: %v, want %v", got.Tokens, want.Tokens)
			}
			if recv := d.server.TransferStats(); recv.Missed != 2 || recv.Received != 1 {
				t.Errorf("the decode server has %+v", recv)
			}
		})
	}
}

// TestLegsReleased: a decode leg of one token frees the blocks of a prompt, and nothing of them gets into the cache.
func TestLegsReleased(t *testing.T) {
	p, d := runConnected(t, nil, func(*serverProbe) {}), runConnected(t, nil, func(*serverProbe) {})
	leg := request(1, 100, 8)
	leg.Leg = engine.LegPrefill
	var handoff *engine.Handoff
	if err := p.Generate(p.ctx, leg, func(d *engine.Delta) error { handoff = d.Handoff; return nil }); err != nil || handoff == nil {
		t.Fatalf("%+v, %v", handoff, err)
	}
	release := *request(1, 1, 1)
	release.Leg, release.Handoff = engine.LegDecode, handoff
	enginetest.MustGenerate(t, d.ctx, d.Engine, &release)
	if sent := p.server.TransferStats(); sent != (enginemock.TransferStats{Sent: 1}) {
		t.Errorf("the prefill server has %+v", sent)
	}
	if got := enginetest.MustGenerate(t, d.ctx, d.Engine, request(1, 100, 8))[0]; got.Cached != 0 {
		t.Errorf("%d tokens of the prompt are cached", got.Cached)
	}
}

// TestLegsResumed: an answer goes on by legs, too.
func TestLegsResumed(t *testing.T) {
	probe := func(*serverProbe) {}
	p, d, whole := runConnected(t, nil, probe), runConnected(t, nil, probe), runConnected(t, nil, probe)
	req := request(1, 64, 8)
	req.Generated = append(req.Generated, request(2, 3, 1).Prompt)
	want := enginetest.MustGenerate(t, whole.ctx, whole.Engine, req)[0].Tokens
	if _, got := legs(t, p, d, req, nil); !slices.Equal(got.Tokens, want) || len(want) != 5 {
		t.Errorf("%v, want %v", got.Tokens, want)
	}
	if recv := d.server.TransferStats(); recv.Received != 1 {
		t.Errorf("the decode server has %+v", recv)
	}
}

// TestLegsOfEarlyEnd: a prefill leg whose token ends the answer hands nothing over.
func TestLegsOfEarlyEnd(t *testing.T) {
	p := runConnected(t, nil, func(*serverProbe) {})
	req := request(1, 64, 8)
	first := enginetest.MustGenerate(t, p.ctx, p.Engine, req)[0].Tokens[0]
	req.Leg, req.Stop.Tokens = engine.LegPrefill, append(req.Stop.Tokens, first)
	var last engine.Delta
	err := p.Generate(p.ctx, req, func(d *engine.Delta) error { last = *d; return nil })
	if err != nil || last.Handoff != nil || last.Finish != engine.FinishStop || p.server.TransferStats().Leases != 0 {
		t.Errorf("%+v, %v, %+v", last, err, p.server.TransferStats())
	}
}

// TestLegsFail: a decode engine which cannot fetch fails the leg, by kv_load_failure_policy "fail".
func TestLegsFail(t *testing.T) {
	d := runConnected(t, func(c *enginemock.Config) { c.Features.FailKVLoads = enginemock.On }, func(*serverProbe) {})
	req := request(1, 64, 8)
	req.Leg = engine.LegDecode
	req.Handoff = &engine.Handoff{Opaque: []byte(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"x","remote_request_id":"y","remote_block_ids":[[1]],"remote_host":"127.0.0.1","remote_port":1}`)}
	err := d.Generate(d.ctx, req, func(*engine.Delta) error { return nil })
	if fault.CodeOf(err) != fault.EngineError {
		t.Errorf("%v, of code %v", err, fault.CodeOf(err))
	}
}

// TestLegsRefused: what the engine cannot do is refused, and at the start if it can be known there.
func TestLegsRefused(t *testing.T) {
	plain := run(t, nil, nil)
	several := runConnected(t, nil, func(*serverProbe) {})
	for name, c := range map[string]struct {
		rig    *rig
		change func(*engine.Request)
	}{
		"no connector":    {plain, func(r *engine.Request) { r.Leg = engine.LegPrefill }},
		"an encode leg":   {plain, func(r *engine.Request) { r.Leg = engine.LegEncode }},
		"several choices": {several, func(r *engine.Request) { r.Leg, r.Choices = engine.LegPrefill, 2 }},
	} {
		req := request(1, 64, 8)
		c.change(req)
		err := c.rig.Generate(c.rig.ctx, req, func(*engine.Delta) error { return nil })
		if fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, card := served(t, func(c *enginemock.Config) { c.Features.KVTransfer = enginemock.Off })
	at := spec(t, s.URL())
	for connector, says := range map[engine.KVConnector]string{engine.NIXLConnector: "--kv-transfer-config", "other": "set it to nixl"} {
		at.KVConnector = connector
		e, err := Open(t.Context(), Config{Spec: at, Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: card.VocabSize, EOS: card.EOS})
		if err == nil {
			e.Client().Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", connector, err)
		}
	}
}

// TestLegBodies: what a server is sent for a leg is what vLLM's examples send, and what the prefill leg gave as it was.
func TestLegBodies(t *testing.T) {
	const params = `{"do_remote_prefill":true, "remote_block_ids":[[1,2]],"of a later version":null}`
	req := request(1, 3, 8)
	req.Stop.MinTokens = 4
	for name, d := range map[string]remote.Dialect{
		"completions": &completionsDialect{engine: tiny()}, "generate": &generateDialect{engine: tiny()},
	} {
		for leg, want := range map[engine.Leg]string{
			engine.LegPrefill: `"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`,
			engine.LegDecode:  `"stream":true,"stream_options":{"include_usage":true},"kv_transfer_params":` + params,
			engine.LegWhole:   `"stream":true,"stream_options":{"include_usage":true},"`,
		} {
			req.Leg, req.Handoff = leg, &engine.Handoff{Opaque: []byte(params)}
			card := testCard()
			card.KVConnector = engine.NIXLConnector
			done, _ := remote.RunDialect(card, remote.LeaderFirst, d, req, nil, func(*engine.Delta) error { return nil })
			tokens := map[engine.Leg]string{engine.LegPrefill: `"max_tokens":1,"min_tokens":1`}[leg]
			if tokens == "" {
				tokens = `"max_tokens":8,"min_tokens":4`
			}
			if !json.Valid([]byte(done.Body)) || !strings.Contains(done.Body, want) || !strings.Contains(done.Body, tokens) {
				t.Errorf("%s, leg %v: %s", name, leg, done.Body)
			}
			if strings.Contains(done.Body, "kv_transfer_params") != (leg != engine.LegWhole) {
				t.Errorf("%s, leg %v: %s", name, leg, done.Body)
			}
		}
	}
}

// TestLegAsCaptured reads an answer with the fields which vLLM 0.32.0 was seen to give; their values are made up.
func TestLegAsCaptured(t *testing.T) {
	const given = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"e","remote_request_id":"cmpl-1-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":3,"remote_blocks_expiry_time":1.5,"transfer_mode":"pull","remote_prefill_cached_tokens":2}`
	const answer = `{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":" mem","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[757],"prompt_token_ids":[300,301,302]}],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}},"kv_transfer_params":%s}`
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: request(1, 3, 1).Prompt, Stop: engine.Stop{MaxTokens: 4}, Leg: engine.LegPrefill}
	card := testCard()
	card.KVConnector = engine.NIXLConnector
	for name, c := range map[string]struct{ params, want string }{
		"params":  {given, given},
		"none":    {"null", ""},
		"no JSON": {`{"a":01}`, "error"},
		"large":   {`"` + strings.Repeat("x", engine.MaxOpaque) + `"`, "error"},
	} {
		got := ""
		_, err := remote.RunDialect(card, remote.LeaderFirst, &completionsDialect{engine: tiny()}, req, [][]byte{fmt.Appendf(nil, answer, c.params)}, func(d *engine.Delta) error {
			if d.Handoff != nil {
				got += string(d.Handoff.Opaque)
			}
			if d.Finish != engine.NotFinished && d.Cached != 2 {
				t.Errorf("%s: %d cached", name, d.Cached)
			}
			return nil
		})
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %.200s, %v", name, got, err)
		}
	}
}

// FuzzPrefillAnswer checks that whatever a server answers to a prefill leg, the deltas keep to the contract, and that what
// goes on to the next server is JSON of a bounded size.
func FuzzPrefillAnswer(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"finish_reason":"length","token_ids":[9]}],"usage":{"prompt_tokens_details":{"cached_tokens":1}},"kv_transfer_params":{"remote_block_ids":[[1]]}}`))
	f.Add([]byte(`{"kv_transfer_params":{"a":01},"choices":[{"index":0,"finish_reason":"stop","token_ids":[9,8]}]}`))
	f.Add([]byte(`{"kv_transfer_params":null,"choices":[{"finish_reason":"length","token_ids":[1,2,3]}],"kv_transfer_params":[]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: request(1, 3, 1).Prompt, Stop: engine.Stop{MaxTokens: 4}, Leg: engine.LegPrefill}
		card := testCard()
		card.KVConnector = engine.NIXLConnector
		for _, d := range []remote.Dialect{&completionsDialect{engine: tiny()}, &generateDialect{engine: tiny()}} {
			r, tokens := enginetest.NewRecorder(req), 0
			_, err := remote.RunDialect(card, remote.LeaderFirst, d, req, [][]byte{answer, answer}, func(d *engine.Delta) error {
				tokens += len(d.Tokens)
				if err := d.Handoff.Validate(); err != nil {
					t.Fatalf("%s: %v", answer, err)
				}
				if err := r.Sink(d); err != nil {
					t.Fatalf("%s: %v", answer, err)
				}
				return nil
			})
			if tokens > 1 {
				t.Fatalf("%s: %d tokens, %v", answer, tokens, err)
			}
		}
	})
}
