package sim

import (
	"fmt"
	"math"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
)

// answerScript computes the answers to requests: the token at each position of each choice. It is immutable
// and shared by choices.
type answerScript struct {
	kind       Script
	text       Text
	length     int      // tokens of Next
	meanOutput int      // mean length of an answer; 0 is unlimited
	context    int      // context length
	noText     tokenSet // tokens without text, and stop tokens
	size       int      // vocabulary size
	eos        []kv.Token
	// words are distinct tokens with text: at least one, and as many as the largest number of alternatives if
	// the vocabulary has them.
	words []kv.Token
}

// newScript returns the script of a valid configuration, for a context length.
func newScript(cfg *Config, context int) (*answerScript, error) {
	v := &cfg.Vocabulary
	s := &answerScript{
		kind: cfg.Script, text: cfg.Text, meanOutput: cfg.Output, context: context,
		noText: newTokenSet(v.Size, v.Mask, v.EOS), size: v.Size, eos: v.EOS,
	}
	s.words = s.distinctWords()
	if len(s.words) == 0 {
		return nil, fmt.Errorf("sim config: no token of the vocabulary of %d has text; leave some out of its mask", v.Size)
	}
	if len(s.text.Next) == 0 {
		s.text = wordListText(s.words)
	}
	for _, sentence := range s.text.Next {
		s.length += len(sentence)
	}
	return s, nil
}

// distinctWords returns the distinct tokens with text, first from the text and then from the vocabulary, up
// to a limit.
func (s *answerScript) distinctWords() []kv.Token {
	seen := newTokenSet(s.size)
	var words []kv.Token
	add := func(t kv.Token) {
		if !s.noText.contains(t) && !seen.contains(t) {
			seen.addToken(t)
			words = append(words, t)
		}
	}
	for _, sentence := range s.text.Next {
		for _, t := range sentence {
			add(t)
		}
	}
	const enough = 16 * (batch.MaxLogprobs + 1)
	for t := 0; t < s.size && len(words) < enough; t++ {
		add(kv.Token(t))
	}
	return words
}

// wordListText returns a text without sentences of its own: all words in order, eight to a sentence.
func wordListText(words []kv.Token) Text {
	sentences := slices.Collect(slices.Chunk(words, 8))
	return Text{First: sentences, Next: sentences}
}

// numericsID identifies what the tokens depend on other than the request: the version of this package's
// draws, and the whole script.
func (s *answerScript) numericsID() string {
	h := splitmix.Mix(splitmix.Step + uint64(s.kind))
	add := func(n int) { h = splitmix.Mix(h + splitmix.Step + uint64(n)) }
	add(s.meanOutput)
	add(s.context)
	add(s.size)
	for _, list := range [][][]kv.Token{s.text.First, s.text.Next, {s.words, s.eos}} {
		for _, tokens := range list {
			add(len(tokens))
			for _, t := range tokens {
				add(int(t))
			}
		}
	}
	for _, word := range s.noText {
		h = splitmix.Mix(h + splitmix.Step + word)
	}
	return fmt.Sprintf("sim1-%016x", h)
}

// newStates returns the state of each choice of a request.
func (s *answerScript) newStates(req *engine.Request, stops []kv.Token) []batch.State {
	states, choices := make([]batch.State, req.Choices), make([]scriptedChoice, req.Choices)
	prompt := promptDigest(req.Prompt)
	echo := s.echoText(req.Prompt)
	for i := range choices {
		c := &choices[i]
		*c = scriptedChoice{script: s, req: req, stops: stops, key: prompt, end: s.endPosition(req, prompt, echo)}
		if req.Sampling.Temperature > 0 { // else all choices are the same
			c.key = splitmix.Mix(prompt + splitmix.Mix(req.Sampling.Seed+splitmix.Step) + uint64(i)*splitmix.Step)
			c.end = s.endPosition(req, c.key, echo)
		}
		if echo != nil {
			c.reader = textReader{text: echo, length: len(echo.Next[0]), stride: 1}
		} else {
			c.reader = s.openPassage(c.key)
		}
		if req.Generated != nil {
			c.position = len(req.Generated[i])
			c.reader.skipTokens(c.position)
		}
		states[i] = c
	}
	return states
}

// echoText returns the echo of a prompt as a text of one sentence; nil if the script is another or the prompt
// has no text.
func (s *answerScript) echoText(prompt []kv.Token) *Text {
	if s.kind != ScriptEcho {
		return nil
	}
	words := slices.DeleteFunc(slices.Clone(prompt), s.noText.contains)
	if len(words) == 0 {
		return nil
	}
	sentence := [][]kv.Token{words}
	return &Text{First: sentence, Next: sentence}
}

// openPassage returns the passage of a key from its start: a stride that reaches every sentence.
func (s *answerScript) openPassage(key uint64) textReader {
	n := len(s.text.Next)
	stride := 1 + int(splitmix.Mix(key+splitmix.Step)%uint64(n))
	for gcd(stride, n) != 1 {
		stride++
	}
	return textReader{text: &s.text, length: s.length, index: int(key % uint64(n)), stride: stride}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// never is the position of an event that does not occur.
const never = math.MaxInt

// endPosition returns the position of a choice's EOS: the end of the echo, else a length drawn by key if the
// client set no limit. (Every request has a limit; without one of the client's it is the rest of the
// context.)
func (s *answerScript) endPosition(req *engine.Request, key uint64, echo *Text) int {
	at := never
	switch {
	case req.Stop.IgnoreEOS || len(s.eos) == 0:
		return never
	case echo != nil:
		at = len(echo.Next[0])
	case s.kind == ScriptEcho:
		at = 0
	case s.meanOutput > 0 && req.Stop.MaxTokens >= s.context-len(req.Prompt):
		n := uint64(s.meanOutput)
		a, b := splitmix.Mix(key^splitmix.Step)%n, splitmix.Mix(^key^splitmix.Step)%n
		at = int(a + b) // of mean n-1, and EOS follows there
	}
	return max(at, req.Stop.MinTokens)
}

// promptDigest hashes a prompt's length and last tokens, in which prompts with a common prefix differ.
func promptDigest(prompt []kv.Token) uint64 {
	const last = 256
	h := splitmix.Mix(splitmix.Step + uint64(len(prompt)))
	for _, t := range prompt[max(0, len(prompt)-last):] {
		h = splitmix.Mix(h + splitmix.Step + uint64(t))
	}
	return h
}
