package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

const chatPath = "/v1/chat/completions"

func passRequest(body string) *engine.PassthroughRequest {
	return &engine.PassthroughRequest{
		ID: "r", Attempt: 4, Model: "m", Path: chatPath, Body: []byte(body),
		Stream: strings.Contains(body, `"stream":true`), Prompt: []kv.Token{1, 2, 3, 4, 5},
	}
}

// pass calls the worker and returns the pieces, with their data joined.
func (r *rig) pass(ctx context.Context, addr string, req *engine.PassthroughRequest) (first, last engine.PassthroughChunk, data string, err error) {
	var all strings.Builder
	n := 0
	err = r.rpc.Call(ctx, addr, engine.MethodPassthrough, engine.AppendPassthroughRequest(nil, req), func(frame []byte) error {
		if len(frame) > 5<<20 {
			r.t.Errorf("a frame of %d bytes", len(frame))
		}
		var p engine.PassthroughChunk
		if err := engine.DecodePassthroughChunk(frame, &p); err != nil {
			return err
		}
		if p.Attempt != req.Attempt {
			r.t.Errorf("attempt %d", p.Attempt)
		}
		if n == 0 {
			first = p
		}
		n++
		last = p
		all.Write(p.Data)
		return nil
	})
	return first, last, all.String(), err
}

// TestPass: request and answer pass through unchanged; the metrics have the engine's totals.
func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Passes: []string{chatPath}})
		r.start(r.engine)
		defer r.stop()
		if card := r.card(); len(card.PassthroughPaths) != 1 || card.PassthroughPaths[0] != chatPath {
			t.Errorf("the card passes %v", card.PassthroughPaths)
		}
		first, last, data, err := r.pass(t.Context(), r.addr(), passRequest(`{"stream":true,"max_tokens":2}`))
		if want := "data: {\"token\":6}\n\ndata: {\"token\":7}\n\ndata: [DONE]\n\n"; err != nil || data != want || first.Status != 200 || first.Type != "text/event-stream" || !first.Accepted {
			t.Errorf("%+v, %q, %v", first, data, err)
		}
		if !last.Last || last.PromptTokens != 5 || last.OutputTokens != 2 || last.Cached != 0 {
			t.Errorf("%+v", last)
		}
		if _, last, data, err = r.pass(t.Context(), r.addr(), passRequest(`{"max_tokens":3}`)); err != nil || data != "{\"tokens\":[6,7,8]}\n" || last.Cached != 4 {
			t.Errorf("%q, %+v, %v", data, last, err)
		}
		if first, last, data, err = r.pass(t.Context(), r.addr(), passRequest(`{"refuse":true}`)); err != nil || first.Status != 422 || data != `{"detail":"no"}` || last.Cached != engine.CachedUnknown {
			t.Errorf("%+v, %+v, %q, %v", first, last, data, err)
		}
		// A large answer is split into frames that fit.
		if _, last, data, err = r.pass(t.Context(), r.addr(), passRequest(`{"max_tokens":1,"fill":9999999}`)); err != nil || len(data) != 9999999+len("{\"tokens\":[6]}\n") || !last.Last {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		for series, want := range map[string]string{
			`worker_requests_total{outcome="ok",worker="7"}`: "4",
			`worker_prompt_tokens_total{worker="7"}`:         "20",
			`worker_output_tokens_total{worker="7"}`:         "6",
			`worker_cached_tokens_total{worker="7"}`:         "8",
			`worker_inflight{worker="7"}`:                    "0",
		} {
			if got := r.metric(series); got != want {
				t.Errorf("%s is %s, want %s", series, got, want)
			}
		}
	})
}

// TestPassRefuses: requests that this engine does not take are refused and counted.
func TestPassRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Passes: []string{chatPath}, FailPass: func(req *engine.PassthroughRequest) error {
			switch string(req.Body) {
			case `"panic"`:
				panic("a body")
			case `"fail"`:
				return fmt.Errorf("with %s in it", req.Body)
			case `"down"`:
				return fault.New(fault.Unavailable, "the engine is down")
			}
			return nil
		}})
		r.start(r.engine)
		defer r.stop()
		for name, tt := range map[string]struct {
			change func(*engine.PassthroughRequest)
			want   fault.Code
		}{
			"another path":  {func(q *engine.PassthroughRequest) { q.Path = "/v1/other" }, fault.Unimplemented},
			"another model": {func(q *engine.PassthroughRequest) { q.Model = "other" }, fault.NotFound},
			"no body":       {func(q *engine.PassthroughRequest) { q.Body = nil }, fault.Invalid},
			"a panic":       {func(q *engine.PassthroughRequest) { q.Body = []byte(`"panic"`) }, fault.Internal},
			"a failure":     {func(q *engine.PassthroughRequest) { q.Body = []byte(`"fail"`) }, fault.Internal},
			"down":          {func(q *engine.PassthroughRequest) { q.Body = []byte(`"down"`) }, fault.Unavailable},
		} {
			req := passRequest(`{}`)
			tt.change(req)
			if _, _, _, err := r.pass(t.Context(), r.addr(), req); fault.CodeOf(err) != tt.want || strings.Contains(fmt.Sprint(err), "with") {
				t.Errorf("%s: %v, want %v", name, err, tt.want)
			}
		}
		if n := r.metric(`worker_inflight{worker="7"}`); n != "0" {
			t.Errorf("%s calls are in progress", n)
		}
	})
}

// TestPassEnds: a caller's disconnect ends its request, and so does the end of a drain.
func TestPassEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Passes: []string{chatPath}, Step: time.Second})
		r.cfg.DrainTimeout = 3 * time.Second
		r.start(r.engine)
		ctx, leave := context.WithCancel(t.Context())
		addr := r.addr()
		left := make(chan error, 1)
		go func() {
			_, _, _, err := r.pass(ctx, addr, passRequest(`{"stream":true,"max_tokens":1000}`))
			left <- err
		}()
		<-time.After(1500 * time.Millisecond)
		if n := r.engine.Load().Running; n != 1 {
			t.Errorf("%d requests run", n)
		}
		leave()
		if err := <-left; err == nil {
			t.Error("a call without a caller ended well")
		}
		synctest.Wait()
		if n := r.engine.Load().Running; n != 0 {
			t.Errorf("%d requests run on", n)
		}
		cut := make(chan error, 1)
		go func() {
			_, _, _, err := r.pass(t.Context(), addr, passRequest(`{"stream":true,"max_tokens":1000}`))
			cut <- err
		}()
		<-time.After(1500 * time.Millisecond)
		began := time.Now()
		r.stop()
		if err := <-cut; fault.CodeOf(err) != fault.Draining || time.Since(began) < 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestUnreachable: a worker whose engine reports itself unreachable is not ready; an engine that alone
// has its tokenizer gets no canary.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r := newRig(t, servetest.Config{})
		card := servetest.ModelCard("m")
		card.Tokenizer.Kind = engine.TokenizerOfEngine
		eng := &worried{Engine: servetest.New(servetest.Config{Card: card, Fail: func(*engine.Request) error { asked++; return nil }})}
		r.start(eng)
		defer r.stop()
		<-time.After(time.Minute)
		if state := r.state(); asked != 0 || state != engine.StateReady {
			t.Errorf("%s, asked %d times", state, asked)
		}
		eng.say(engine.Warning{Code: engine.WarnUnreachable})
		<-time.After(time.Second)
		if state, ready := r.state(), r.metric(`worker_ready{worker="7"}`); state != engine.StateNotReady || ready != "0" {
			t.Errorf("%s, ready %s, though it is unreachable", state, ready)
		}
		eng.say()
		<-time.After(time.Second)
		if state, ready := r.state(), r.metric(`worker_ready{worker="7"}`); state != engine.StateReady || ready != "1" {
			t.Errorf("%s, ready %s, though it can be reached", state, ready)
		}
	})
}
