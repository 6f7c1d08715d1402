package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	opening "penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/enginemock"
)

// closed starts servers of vLLM's kind whose tokenizer no other process has, and Penstock in front
// of them. cached returns how many blocks they have.
func closed(t *testing.T, servers int) (s *server, all []*enginemock.Server, cached func() int) {
	t.Helper()
	pipe, err := opening.Open(opening.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	builtin, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	eos, _ := builtin.EOS()
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	timing.Speedup = 100
	encode := func(text string) []kv.Token { return pipe.Tokenizer.Encode(nil, text, prep.EncodeOptions{}) }
	var opened []*sim.Engine
	var engines []string
	for range servers {
		s, err := enginemock.New(enginemock.Config{
			Dialect: enginemock.VLLM, Pipe: pipe, Models: []string{"closed"}, Adapters: []enginemock.Adapter{{Name: "law"}},
			KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0",
			Open: func(rank int) (engine.Engine, error) {
				e, err := sim.New(sim.Config{
					Vocabulary: sim.Vocabulary{Size: pipe.Tokenizer.VocabSize(), Mask: builtin.MaskedIDs(), EOS: []kv.Token{eos}},
					Text:       sim.BuiltinText(encode), Output: 8, BlockSize: 16, Blocks: 2048, ContextLength: 8192, Timing: timing, Worker: uint64(rank),
				})
				opened = append(opened, e)
				return e, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		all = append(all, s)
		engines = append(engines, fmt.Sprintf("vllm=%v,events=%v,replay=%v,mode=pass", s.URL(), s.EventsAddr(), s.ReplayAddr()))
	}
	// A slow machine is not to have workers chosen without the tokens of a prompt.
	return start(t, "engine="+strings.Join(engines, ","), "prompt-wait=1h"), all, func() (blocks int) {
		for _, e := range opened {
			blocks += e.Load().CachedBlocks
		}
		return blocks
	}
}

// tried is how the router decided on a request, and what came of it.
func (s *server) tried(id string) (attempts []struct {
	WorkerID  uint64 `json:"worker_id"`
	Prompt    int    `json:"prompt_tokens"`
	Predicted *int   `json:"predicted_cached_tokens"`
	Reported  *int   `json:"reported_cached_tokens"`
},
) {
	s.t.Helper()
	out := struct{ Attempts any }{&attempts}
	s.get("/v1/router/decisions?request_id="+id, &out)
	return attempts
}

// TestPassedConversations: conversations that are passed on to engines which alone have
// their tokenizer go where they were, since the engines tell the tokens: what is predicted to be cached
// is what the engines then report, and an adapter's blocks are its own.
func TestPassedConversations(t *testing.T) {
	s, _, cached := closed(t, 2)
	for _, model := range []string{"closed", "law"} {
		turns := `{"role":"user","content":"` + strings.Repeat("Where does the water go when it rains for a week? ", 8) + `"}`
		reused := 0
		for turn := range 5 {
			id := fmt.Sprint(model, turn)
			resp, body := s.do(http.MethodPost, "/v1/chat/completions", `{"model":"`+model+`","max_tokens":6,"vendor_option":true,"messages":[`+turns+`]}`, "x-request-id", id)
			var answer struct {
				Model   string
				Choices []struct{ Message struct{ Content string } }
			}
			if err := json.Unmarshal(body, &answer); err != nil || resp.StatusCode != http.StatusOK || answer.Model != model || len(answer.Choices) != 1 {
				t.Fatalf("%s: %s (%v)", resp.Status, body, err)
			}
			all := s.tried(id)
			if len(all) != 1 || all[0].Predicted == nil || all[0].Reported == nil && turn > 0 || all[0].Prompt < 50 {
				t.Fatalf("%s: %+v", id, all)
			}
			a := all[0]
			if a.Reported == nil { // an engine that has not reused anything yet may be one that does not tell
				a.Reported = new(0)
			}
			if resp.Header.Get("x-penstock-worker") != fmt.Sprint(a.WorkerID) {
				t.Errorf("%s was served by %s, and sent to %d", id, resp.Header.Get("x-penstock-worker"), a.WorkerID)
			}
			if gap := *a.Predicted - *a.Reported; gap < -16 || gap > 16 {
				t.Errorf("%s: %d cached tokens are predicted and %d reported", id, *a.Predicted, *a.Reported)
			}
			if turn == 0 && *a.Reported != 0 {
				t.Errorf("%s: %d tokens are cached of a prompt that is new", id, *a.Reported)
			}
			reused += *a.Reported
			content, err := json.Marshal(answer.Choices[0].Message.Content)
			if err != nil {
				t.Fatal(err)
			}
			turns += `,{"role":"assistant","content":` + string(content) + `},{"role":"user","content":"And then, after that?"}`
			s.eventually("the router hears what is cached", func() bool {
				var index struct{ Blocks int }
				s.get("/v1/router/index", &index)
				return index.Blocks == cached()
			})
		}
		if reused < 400 {
			t.Errorf("%s: %d tokens were reused in five turns", model, reused)
		}
	}
}

// TestPassedFailures: an engine that fails before it has said anything is replaced, one that
// fails in the middle ends the stream with an error, and neither is left with work.
func TestPassedFailures(t *testing.T) {
	s, engines, _ := closed(t, 2)
	const body = `{"model":"closed","stream":true,"max_tokens":500,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`
	for _, e := range engines {
		if err := e.Faults().Set(enginemock.Fault{Kind: enginemock.FaultError, Status: http.StatusServiceUnavailable, Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	resp, data := s.do(http.MethodPost, "/v1/chat/completions", body, "x-request-id", "moved")
	if resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(data), "data: [DONE]\n\n") || strings.Contains(string(data), `"error"`) {
		t.Errorf("%s: %s", resp.Status, data)
	}
	for _, e := range engines {
		clearFaults(t, e)
		if err := e.Faults().Set(enginemock.Fault{Kind: enginemock.FaultDisconnect, After: 2}); err != nil {
			t.Fatal(err)
		}
	}
	resp, data = s.do(http.MethodPost, "/v1/chat/completions", body, "x-request-id", "broken")
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(data), `"error":{"message":"the engine did not finish its answer`) || strings.Contains(string(data), "[DONE]") {
		t.Errorf("%s: %s", resp.Status, data)
	}
	if all := s.tried("broken"); len(all) != 1 {
		t.Errorf("an answer of which the client has a part was tried %d times", len(all))
	}
	for _, e := range engines {
		clearFaults(t, e)
	}
	s.eventually("nothing is left of them", func() bool {
		var table struct {
			Rows []struct {
				Load struct {
					Active   int `json:"active_requests"`
					Reported struct{ Running, Waiting int }
				}
			}
		}
		s.get("/v1/router/workers", &table)
		left := 0
		for _, r := range table.Rows {
			left += r.Load.Active + r.Load.Reported.Running + r.Load.Reported.Waiting
		}
		return len(table.Rows) == 2 && left == 0
	})
}

func clearFaults(t *testing.T, e *enginemock.Server) {
	t.Helper()
	if err := e.Faults().Set(); err != nil {
		t.Fatal(err)
	}
}
