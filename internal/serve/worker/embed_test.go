package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// embedder is an engine that makes embeddings: it answers with the prompt itself, after a second.
type embedder struct{ *servetest.Engine }

func (e embedder) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch req.ID {
	case "crash":
		panic("engine bug")
	case "plain":
		return nil, errors.New("secret detail")
	}
	var v []float32
	for _, t := range req.Prompt {
		v = append(v, float32(t))
	}
	return v, nil
}

func (r *rig) embed(ctx context.Context, addr string, req *engine.EmbedRequest) (vectors []engine.Embedding, err error) {
	err = r.rpc.Call(ctx, addr, engine.MethodEmbed, engine.AppendEmbedRequest(nil, req), func(frame []byte) error {
		var e engine.Embedding
		err := engine.DecodeEmbedding(frame, &e)
		vectors = append(vectors, e)
		return err
	})
	return vectors, err
}

// card returns the card in discovery.
func (r *rig) card() engine.Card {
	r.t.Helper()
	c, err := engine.DecodeCard(r.registry.Instances()[0].Meta)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func embedRequest(id string) *engine.EmbedRequest {
	return &engine.EmbedRequest{ID: id, Attempt: 3, Model: "m", Prompt: []kv.Token{5, 987654}}
}

func TestEmbeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(embedder{r.engine})
		defer r.stop()
		if !r.card().Embeddings {
			t.Error("the card does not say that the engine makes embeddings")
		}
		got, err := r.embed(t.Context(), r.addr(), embedRequest("r"))
		if err != nil || len(got) != 1 || got[0].Attempt != 3 || !slices.Equal(got[0].Vector, []float32{5, 987654}) {
			t.Errorf("answer %+v, %v", got, err)
		}
		for name, c := range map[string]struct {
			edit func(*engine.EmbedRequest)
			want fault.Code
		}{
			"other model":   {func(q *engine.EmbedRequest) { q.Model = "other" }, fault.NotFound},
			"no prompt":     {func(q *engine.EmbedRequest) { q.Prompt = nil }, fault.Invalid},
			"no attempt":    {func(q *engine.EmbedRequest) { q.Attempt = 0 }, fault.Invalid},
			"engine panics": {func(q *engine.EmbedRequest) { q.ID = "crash" }, fault.Internal},
			"plain error":   {func(q *engine.EmbedRequest) { q.ID = "plain" }, fault.Internal},
		} {
			req := embedRequest("r")
			c.edit(req)
			_, err := r.embed(t.Context(), r.addr(), req)
			if err == nil || fault.CodeOf(err) != c.want || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		err = r.rpc.Call(t.Context(), r.addr(), engine.MethodEmbed, nil, func([]byte) error { return nil })
		if err == nil || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("an empty body: %v", err)
		}
		if log := r.log.String(); !strings.Contains(log, "prompt_tokens=2") || strings.Contains(log, "987654") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

func TestEmbedsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		if r.card().Embeddings {
			t.Error("the card promises embeddings")
		}
		if _, err := r.embed(t.Context(), r.addr(), embedRequest("r")); err == nil || fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("%v, want %v", err, fault.Unimplemented)
		}
	})
}

// TestEmbedBounds: embeddings count as calls, and a canceled call cancels the engine's work.
func TestEmbedBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Hour})
		r.cfg.MaxCalls = 1
		r.start(embedder{r.engine})
		defer r.stop()
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := r.embed(ctx, r.addr(), embedRequest("r"))
			first <- err
		}()
		synctest.Wait()
		if _, err := r.embed(t.Context(), r.addr(), embedRequest("s")); err == nil || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("the second call: %v, want %v", err, fault.Overloaded)
		}
		begin := time.Now()
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the call that was left: %v", err)
		}
		synctest.Wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("it ended after %v", took)
		}
		if _, err := r.embed(t.Context(), r.addr(), embedRequest("s")); err != nil {
			t.Errorf("a call afterwards: %v", err)
		}
	})
}

// TestEmbedDrain: an unfinished call ends as Draining.
func TestEmbedDrain(t *testing.T) {
	for timeout, finished := range map[time.Duration]bool{2 * time.Second: true, -1: false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			r.cfg.DrainTimeout = timeout
			r.start(embedder{r.engine})
			addr, call := r.addr(), make(chan error, 1)
			go func() {
				_, err := r.embed(t.Context(), addr, embedRequest("r"))
				call <- err
			}()
			synctest.Wait()
			r.stop()
			if err := <-call; (err == nil) != finished || err != nil && fault.CodeOf(err) != fault.Draining {
				t.Errorf("drained for %v: %v", timeout, err)
			}
		})
	}
}
