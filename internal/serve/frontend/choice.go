package frontend

import (
	"slices"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// answerChoice turns the tokens of one choice into text to send. It outlives attempts: the text does
// not depend on which worker sent a token.
type choice struct {
	tokens  []kv.Token // all that were delivered, for an attempt that resumes
	thought int        // number of reasoning tokens among them
	begun   bool       // its first chunk is sent
	done    bool
	ended   bool // by the engine, not by a stop string
	decoder prep.Decoder
	stop    matcher
	stopped string // the stop string that ended it
	speech  speech
	closing []byte // markup of the stop token, which the parser reads last
	marks   []span // single-token markers in the text that the parser has not read

	// text is decoded and not sent yet. It begins at byte base of the choice's whole text. chars is the
	// length of the whole text in characters, including the echo.
	text  []byte
	base  int
	chars int

	logprobs []api.Logprob // of tokens that are not sent yet
	starts   []int         // where the text of each begins, in bytes of the whole
	arena    []byte        // holds their bytes
	spent    int           // the number of logprobs that the last pendingText returned
}

// byteRange is a part of a choice's whole text, in bytes.
type span struct{ from, to int }

// textRules are the text settings of a request; the same for all its choices.
type textRules struct {
	tokenizer prep.Tokenizer
	needles   needles
	minTokens int  // minimum number of tokens before a stop string ends a choice
	keepStop  bool // what stopped a choice stays in its text
	// keepSpecial keeps the text of special tokens that are not markup.
	keepSpecial bool
	logprobs    bool
	// oneCall ends a choice after its first call. hideReasoning leaves reasoning out of the answer.
	oneCall, hideReasoning bool
	// markers maps the tokens that are markers of calls to the length of their text.
	markers map[kv.Token]int
}

// pushToken takes the next token. It reports whether a stop string is complete: the text then ends as
// that string requires, and the token is the choice's last.
func (c *choice) push(r *textRules, t kv.Token, lp *engine.Logprob) (stopped bool) {
	c.tokens = append(c.tokens, t)
	if r.logprobs {
		c.addLogprob(r, lp)
	}
	if c.unseen(r, t) {
		return false
	}
	at := len(c.text)
	c.text = c.decoder.Push(c.text, t)
	if n := r.markers[t]; n > 0 {
		end := c.base + len(c.text)
		c.marks = append(c.marks, span{end - n, end})
	}
	return c.grown(r, at)
}

// isHidden reports whether t leaves no text: a special token that the parser does not read. For a
// choice without a parser the decoder leaves out what must not appear.
func (c *choice) unseen(r *textRules, t kv.Token) bool {
	return c.speech.parser != nil && !r.keepSpecial && r.tokenizer.Special(t) && c.markup(r, t) == nil
}

// markupOf returns the text of the special token t if the choice's parser reads it, else nil.
func (c *choice) markup(r *textRules, t kv.Token) []byte {
	if text, _ := r.tokenizer.AppendBytes(nil, t); c.speech.parser.Markup(string(text)) {
		return text
	}
	return nil
}

// pushStop takes a stop token, which ends the choice and has no text of its own. It may still be
// markup: in some formats the end of a call also ends the turn.
func (c *choice) pushStop(r *textRules, t kv.Token) {
	c.tokens = append(c.tokens, t)
	if c.speech.parser != nil && r.tokenizer.Special(t) {
		c.closing = c.markup(r, t)
	}
}

// finishTokens finishes the choice as its engine said. It reports whether the rest of the decoder completed a
// stop string.
func (c *choice) end(r *textRules) (stopped bool) {
	at := len(c.text)
	c.text = c.decoder.Flush(c.text)
	if c.grown(r, at) {
		return true
	}
	c.text = append(c.text, c.closing...)
	return false
}

// matchStop looks for stop strings in the new text from at on.
func (c *choice) grown(r *textRules, at int) (stopped bool) {
	fresh := c.text[at:]
	if len(c.tokens) >= r.minTokens {
		if end, length := c.stop.feed(fresh); length > 0 {
			cut := at + end
			c.chars += utf8.RuneCount(fresh[:end])
			c.stopped = string(c.text[cut-length : cut])
			if !r.keepStop {
				c.chars -= utf8.RuneCount(c.text[cut-length : cut])
				cut -= length
			}
			c.text = c.text[:cut]
			c.dropLogprobs(c.base + cut)
			return true
		}
	}
	c.chars += utf8.RuneCount(fresh)
	return false
}

func (c *choice) addLogprob(r *textRules, lp *engine.Logprob) {
	out := api.Logprob{Logprob: lp.Logprob, Offset: c.chars}
	out.Token = c.bytes(r, lp.Token)
	if len(lp.Top) > 0 {
		out.Top = make([]api.TokenLogprob, len(lp.Top))
		for i, t := range lp.Top {
			out.Top[i] = api.TokenLogprob{Token: c.bytes(r, t.Token), Logprob: t.Logprob}
		}
	}
	c.logprobs = append(c.logprobs, out)
	c.starts = append(c.starts, c.base+len(c.text))
}

// tokenBytes returns the bytes of a token, in the choice's arena.
func (c *choice) bytes(r *textRules, t kv.Token) []byte {
	at := len(c.arena)
	c.arena, _ = r.tokenizer.AppendBytes(c.arena, t)
	return c.arena[at:len(c.arena):len(c.arena)]
}

// dropLogprobs drops the tokens whose text begins at byte end or later: a stop string removed it.
func (c *choice) dropLogprobs(end int) {
	n := len(c.starts)
	for n > 0 && c.starts[n-1] >= end {
		n--
	}
	c.logprobs, c.starts = c.logprobs[:n], c.starts[:n]
}

// parseText moves the readable text through the choice's parser, if it has one, and closes the parser
// when the choice is done. It removes what must not be in the answer: further calls after the only
// allowed one, and the tokens of hidden reasoning.
func (c *choice) read(r *textRules) {
	if c.speech.parser == nil {
		return
	}
	n := c.free()
	c.speak(c.text[:n])
	c.drop(n)
	if c.done {
		c.speech.close()
	}
	if r.oneCall && c.speech.called() {
		c.speech.keepFirstCall()
	}
	if r.hideReasoning && c.speech.thinking {
		c.hideLogprobs()
	}
}

// feedParser passes text, the choice's next, to the parser, and marks the parts which are marker
// tokens.
func (c *choice) speak(text []byte) {
	at := 0
	for len(c.marks) > 0 && c.marks[0].from < c.base+len(text) {
		m := &c.marks[0]
		from, to := max(m.from-c.base, at), min(m.to-c.base, len(text))
		c.speech.push(text[at:from])
		c.speech.pushToken(text[from:to])
		if at = to; c.base+to < m.to { // the rest of it is held back
			break
		}
		c.marks = c.marks[:copy(c.marks, c.marks[1:])]
	}
	c.speech.push(text[at:])
}

// hideLogprobs drops the tokens that the parser has read.
func (c *choice) hideLogprobs() {
	n := 0
	for n < len(c.starts) && c.starts[n] < c.base {
		n++
	}
	c.logprobs, c.starts = slices.Delete(c.logprobs, 0, n), slices.Delete(c.starts, 0, n)
}

// freeLength is how much of the text can be sent now: all but what may become a stop string.
func (c *choice) free() int {
	if c.done {
		return len(c.text)
	}
	return len(c.text) - c.stop.held()
}

// dropText drops the first n bytes of the text.
func (c *choice) drop(n int) {
	c.base += n
	c.text = c.text[:copy(c.text, c.text[n:])]
}

// pendingText returns the text that can be sent now, all of it once the choice is done, and the
// log-probabilities of its tokens. Both are valid until the next pushToken; markSent consumes them.
func (c *choice) take() (text []byte, logprobs []api.Logprob) {
	n, m := c.free(), len(c.logprobs)
	if !c.done {
		for m > 0 && c.starts[m-1] >= c.base+n {
			m--
		}
	}
	c.spent = m
	return c.text[:n], c.logprobs[:m:m]
}

// markSent drops what the last pendingText returned, whose text had n bytes.
func (c *choice) sent(n int) {
	c.drop(n)
	c.speech.sent()
	if c.spent == 0 {
		return
	}
	c.logprobs = c.logprobs[:copy(c.logprobs, c.logprobs[c.spent:])]
	c.starts = c.starts[:copy(c.starts, c.starts[c.spent:])]
	if c.spent = 0; len(c.logprobs) == 0 {
		c.arena = c.arena[:0]
	}
}
