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
	parts := mediaParts(req)
	for i := range choices {
		c := &choices[i]
		*c = scriptedChoice{script: s, req: req, stops: stops, key: prompt, end: s.endPosition(req, prompt, echo), parts: parts}
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

// Text is the source of answers: sentences as tokens, once for the start of an answer and once for positions
// after other text. Engines share it; it must not be changed.
type Text struct {
	First, Next [][]kv.Token
}

// BuiltinText returns the built-in text in the tokens that encode returns.
func BuiltinText(encode func(string) []kv.Token) Text {
	var t Text
	for _, s := range builtinSentences() {
		t.First = append(t.First, encode(s))
		t.Next = append(t.Next, encode(" "+s))
	}
	return t
}

// builtinSentences are about what the project is named after. Each sentence can follow any other.
func builtinSentences() []string {
	return []string{
		"Water that falls two hundred metres does not care how it was asked to fall.",
		"A penstock is the last pipe before the turbine, and everything in it is in a hurry.",
		"The reservoir is a memory of rain, kept high so that it can be spent when it is wanted.",
		"Whoever opens the gate too quickly learns that a column of water has weight.",
		"In spring the meltwater comes down brown, and the screens have to be raked twice a day.",
		"The dynamo hums at fifty turns a second and leaves the counting to others.",
		"Every valve has a wheel, and every wheel has a worn place where hands have held it.",
		"A pipe that is half full carries less than half, and makes more than twice the noise.",
		"The engineer put her ear to the steel and said that the bearing would last the winter.",
		"Power is only flow times height, and the rest of the station is there to lose little of it.",
		"At night the town needs less, and the lake is allowed to rise again.",
		"There are four turbines, and the art is to know which of them should take the next gate of water.",
		"One of them always ran warm, so the others were given the long evenings.",
		"The governor listens to the speed of the shaft and opens the blades by the width of a coin.",
		"If all the lamps go out at once, the water must still have somewhere to go.",
		"That is why there is a surge tank in the hill, tall and mostly empty, like a held breath.",
		"The old drawings show a canal where there is now a road, and a road where there is now a lake.",
		"Sand wears the runner down by the thickness of paper in a year.",
		"Nobody hears the station from the village, but everyone notices when it stops.",
		"The meter on the wall has three needles, and only two of them ever agree.",
		"When the river freezes, it freezes from the edges, and the middle goes on talking.",
		"A leak is a small river that has found its own opinion.",
		"Copper carries the current over the pass, where the wind makes the wires sing.",
		"The apprentice wrote down every reading, even on the days when nothing changed.",
		"Most days nothing changed, and that was the purpose of the work.",
		"The inspection hatch is round, so that its lid can never fall through it.",
		"Under the floor the draft tube slows the water down before it is given back.",
		"It leaves the tailrace cold and clear, a little lower and none the worse.",
		"Fish pass by a stair of forty pools, each no higher than a hand.",
		"A gauge at the bridge tells the keeper in the morning what the mountains did in the night.",
		"The first machine of the valley lit eleven lamps and one dance hall.",
		"Its brass plate is still there, polished by people who lean on it while they wait.",
		"Pressure is patient: it tries every joint, every day, and it only has to be right once.",
		"So the joints are painted white, because a drop shows on white before it shows on the floor.",
		"In August the intake draws its own weather, a cool breath over the stones.",
		"The spare bearing has lain in its grease for thirty years, which is what spares are for.",
		"You can tell a good station by its floor, and a good operator by the silence.",
		"Somewhere downhill a kettle begins to boil, and the needle moves by less than its own width.",
	}
}
