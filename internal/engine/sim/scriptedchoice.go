package sim

import (
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
)

// scriptedChoice is the position of one choice in its script.
type scriptedChoice struct {
	script    *answerScript
	req       *engine.Request
	stops     []kv.Token // the choice's stop tokens
	key       uint64     // seed of its draws
	reader    textReader
	position  int         // of the next token
	end       int         // position of the EOS token
	forbidden tokenSet    // set of stops, built when one had to be replaced
	parts     []MediaPart // of the request; its choices share them
}

// IsFinished implements [batch.State].
func (c *scriptedChoice) IsFinished() bool { return false }

// nextToken returns the next token.
func (c *scriptedChoice) nextToken() (engine.Logprob, error) {
	t := c.reader.readToken()
	switch {
	case c.position >= c.end:
		t = c.script.eos[0]
	case c.position < c.req.Stop.MinTokens && slices.Contains(c.stops, t):
		var ok bool
		if t, ok = c.replacementToken(); !ok {
			return engine.Logprob{}, fault.InvalidParam("min_tokens", "every token of this model with text is a stop token, and min_tokens is %d; lower it", c.req.Stop.MinTokens)
		}
	}
	c.position++
	return c.makeLogprob(t), nil
}

// replacementToken returns a word that does not end the choice, in place of a stop token.
func (c *scriptedChoice) replacementToken() (kv.Token, bool) {
	s := c.script
	if c.forbidden == nil {
		c.forbidden = newTokenSet(s.size, c.stops)
	}
	for i := range s.words {
		if t := s.pickWord(c.key, c.position, i); !c.forbidden.contains(t) {
			return t, true
		}
	}
	for t := range kv.Token(s.size) {
		if !c.forbidden.contains(t) && !s.noText.contains(t) {
			return t, true
		}
	}
	return 0, false
}

// pickWord returns the i-th of all words in an order given by key and position.
func (s *answerScript) pickWord(key uint64, position, i int) kv.Token {
	from := splitmix.Mix(key+uint64(position)*splitmix.Step) % uint64(len(s.words))
	return s.words[(from+uint64(i))%uint64(len(s.words))]
}

// makeLogprob gives a token the probability one half, and each alternative half the probability of the one
// before it.
func (c *scriptedChoice) makeLogprob(t kv.Token) engine.Logprob {
	n := c.req.Logprobs
	if n < 0 {
		return engine.Logprob{Token: t}
	}
	const ln2 = 0.6931472
	l := engine.Logprob{Token: t, Logprob: -ln2}
	if n == 0 {
		return l
	}
	l.Top = make([]engine.TokenLogprob, 0, n)
	l.Top = append(l.Top, engine.TokenLogprob{Token: t, Logprob: -ln2})
	s := c.script
	for i := 0; i < len(s.words) && len(l.Top) < n; i++ {
		if w := s.pickWord(c.key, c.position, i); w != t {
			l.Top = append(l.Top, engine.TokenLogprob{Token: w, Logprob: -ln2 * float32(len(l.Top)+1)})
		}
	}
	return l
}

// textReader reads the sentences of a text in a cycle.
type textReader struct {
	text      *Text
	length    int // tokens of text.Next
	index     int // of the sentence
	stride    int // from one sentence to the next, coprime to their number
	offset    int // in the sentence
	pastFirst bool
}

func (r *textReader) currentSentence() []kv.Token {
	if r.pastFirst {
		return r.text.Next[r.index]
	}
	return r.text.First[r.index]
}

// readToken returns the current token and advances.
func (r *textReader) readToken() kv.Token {
	t := r.currentSentence()[r.offset]
	r.skipTokens(1)
	return t
}

// skipTokens advances by n tokens.
func (r *textReader) skipTokens(n int) {
	r.offset += n
	for r.offset >= len(r.currentSentence()) {
		r.offset -= len(r.currentSentence())
		r.index = (r.index + r.stride) % len(r.text.Next)
		r.pastFirst = true
		if r.offset >= r.length { // whole cycles lead back to here
			r.offset %= r.length
		}
	}
}

// tokenSet is a set of tokens.
type tokenSet []uint64

// newTokenSet returns the set of the tokens in lists that are below size.
func newTokenSet(size int, lists ...[]kv.Token) tokenSet {
	b := make(tokenSet, (size+63)/64)
	for _, list := range lists {
		for _, t := range list {
			if int64(t) < int64(size) {
				b.addToken(t)
			}
		}
	}
	return b
}

func (b tokenSet) addToken(t kv.Token)      { b[t/64] |= 1 << (t % 64) }
func (b tokenSet) contains(t kv.Token) bool { return b[t/64]>>(t%64)&1 != 0 }
