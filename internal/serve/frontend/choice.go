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
type answerChoice struct {
	tokens          int  // number of its tokens
	reasoningTokens int  // number of reasoning tokens among them
	started         bool // its first chunk is sent
	done            bool
	decoder         prep.Decoder
	stopMatcher     stopMatcher
	stopText        string // the stop string that ended it
	parser          outputParser
	closing         []byte      // markup of the stop token, which the parser reads last
	markers         []byteRange // single-token markers in the text that the parser has not read

	// text is decoded and not sent yet. It begins at byte base of the choice's whole text. chars is the
	// length of the whole text in characters, including the echo.
	text  []byte
	base  int
	chars int

	logprobs        []api.Logprob // of tokens that are not sent yet
	logprobStarts   []int         // where the text of each begins, in bytes of the whole
	arena           []byte        // holds their bytes
	pendingLogprobs int           // the number of logprobs that the last pendingText returned
}

// byteRange is a part of a choice's whole text, in bytes.
type byteRange struct{ from, to int }

// textRules are the text settings of a request; the same for all its choices.
type textRules struct {
	tokenizer   prep.Tokenizer
	stopStrings stopStrings
	minTokens   int  // minimum number of tokens before a stop string ends a choice
	keepStop    bool // what stopped a choice stays in its text
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
func (c *answerChoice) pushToken(r *textRules, t kv.Token, lp *engine.Logprob) (stopped bool) {
	c.tokens++
	if r.logprobs {
		c.addLogprob(r, lp)
	}
	if c.isHidden(r, t) {
		return false
	}
	at := len(c.text)
	c.text = c.decoder.Push(c.text, t)
	if n := r.markers[t]; n > 0 {
		end := c.base + len(c.text)
		c.markers = append(c.markers, byteRange{end - n, end})
	}
	return c.matchStop(r, at)
}

// isHidden reports whether t leaves no text: a special token that the parser does not read. For a
// choice without a parser the decoder leaves out what must not appear.
func (c *answerChoice) isHidden(r *textRules, t kv.Token) bool {
	return c.parser.parser != nil && !r.keepSpecial && r.tokenizer.IsSpecial(t) && c.markupOf(r, t) == nil
}

// markupOf returns the text of the special token t if the choice's parser reads it, else nil.
func (c *answerChoice) markupOf(r *textRules, t kv.Token) []byte {
	if text, _ := r.tokenizer.AppendBytes(nil, t); c.parser.parser.IsMarkup(string(text)) {
		return text
	}
	return nil
}

// pushStop takes a stop token, which ends the choice and has no text of its own. It may still be
// markup: in some formats the end of a call also ends the turn.
func (c *answerChoice) pushStop(r *textRules, t kv.Token) {
	c.tokens++
	if c.parser.parser != nil && r.tokenizer.IsSpecial(t) {
		c.closing = c.markupOf(r, t)
	}
}

// finishTokens finishes the choice as its engine said. It reports whether the rest of the decoder completed a
// stop string.
func (c *answerChoice) finishTokens(r *textRules) (stopped bool) {
	at := len(c.text)
	c.text = c.decoder.Flush(c.text)
	if c.matchStop(r, at) {
		return true
	}
	c.text = append(c.text, c.closing...)
	return false
}

// matchStop looks for stop strings in the new text from at on.
func (c *answerChoice) matchStop(r *textRules, at int) (stopped bool) {
	fresh := c.text[at:]
	if c.tokens >= r.minTokens {
		if end, length := c.stopMatcher.feed(fresh); length > 0 {
			cut := at + end
			c.chars += utf8.RuneCount(fresh[:end])
			c.stopText = string(c.text[cut-length : cut])
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

func (c *answerChoice) addLogprob(r *textRules, lp *engine.Logprob) {
	out := api.Logprob{Logprob: lp.Logprob, Offset: c.chars}
	out.Token = c.tokenBytes(r, lp.Token)
	if len(lp.Top) > 0 {
		out.Top = make([]api.TokenLogprob, len(lp.Top))
		for i, t := range lp.Top {
			out.Top[i] = api.TokenLogprob{Token: c.tokenBytes(r, t.Token), Logprob: t.Logprob}
		}
	}
	c.logprobs = append(c.logprobs, out)
	c.logprobStarts = append(c.logprobStarts, c.base+len(c.text))
}

// tokenBytes returns the bytes of a token, in the choice's arena.
func (c *answerChoice) tokenBytes(r *textRules, t kv.Token) []byte {
	at := len(c.arena)
	c.arena, _ = r.tokenizer.AppendBytes(c.arena, t)
	return c.arena[at:len(c.arena):len(c.arena)]
}

// dropLogprobs drops the tokens whose text begins at byte end or later: a stop string removed it.
func (c *answerChoice) dropLogprobs(end int) {
	n := len(c.logprobStarts)
	for n > 0 && c.logprobStarts[n-1] >= end {
		n--
	}
	c.logprobs, c.logprobStarts = c.logprobs[:n], c.logprobStarts[:n]
}

// parseText moves the readable text through the choice's parser, if it has one, and closes the parser
// when the choice is done. It removes what must not be in the answer: further calls after the only
// allowed one, and the tokens of hidden reasoning.
func (c *answerChoice) parseText(r *textRules) {
	if c.parser.parser == nil {
		return
	}
	n := c.freeLength()
	c.feedParser(c.text[:n])
	c.dropText(n)
	if c.done {
		c.parser.close()
	}
	if r.oneCall && c.parser.hasCall() {
		c.parser.keepFirstCall()
	}
	if r.hideReasoning && c.parser.inReasoning {
		c.hideLogprobs()
	}
}

// feedParser passes text, the choice's next, to the parser, and marks the parts which are marker
// tokens.
func (c *answerChoice) feedParser(text []byte) {
	at := 0
	for len(c.markers) > 0 && c.markers[0].from < c.base+len(text) {
		m := &c.markers[0]
		from, to := max(m.from-c.base, at), min(m.to-c.base, len(text))
		c.parser.push(text[at:from])
		c.parser.pushMarker(text[from:to])
		if at = to; c.base+to < m.to { // the rest of it is held back
			break
		}
		c.markers = c.markers[:copy(c.markers, c.markers[1:])]
	}
	c.parser.push(text[at:])
}

// hideLogprobs drops the tokens that the parser has read.
func (c *answerChoice) hideLogprobs() {
	n := 0
	for n < len(c.logprobStarts) && c.logprobStarts[n] < c.base {
		n++
	}
	c.logprobs, c.logprobStarts = slices.Delete(c.logprobs, 0, n), slices.Delete(c.logprobStarts, 0, n)
}

// freeLength is how much of the text can be sent now: all but what may become a stop string.
func (c *answerChoice) freeLength() int {
	if c.done {
		return len(c.text)
	}
	return len(c.text) - c.stopMatcher.heldBytes()
}

// dropText drops the first n bytes of the text.
func (c *answerChoice) dropText(n int) {
	c.base += n
	c.text = c.text[:copy(c.text, c.text[n:])]
}

// pendingText returns the text that can be sent now, all of it once the choice is done, and the
// log-probabilities of its tokens. Both are valid until the next pushToken; markSent consumes them.
func (c *answerChoice) pendingText() (text []byte, logprobs []api.Logprob) {
	n, m := c.freeLength(), len(c.logprobs)
	if !c.done {
		for m > 0 && c.logprobStarts[m-1] >= c.base+n {
			m--
		}
	}
	c.pendingLogprobs = m
	return c.text[:n], c.logprobs[:m:m]
}

// markSent drops what the last pendingText returned, whose text had n bytes.
func (c *answerChoice) markSent(n int) {
	c.dropText(n)
	c.parser.dropSent()
	if c.pendingLogprobs == 0 {
		return
	}
	c.logprobs = c.logprobs[:copy(c.logprobs, c.logprobs[c.pendingLogprobs:])]
	c.logprobStarts = c.logprobStarts[:copy(c.logprobStarts, c.logprobStarts[c.pendingLogprobs:])]
	if c.pendingLogprobs = 0; len(c.logprobs) == 0 {
		c.arena = c.arena[:0]
	}
}
