package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"

	"github.com/google/go-cmp/cmp"
)

// words is a tokenizer whose tokens are words with the space before them; ids below 4 have no text, and 3 is
// EOS.
type words struct {
	ids   map[string]kv.Token
	texts []string
}

func newWords() *words { return &words{ids: map[string]kv.Token{}, texts: make([]string, 4)} }

func (w *words) encode(text string) (tokens []kv.Token) {
	for _, word := range strings.SplitAfter(strings.ReplaceAll(text, " ", "\x00 "), "\x00") {
		if word = strings.TrimSuffix(word, "\x00"); word == "" {
			continue
		}
		if _, ok := w.ids[word]; !ok {
			w.ids[word] = kv.Token(len(w.texts))
			w.texts = append(w.texts, word)
		}
		tokens = append(tokens, w.ids[word])
	}
	return tokens
}

func (w *words) decode(tokens []kv.Token) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(w.texts[t])
	}
	return b.String()
}

// reciting returns an engine that answers with the passage, and its tokenizer.
func reciting(t testing.TB, change func(*Config)) (*Engine, *words) {
	w := newWords()
	text := BuiltinText(w.encode)
	return small(t, func(c *Config) {
		c.Text, c.Output = text, 40
		c.Vocabulary = Vocabulary{Size: len(w.texts), Mask: []kv.Token{0, 1, 2, 3}, EOS: []kv.Token{3}}
		c.Blocks, c.ContextLength, c.Timing.Speedup = 1000, 1000, 1e6
		if change != nil {
			change(c)
		}
	}), w
}

// unlimited returns a request for one drawn answer without limit.
func unlimited(e *Engine, seed uint64) *engine.Request {
	req := request(int(seed), 20, e.Card().ContextLength-20)
	req.Stop.IgnoreEOS, req.Sampling = false, engine.Sampling{Temperature: 1, Seed: seed}
	return req
}

// TestPassageIsReadable checks that answers are whole sentences of the passage, the first without a leading
// space.
func TestPassageIsReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, w := reciting(t, nil)
		ctx := enginetest.Start(t, e)
		begun := map[string]bool{}
		for seed := range 20 {
			req := request(seed, 20, 900)
			text := w.decode(enginetest.MustGenerate(t, ctx, e, req)[0].Tokens)
			rest := text
			for said := 0; ; said++ {
				i := slices.IndexFunc(builtinSentences(), func(s string) bool { return strings.HasPrefix(rest, s) })
				if i < 0 {
					if said < len(builtinSentences()) || !slices.ContainsFunc(builtinSentences(), func(s string) bool { return strings.HasPrefix(s, rest) }) {
						t.Fatalf("after %d sentences: %q", said, rest)
					}
					break
				}
				if said == 0 {
					begun[builtinSentences()[i]] = true
				}
				rest = strings.TrimPrefix(rest[len(builtinSentences()[i]):], " ")
			}
			for _, s := range builtinSentences() {
				if !strings.Contains(text, s) {
					t.Errorf("seed %d: a text as long as the passage lacks %q", seed, s)
				}
			}
		}
		if len(begun) < 8 {
			t.Errorf("20 prompts begin with %d sentences", len(begun))
		}
	})
}

// TestLengths checks that answers without a limit end at lengths around the mean, and that others continue to
// the limit.
func TestLengths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := reciting(t, nil)
		ctx := enginetest.Start(t, e)
		sum, least, most := 0, 1000, 0
		const n = 300
		for seed := range uint64(n) {
			got := enginetest.MustGenerate(t, ctx, e, unlimited(e, seed))[0]
			if got.Finish != engine.FinishStop || got.Tokens[len(got.Tokens)-1] != 3 || slices.Index(got.Tokens, 3) != len(got.Tokens)-1 {
				t.Fatalf("finish %d: %v", got.Finish, got.Tokens)
			}
			sum, least, most = sum+len(got.Tokens), min(least, len(got.Tokens)), max(most, len(got.Tokens))
		}
		// The standard deviation of one is 16, so of the mean of 300 it is less than 1.
		if mean := float64(sum) / n; mean < 37 || mean > 43 || least > 15 || most < 65 || most > 79 {
			t.Errorf("%d to %d tokens, %v in the mean of %d; want 1 to 79 and 40", least, most, float64(sum)/n, n)
		}

		for name, c := range map[string]struct {
			change func(*engine.Request)
			length int
			finish engine.Finish
		}{
			"a limit":   {func(r *engine.Request) { r.Stop.MaxTokens = 200 }, 200, engine.FinishLength},
			"a minimum": {func(r *engine.Request) { r.Stop.MinTokens = 100 }, 101, engine.FinishStop},
			"ignored":   {func(r *engine.Request) { r.Stop.IgnoreEOS = true }, 980, engine.FinishLength},
		} {
			req := unlimited(e, 1)
			c.change(req)
			if got := enginetest.MustGenerate(t, ctx, e, req)[0]; len(got.Tokens) != c.length || got.Finish != c.finish {
				t.Errorf("%s: %d tokens, finish %d", name, len(got.Tokens), got.Finish)
			}
		}
	})
}

func TestEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, func(c *Config) { c.Script = ScriptEcho })
		ctx := enginetest.Start(t, e)
		req := request(1, 30, 200)
		prompt := slices.Clone(req.Prompt)
		req.Prompt[3], req.Prompt[9], req.Prompt[20] = 0, 7, 8 // without text, or EOS
		prompt = slices.Delete(slices.Delete(slices.Delete(prompt, 20, 21), 9, 10), 3, 4)
		req.Stop.IgnoreEOS = false
		for attempt, want := range [][]kv.Token{append(slices.Clone(prompt), 7), prompt[:10]} {
			if attempt == 1 {
				req.Stop.MaxTokens = 10
			}
			if got := enginetest.MustGenerate(t, ctx, e, req)[0]; !slices.Equal(got.Tokens, want) {
				t.Errorf("said %v, want %v", got.Tokens, want)
			}
		}
		req.Stop.MaxTokens, req.Stop.IgnoreEOS = 60, true
		if got := enginetest.MustGenerate(t, ctx, e, req)[0]; !slices.Equal(got.Tokens, slices.Concat(prompt, prompt, prompt)[:60]) {
			t.Errorf("without an end: %v", got.Tokens)
		}
		req.Prompt, req.Stop.IgnoreEOS = []kv.Token{0, 7, 8, 1}, false
		if got := enginetest.MustGenerate(t, ctx, e, req)[0]; !slices.Equal(got.Tokens, []kv.Token{7}) {
			t.Errorf("a prompt without text: %v", got.Tokens)
		}
	})
}

// TestResumption cuts answers of all kinds after every token; another engine continues as the first one would
// have.
func TestResumption(t *testing.T) {
	for name, script := range map[string]Script{"passage": ScriptPassage, "echo": ScriptEcho} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				change := func(c *Config) { c.Script = script }
				first, _ := reciting(t, change)
				second, _ := reciting(t, change)
				if a, b := first.Card().Numerics, second.Card().Numerics; a != b {
					t.Fatalf("numerics %s and %s", a, b)
				}
				firstCtx, secondCtx := enginetest.Start(t, first), enginetest.Start(t, second)
				for i, req := range []*engine.Request{unlimited(first, 3), unlimited(first, 4), request(5, 60, 150)} {
					if i == 1 {
						req.Logprobs, req.Stop.MinTokens = 4, 20
						for id := range kv.Token(first.Card().VocabSize) { // half of all words, and more than half of the generated ones
							if id%3 > 0 {
								req.Stop.Tokens = append(req.Stop.Tokens, id)
							}
						}
					}
					whole := enginetest.MustGenerate(t, firstCtx, first, req)[0]
					for cut := range len(whole.Tokens) {
						req.Attempt, req.Generated = 2, [][]kv.Token{whole.Tokens[:cut]}
						got := enginetest.MustGenerate(t, secondCtx, second, req)[0]
						want := enginetest.Choice{Tokens: whole.Tokens[cut:], Finish: whole.Finish}
						if req.Logprobs > 0 {
							want.Logprobs = whole.Logprobs[cut:]
						}
						got.Cached = 0
						if diff := cmp.Diff(want, got); diff != "" {
							t.Fatalf("request %d cut at %d (-unbroken +resumed):\n%s", i, cut, diff)
						}
					}
				}
			})
		})
	}
}

// TestNumerics checks that engines whose streams differ have different numerics.
func TestNumerics(t *testing.T) {
	names := map[string]string{}
	for what, change := range map[string]func(*Config){
		"as it is":      nil,
		"a longer one":  func(c *Config) { c.Output++ },
		"echo":          func(c *Config) { c.Script = ScriptEcho },
		"another mask":  func(c *Config) { c.Vocabulary.Mask = c.Vocabulary.Mask[1:] },
		"another end":   func(c *Config) { c.Vocabulary.EOS = []kv.Token{2} },
		"another text":  func(c *Config) { c.Text.First[0], c.Text.First[1] = c.Text.First[1], c.Text.First[0] },
		"other context": func(c *Config) { c.ContextLength = 500 },
	} {
		e, _ := reciting(t, change)
		name := e.Card().Numerics
		if other, taken := names[name]; taken {
			t.Errorf("%s and %s are both %s", what, other, name)
		}
		names[name] = what
	}
	other, _ := reciting(t, func(c *Config) { c.Worker, c.MaxSeqs, c.Timing.Jitter = 3, 4, 0.1 })
	if names[other.Card().Numerics] != "as it is" {
		t.Error("what does not change the text changes the numerics")
	}
}

// TestNothingToSay checks that min_tokens is refused if every word ends the answer.
func TestNothingToSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, nil)
		ctx := enginetest.Start(t, e)
		req := request(1, 10, 20)
		req.Stop.MinTokens = 5
		for id := range kv.Token(96) {
			req.Stop.Tokens = append(req.Stop.Tokens, id)
		}
		if _, err := enginetest.Generate(ctx, e, req); fault.CodeOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), "min_tokens") {
			t.Errorf("%v", err)
		}
		req.Stop.Tokens = slices.Delete(req.Stop.Tokens, 50, 51)
		got := enginetest.MustGenerate(t, ctx, e, req)[0]
		if want := []kv.Token{50, 50, 50, 50, 50}; !slices.Equal(got.Tokens[:5], want) || len(got.Tokens) < 6 {
			t.Errorf("one word is left, and it says %v", got.Tokens)
		}
	})
}

func TestConfigReportsEveryProblem(t *testing.T) {
	_, err := New(Config{
		Vocabulary: Vocabulary{Size: 1, EOS: []kv.Token{9}}, Script: 9, Output: -1, Clock: 9, MaxWaiting: -1,
		Text: Text{First: [][]kv.Token{{}, {1}}, Next: [][]kv.Token{{7}}}, Timing: Timing{Jitter: 7}, MoE: MoE{Layers: 3},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, problem := range []string{"vocabulary has 1", "end of sequence has token 9", "the text has token 7", "sentence 0", "2 sentences", "script 9", "answers is -1", "clock 9", "waiting", "jitter", "3 layers of 0 experts"} {
		if !strings.Contains(err.Error(), problem) {
			t.Errorf("nothing about %q in:\n%v", problem, err)
		}
	}
	for name, cfg := range map[string]Config{
		"no word":           {Vocabulary: Vocabulary{Size: 2, Mask: []kv.Token{0, 1}}},
		"a tiny block":      {Vocabulary: Vocabulary{Size: 9}, BlockSize: 1},
		"a budget too low":  {Vocabulary: Vocabulary{Size: 9}, TokenBudget: 8},
		"whole and too low": {Vocabulary: Vocabulary{Size: 9}, Chunking: 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
