package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
)

// passCalls is a plane on which a test answers passthrough calls.
type passCalls struct {
	rpc.Plane
	answer func(addr string, req *engine.PassthroughRequest, send func(engine.PassthroughChunk) error) error
}

func (c passCalls) Call(_ context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	req := new(engine.PassthroughRequest)
	if err := engine.DecodePassthroughRequest(body, req); err != nil || method != engine.MethodPassthrough {
		return errors.Join(err, fmt.Errorf("method %s", method))
	}
	return c.answer(addr, req, func(p engine.PassthroughChunk) error {
		p.Attempt = req.Attempt
		return recv(engine.AppendPassthroughChunk(nil, &p))
	})
}

// TestPass: request and answer pass through unchanged, under the caller's attempt number; another
// worker is tried until data is sent.
func TestPass(t *testing.T) {
	const unknown, none = engine.CachedUnknown, fault.Code(255)
	stream := engine.PassthroughChunk{Accepted: true, Status: 200, Type: "text/event-stream"}
	data := func(text string) engine.PassthroughChunk {
		return engine.PassthroughChunk{Data: []byte(text), Tokens: 1}
	}
	last := engine.PassthroughChunk{Last: true, PromptTokens: 9, OutputTokens: 2, Cached: 4}
	gone := fault.New(fault.Unavailable, "the connection broke")
	for _, tt := range []struct {
		name     string
		one, two []engine.PassthroughChunk // of the two workers
		dies     error                     // the first one, at its end
		got      string
		err      fault.Code
		heard    string
	}{
		{"served", []engine.PassthroughChunk{stream, data("a"), data("b"), last}, nil, nil, "200 a b last:4", none, "[513:-1 513:4]"},
		{"late", []engine.PassthroughChunk{stream, data("a"), {Last: true, PromptTokens: unknown, OutputTokens: unknown, Cached: unknown}}, nil, nil, "200 a last:-1", none, "[513:-1]"},
		{"refused", []engine.PassthroughChunk{{Accepted: true, Status: 422}, {Data: []byte("no"), Last: true, Cached: unknown}}, nil, nil, "422 no last:-1", none, "[513:-1]"},
		{"moves", nil, []engine.PassthroughChunk{stream, data("b"), last}, gone, "200 b last:4", none, "[514:-1 514:4]"},
		{"moves when accepted", []engine.PassthroughChunk{stream}, []engine.PassthroughChunk{stream, data("b"), last}, gone, "200 b last:4", none, "[514:-1 514:4]"},
		{"moves to another kind", []engine.PassthroughChunk{stream}, []engine.PassthroughChunk{{Accepted: true, Status: 200, Type: "text/plain"}}, gone, "200", fault.Internal, "[]"},
		{"breaks", []engine.PassthroughChunk{stream, data("a")}, []engine.PassthroughChunk{stream, data("b"), last}, gone, "200 a", fault.Unavailable, "[513:-1]"},
		{"breaks by leaving", []engine.PassthroughChunk{stream, data("a")}, nil, fault.New(fault.Draining, "leaves"), "200 a", fault.Unavailable, "[513:-1]"},
		{"a defect", []engine.PassthroughChunk{data("a")}, nil, nil, "", fault.Internal, "[]"},
		{"more than all", []engine.PassthroughChunk{stream, last, data("a")}, nil, nil, "200 last:4", none, "[513:4]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &book{pick: others(2)}
			r := newRig(t, Config{}, b, nil)
			r.dispatcher.Plane = passCalls{answer: func(addr string, req *engine.PassthroughRequest, send func(engine.PassthroughChunk) error) error {
				if string(req.Body) != "{}" || req.Path != "/p" || req.Model != "m" || !req.Stream || len(req.Hints) != 0 {
					t.Errorf("the worker got %+v", req)
				}
				pieces, end := tt.one, tt.dies
				if addr == "w2" {
					pieces, end = tt.two, nil
				}
				for _, p := range pieces {
					if err := send(p); err != nil {
						return err
					}
				}
				return end
			}}
			var got []string
			err := r.run(func(ctx context.Context) error {
				return r.engine.(engine.PassthroughEngine).PassThrough(ctx, &engine.PassthroughRequest{ID: "r", Attempt: 3, Path: "/p", Body: []byte("{}"), Stream: true, Hints: []byte(`{"session_id":"s"}`)}, func(p *engine.PassthroughChunk) error {
					if p.Attempt != 3 {
						t.Errorf("attempt %d", p.Attempt)
					}
					if p.Accepted {
						got = append(got, fmt.Sprint(p.Status))
					}
					if len(p.Data) > 0 {
						got = append(got, string(p.Data))
					}
					if p.Last {
						got = append(got, fmt.Sprint("last:", p.Cached))
					}
					return nil
				})
			})
			code := none
			if err != nil {
				code = fault.CodeOf(err)
			}
			if s := strings.Join(got, " "); s != tt.got || code != tt.err {
				t.Errorf("%s, %v, want %s, %v", s, err, tt.got, tt.err)
			}
			if heard := fmt.Sprint(b.cached); heard != tt.heard || len(b.held) != 0 {
				t.Errorf("the router heard %s, want %s; reserved are %v", heard, tt.heard, b.held)
			}
		})
	}
}

// TestPassChooses: the client's hints reach the router, workers that do not take the path are excluded,
// and a caller that stops reading ends the request.
func TestPassChooses(t *testing.T) {
	full := errors.New("full")
	b := &book{}
	var asked route.Request
	b.pick = func(req *route.Request) (route.Decision, error) {
		asked = *req
		return decision(1), nil
	}
	r := newRig(t, Config{}, b, nil)
	passes := servetest.ModelCard("m")
	passes.PassthroughPaths = []string{"/p"}
	r.list(t, passes, servetest.ModelCard("m"))
	r.dispatcher.Plane = passCalls{answer: func(_ string, _ *engine.PassthroughRequest, send func(engine.PassthroughChunk) error) error {
		return send(engine.PassthroughChunk{Accepted: true, Status: 200})
	}}
	err := r.run(func(ctx context.Context) error {
		req := &engine.PassthroughRequest{ID: "r", Attempt: 1, Model: "law", Salt: kv.Salt{LoRA: "law"}, Path: "/p", Body: []byte("{}"), Prompt: []kv.Token{1, 2}, Hints: []byte(`{"session_id":"s"}`)}
		return r.engine.(engine.PassthroughEngine).PassThrough(ctx, req, func(*engine.PassthroughChunk) error { return full })
	})
	if !errors.Is(err, full) || len(b.held) != 0 {
		t.Errorf("%v, reserved are %v", err, b.held)
	}
	if asked.Session.ID != "s" || asked.Model != "law" || asked.Salt.LoRA != "law" || len(asked.Tokens) != 2 || fmt.Sprint(asked.Exclude) != "[2]" {
		t.Errorf("the router was asked %+v", asked)
	}
	bad := &engine.PassthroughRequest{Attempt: 1, Path: "/p"}
	if err := r.engine.(engine.PassthroughEngine).PassThrough(t.Context(), bad, nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("no body: %v", err)
	}
}
