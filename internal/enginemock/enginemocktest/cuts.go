package enginemocktest

import (
	"context"
	"runtime"
	"slices"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestCuts cuts the answers of path after every byte, and also sends a whole answer byte by byte, to adapter
// e behind f. It requires: no token that is not of the answer, an error which another worker may resolve if
// the answer is incomplete, and the rest of the answer for a request that continues.
func TestCuts(t *testing.T, f *FaultyProxy, e engine.Engine, path string) {
	ctx := enginetest.Start(t, e)
	req := func(done []kv.Token) *engine.Request {
		r := &engine.Request{
			ID: "cut", Attempt: 1, Choices: 1, Logprobs: -1, Model: e.Card().Name,
			Prompt: []kv.Token{21, 22, 23, 24, 25}, Stop: engine.Stop{MaxTokens: 8, IgnoreEOS: true},
		}
		if len(done) > 0 {
			r.Attempt, r.Generated = 2, [][]kv.Token{done}
		}
		return r
	}
	want := enginetest.MustGenerate(t, ctx, e, req(nil))[0].Tokens
	try := func(cut int) []kv.Token {
		t.Helper()
		f.SpoilAnswers(path, cut)
		got, whole, err := generateTokens(ctx, e, req(nil))
		switch {
		case len(got) > len(want) || !slices.Equal(got, want[:len(got)]):
			t.Fatalf("cut after %d bytes: tokens %v of %v", cut, got, want)
		case err == nil && (!whole || len(got) < len(want)):
			t.Fatalf("cut after %d bytes: an answer of %v, of %v, without an error", cut, got, want)
		case err != nil && fault.CodeOf(err) != fault.Unavailable:
			t.Fatalf("cut after %d bytes: %v", cut, err)
		case err != nil && cut < 0:
			t.Fatalf("byte by byte: %v", err)
		}
		return got
	}
	try(-1)
	size, header := f.AnswerSize(), f.HeaderSize()
	for cut := header; cut < size; cut++ {
		if got := try(cut); cut%101 == 0 && len(got) < len(want) {
			testContinues(t, ctx, f, e, req(got), want)
		}
	}
	for _, cut := range []int{0, 1, header / 2, header - 1} {
		try(cut)
		for isUnreachable(e) {
			runtime.Gosched()
		}
	}
	testContinues(t, ctx, f, e, req(nil), want)
}

// testContinues requires the rest of an answer: as many tokens as are missing. A simulated engine samples
// different tokens after another prompt.
func testContinues(t *testing.T, ctx context.Context, f *FaultyProxy, e engine.Engine, req *engine.Request, want []kv.Token) {
	t.Helper()
	f.SpoilAnswers("", 0)
	for isUnreachable(e) {
		runtime.Gosched()
	}
	var have []kv.Token
	if req.Generated != nil {
		have = req.Generated[0]
	}
	got, _, err := generateTokens(ctx, e, req)
	if err != nil || len(have)+len(got) != len(want) || len(have) == 0 && !slices.Equal(got, want) {
		t.Fatalf("after %v came %v, want %v: %v", have, got, want, err)
	}
}

func isUnreachable(e engine.Engine) bool {
	return slices.ContainsFunc(e.(engine.WarningSource).Warnings(), func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable })
}

// generateTokens serves a request and returns the delivered tokens, and whether the end was delivered.
func generateTokens(ctx context.Context, e engine.Engine, req *engine.Request) (got []kv.Token, whole bool, err error) {
	err = e.Generate(ctx, req, func(d *engine.Delta) error {
		got = append(got, d.Tokens...)
		whole = whole || d.Finish != engine.NotFinished
		return nil
	})
	return got, whole, err
}
