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

// preprocessor is an engine that makes prompts of the bytes of the text or the conversation, after a
// second.
type preprocessor struct{ *servetest.Engine }

func (preprocessor) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := &engine.Preprocessed{Media: []kv.Media{{Hash: 9, Start: 0, End: 1}}}
	switch req.ID {
	case "crash":
		panic("engine bug")
	case "plain":
		return nil, errors.New("secret detail")
	case "refused":
		return nil, fault.InvalidParam("messages", "roles must alternate")
	case "vocabulary":
		return &engine.Preprocessed{Tokens: []kv.Token{1 << 20}}, nil
	case "media":
		p.Media[0].End = 100
	case "large":
		return &engine.Preprocessed{Tokens: make([]kv.Token, engine.MaxPreprocessed+1)}, nil
	}
	for _, b := range append(slices.Clone(req.Chat), req.Text...) {
		p.Tokens = append(p.Tokens, kv.Token(b))
	}
	return p, nil
}

func (r *rig) preprocess(ctx context.Context, addr string, req *engine.PreprocessRequest) (all []engine.Preprocessed, err error) {
	err = r.rpc.Call(ctx, addr, engine.MethodPreprocess, engine.AppendPreprocessRequest(nil, req), func(frame []byte) error {
		var p engine.Preprocessed
		err := engine.DecodePreprocessed(frame, &p)
		all = append(all, p)
		return err
	})
	return all, err
}

func preprocessRequest(id string) *engine.PreprocessRequest {
	return &engine.PreprocessRequest{ID: id, Attempt: 3, Model: "m", Text: "quiet", AddSpecial: true}
}

func TestPreprocesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(preprocessor{r.engine})
		defer r.stop()
		if !r.card().Preprocess {
			t.Error("the card does not say that the engine makes prompts")
		}
		got, err := r.preprocess(t.Context(), r.addr(), preprocessRequest("r"))
		if err != nil || len(got) != 1 || got[0].Attempt != 3 || !slices.Equal(got[0].Tokens, []kv.Token{'q', 'u', 'i', 'e', 't'}) ||
			!slices.Equal(got[0].Media, []kv.Media{{Hash: 9, Start: 0, End: 1}}) {
			t.Errorf("answer %+v, %v", got, err)
		}
		chat := &engine.PreprocessRequest{ID: "c", Attempt: 1, Model: "m", Chat: []byte("{}")}
		if got, err := r.preprocess(t.Context(), r.addr(), chat); err != nil || !slices.Equal(got[0].Tokens, []kv.Token{'{', '}'}) {
			t.Errorf("a conversation: %+v, %v", got, err)
		}
		for name, c := range map[string]struct {
			edit func(*engine.PreprocessRequest)
			want fault.Code
		}{
			"other model":            {func(q *engine.PreprocessRequest) { q.Model = "other" }, fault.NotFound},
			"both":                   {func(q *engine.PreprocessRequest) { q.Chat = []byte("{}") }, fault.Invalid},
			"no attempt":             {func(q *engine.PreprocessRequest) { q.Attempt = 0 }, fault.Invalid},
			"template refuses":       {func(q *engine.PreprocessRequest) { q.ID = "refused" }, fault.Invalid},
			"too large":              {func(q *engine.PreprocessRequest) { q.ID = "large" }, fault.Invalid},
			"outside the vocabulary": {func(q *engine.PreprocessRequest) { q.ID = "vocabulary" }, fault.Internal},
			"media beyond the end":   {func(q *engine.PreprocessRequest) { q.ID = "media" }, fault.Internal},
			"engine panics":          {func(q *engine.PreprocessRequest) { q.ID = "crash" }, fault.Internal},
			"plain error":            {func(q *engine.PreprocessRequest) { q.ID = "plain" }, fault.Internal},
		} {
			req := preprocessRequest("r")
			c.edit(req)
			got, err := r.preprocess(t.Context(), r.addr(), req)
			if err == nil || fault.CodeOf(err) != c.want || strings.Contains(err.Error(), "secret") || len(got) > 0 {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		err = r.rpc.Call(t.Context(), r.addr(), engine.MethodPreprocess, nil, func([]byte) error { return nil })
		if err == nil || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("an empty body: %v", err)
		}
		if log := r.log.String(); !strings.Contains(log, "request=r ") || strings.Contains(log, "quiet") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

func TestPreprocessesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		if r.card().Preprocess {
			t.Error("the card promises prompts")
		}
		if _, err := r.preprocess(t.Context(), r.addr(), preprocessRequest("r")); err == nil || fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("%v, want %v", err, fault.Unimplemented)
		}
	})
}

// TestPreprocessBounds: it counts as a call, and a canceled call cancels the engine's work.
func TestPreprocessBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.MaxCalls = 1
		r.start(preprocessor{r.engine})
		defer r.stop()
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := r.preprocess(ctx, r.addr(), preprocessRequest("r"))
			first <- err
		}()
		synctest.Wait()
		if _, err := r.preprocess(t.Context(), r.addr(), preprocessRequest("s")); err == nil || fault.CodeOf(err) != fault.Overloaded {
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
		if _, err := r.preprocess(t.Context(), r.addr(), preprocessRequest("s")); err != nil {
			t.Errorf("a call afterwards: %v", err)
		}
	})
}
