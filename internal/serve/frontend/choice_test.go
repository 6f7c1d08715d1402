package frontend

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// TestChoice compares a choice that is fed token by token, in random portions, with a naive twin that
// sees the whole text at once: the text, where it ends, and which tokens have log-probabilities and at
// which offsets.
func TestChoice(t *testing.T) {
	pieces := []string{"a", "b", "ab", "é", "😀", "\xff", "\xe2\x80", " ", "END", "E"}
	stopped := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var raw strings.Builder
		for range rng.IntN(25) {
			raw.WriteString(pieces[rng.IntN(len(pieces))])
		}
		var stops []string
		for range rng.IntN(3) {
			stops = append(stops, []string{"END", "ba", "bé", "😀a", "\ufffd", "aab"}[rng.IntN(6)])
		}
		rules := &textRules{
			tokenizer: byteTokenizer{}, stopStrings: newStopStrings(stops), minTokens: rng.IntN(4) * rng.IntN(8),
			keepStop: rng.IntN(2) == 0, logprobs: true,
		}
		tokens := encodeBytes(raw.String())
		want := naiveChoice(tokens, stops, rules)

		c := &answerChoice{decoder: byteTokenizer{}.NewDecoder(prep.DecodeOptions{}), stopMatcher: newStopMatcher(rules.stopStrings)}
		var got outcome
		flush := func() {
			text, lps := c.pendingText()
			if !utf8.Valid(text) {
				t.Fatalf("seed %d: %q is not UTF-8", seed, text)
			}
			got.text += string(text)
			for _, lp := range lps {
				got.add(lp)
			}
			c.markSent(len(text))
		}
		for _, tok := range tokens {
			got.used++
			if c.pushToken(rules, tok, &engine.Logprob{Token: tok, Logprob: float32(got.used)}) {
				got.stopped, c.done = true, true
				break
			}
			if rng.IntN(3) > 0 {
				flush()
			}
		}
		if !got.stopped {
			got.stopped, c.done = c.finishTokens(rules), true
		}
		flush()
		if got.stopped {
			stopped++
		}
		if got.text != want.text || got.stopped != want.stopped || got.used != want.used || got.logprobs != want.logprobs {
			t.Fatalf("seed %d: %q stops %q min %d keep %v:\n got %+v\nwant %+v", seed, raw.String(), stops, rules.minTokens, rules.keepStop, got, want)
		}
		if n := utf8.RuneCountInString(want.text); c.chars != n {
			t.Fatalf("seed %d: %d characters counted, the text has %d", seed, c.chars, n)
		}
	}
	if stopped < 500 {
		t.Errorf("only %d choices were stopped", stopped)
	}
}

type outcome struct {
	text     string
	used     int // tokens
	stopped  bool
	logprobs string // token, number and offset of each
}

func (o *outcome) add(lp api.Logprob) {
	o.logprobs += string(rune('0'+int(lp.Logprob)%10)) + "@" + string(rune('a'+lp.Offset)) + " "
}

// naiveChoice decodes ever longer prefixes from the start.
func naiveChoice(tokens []kv.Token, stops []string, r *textRules) outcome {
	decode := func(n int, flush bool) string {
		d := byteTokenizer{}.NewDecoder(prep.DecodeOptions{})
		var text []byte
		for _, t := range tokens[:n] {
			text = d.Push(text, t)
		}
		if flush {
			text = d.Flush(text)
		}
		return string(text)
	}
	finish := func(n int, text string, stopped bool, cut int) outcome {
		o := outcome{text: text, used: n, stopped: stopped}
		for i := range n {
			start := len(decode(i, false))
			if start >= cut {
				continue
			}
			o.add(api.Logprob{Logprob: float32(i + 1), Offset: utf8.RuneCountInString(decode(i, false))})
		}
		return o
	}
	// Stop strings do not match text decoded before token minTokens.
	blind := 0
	if r.minTokens > 1 {
		blind = len(decode(min(r.minTokens-1, len(tokens)), false))
	}
	for n := 1; n <= len(tokens)+1; n++ {
		text, flushed := "", n > len(tokens)
		if flushed {
			text = decode(len(tokens), true)
		} else {
			text = decode(n, false)
		}
		if min(n, len(tokens)) < r.minTokens {
			continue
		}
		if end, length := firstStop(text[min(blind, len(text)):], stops); length > 0 {
			cut := blind + end
			if !r.keepStop {
				cut -= length
			}
			return finish(min(n, len(tokens)), text[:cut], true, cut)
		}
	}
	return finish(len(tokens), decode(len(tokens), true), false, math.MaxInt)
}
