package engine_test

import (
	"fmt"
	"math"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestContinue checks that delivered tokens are removed, and that a gap is an error.
func TestContinue(t *testing.T) {
	for _, tt := range []struct {
		pos, tokens, logprobs int
		have, asked           int
		want                  string // the remaining position, tokens and log-probabilities
	}{
		{0, 3, 0, 0, -1, "0 [0 1 2] 0"},
		{0, 3, 3, 0, -1, "0 [0 1 2] 0"},
		{0, 3, 3, 0, 0, "0 [0 1 2] 3"},
		{2, 3, 3, 4, 2, "4 [4] 1"},
		{2, 3, 0, 4, -1, "4 [4] 0"},
		{2, 3, 3, 5, 2, "5 [] 0"},
		{2, 3, 3, 9, 2, "5 [] 0"},
		{4, 0, 0, 4, 2, "4 [] 0"},
		{5, 1, 1, 4, 2, "the worker sent tokens with a gap before them: this is a defect of the server"},
		{-1, 1, 1, 4, 2, "the worker sent tokens with a gap before them: this is a defect of the server"},
		{4, 2, 1, 4, 0, "the worker sent tokens without log-probabilities: this is a defect of the server"},
	} {
		d := &engine.Delta{Pos: tt.pos, Logprobs: make([]engine.Logprob, tt.logprobs)}
		for i := range tt.tokens {
			d.Tokens = append(d.Tokens, kv.Token(tt.pos+i))
		}
		err := d.TrimDelivered(tt.have, tt.asked)
		got := fmt.Sprint(d.Pos, " ", d.Tokens, " ", len(d.Logprobs))
		if err != nil {
			got = err.Error()
		}
		if got != tt.want || err != nil && fault.CodeOf(err) != fault.Internal {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestTake checks that an answer is one valid frame of the attempt.
func TestTake(t *testing.T) {
	embedding := func(attempt uint32, v ...float32) []byte {
		return engine.AppendEmbedding(nil, &engine.Embedding{Attempt: attempt, Vector: v})
	}
	prompt := func(attempt uint32, tokens ...kv.Token) []byte {
		return engine.AppendPreprocessed(nil, &engine.Preprocessed{Attempt: attempt, Tokens: tokens})
	}
	for name, tt := range map[string]struct {
		embeddings, prompts [][]byte
		here                bool // there is an answer at the end
		broken              bool
	}{
		"one":       {[][]byte{embedding(3, 1, 2)}, [][]byte{prompt(3, 1)}, true, false},
		"late":      {[][]byte{embedding(2, 1)}, [][]byte{prompt(2, 1)}, false, false},
		"both":      {[][]byte{embedding(3, 1), embedding(2, 2)}, [][]byte{prompt(3, 1), prompt(2, 2)}, true, false},
		"two":       {[][]byte{embedding(3, 1), embedding(3, 2)}, [][]byte{prompt(3), prompt(3)}, false, true},
		"garbage":   {[][]byte{{0xff}}, [][]byte{{0xff}}, false, true},
		"no answer": {[][]byte{embedding(3, float32(math.NaN()))}, [][]byte{prompt(3, 100)}, false, true},
		"empty":     {[][]byte{embedding(3)}, [][]byte{prompt(3, 100)}, false, true},
		"infinite":  {[][]byte{embedding(3, float32(math.Inf(1)))}, [][]byte{prompt(3, 1, 1000)}, false, true},
	} {
		var e engine.Embedding
		var p engine.Preprocessed
		var err, perr error
		for _, frame := range tt.embeddings {
			err = e.TakeFrame(frame, 3)
		}
		for _, frame := range tt.prompts {
			perr = p.TakeFrame(frame, 3, 100)
		}
		if (e.Vector != nil) != tt.here || (err != nil) != tt.broken || err != nil && fault.CodeOf(err) != fault.Internal {
			t.Errorf("%s: %v, %v", name, e, err)
		}
		if (p.Attempt == 3) != tt.here || (perr != nil) != tt.broken || perr != nil && fault.CodeOf(perr) != fault.Internal {
			t.Errorf("%s: %v, %v", name, p, perr)
		}
	}
}
