package frontend

import (
	"slices"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// choice turns the tokens of one choice into text that can go out. It outlives
// attempts: the text does not care which worker a token came from.
type choice struct {
	tokens  []kv.Token // all that were delivered, for an attempt that resumes
	thought int        // how many of them the model thought with
	begun   bool       // its first chunk is out
	done    bool
	ended   bool // by the engine, not by a stop string
	decoder prep.Decoder
	stop    matcher
	stopped string // the stop string that ended it
	speech  speech
	closing []byte // markup that the stop token is, which the parser reads last

	// text is decoded and not out yet. It begins at byte base of the choice's
	// whole text; chars is the length of that whole text in characters, echo
	// included.
	text  []byte
	base  int
	chars int

	logprobs []api.Logprob // of tokens that are not out yet
	starts   []int         // where the text of each begins, in bytes of the whole
	arena    []byte        // holds their bytes
	spent    int           // how many of logprobs the last take returned
}

// textRules are what a request says about text; the same for all its choices.
type textRules struct {
	tokenizer prep.Tokenizer
	needles   needles
	minTokens int  // no stop string ends a choice before so many tokens
	keepStop  bool // what stopped a choice stays in its text
	// keepSpecial keeps the text of special tokens that are no markup.
	keepSpecial bool
	logprobs    bool
	// oneCall ends a choice behind its first call; hideReasoning keeps what it
	// thought out of the answer.
	oneCall, hideReasoning bool
}

// push takes the next token. It reports whether a stop string is complete: the
// text then ends where that string says, and the token is the choice's last.
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
	return c.grown(r, at)
}

// unseen reports whether t leaves no text: a special token that the parser does not
// read. The decoder of a choice without a parser knows what to leave out.
func (c *choice) unseen(r *textRules, t kv.Token) bool {
	return c.speech.parser != nil && !r.keepSpecial && r.tokenizer.Special(t) && c.markup(r, t) == nil
}

// markup returns the text of the special token t if the choice's parser reads it,
// else nil.
func (c *choice) markup(r *textRules, t kv.Token) []byte {
	if text, _ := r.tokenizer.AppendBytes(nil, t); c.speech.parser.Markup(string(text)) {
		return text
	}
	return nil
}

// pushStop takes a stop token, which ends the choice and has no text of its own.
// But it may be markup: that which ends a call ends the turn in some formats.
func (c *choice) pushStop(r *textRules, t kv.Token) {
	c.tokens = append(c.tokens, t)
	if c.speech.parser != nil && r.tokenizer.Special(t) {
		c.closing = c.markup(r, t)
	}
}

// end takes the engine's word that the choice is finished. It reports whether
// what was still in the decoder completed a stop string.
func (c *choice) end(r *textRules) (stopped bool) {
	at := len(c.text)
	c.text = c.decoder.Flush(c.text)
	if c.grown(r, at) {
		return true
	}
	c.text = append(c.text, c.closing...)
	return false
}

// grown looks for stop strings in the text from at on, which is new.
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

// bytes returns what a token stands for, in the choice's arena.
func (c *choice) bytes(r *textRules, t kv.Token) []byte {
	at := len(c.arena)
	c.arena, _ = r.tokenizer.AppendBytes(c.arena, t)
	return c.arena[at:len(c.arena):len(c.arena)]
}

// dropLogprobs forgets the tokens whose text begins at byte end or later: a stop
// string took it away.
func (c *choice) dropLogprobs(end int) {
	n := len(c.starts)
	for n > 0 && c.starts[n-1] >= end {
		n--
	}
	c.logprobs, c.starts = c.logprobs[:n], c.starts[:n]
}

// read moves what can be read of the text through the choice's parser, if it has
// one, and ends the parser's text when the choice is done. What must not be in the
// answer ends there: calls behind the only one, and the tokens of hidden thoughts.
func (c *choice) read(r *textRules) {
	if c.speech.parser == nil {
		return
	}
	n := c.free()
	c.speech.push(c.text[:n])
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

// hideLogprobs forgets the tokens that the parser has read.
func (c *choice) hideLogprobs() {
	n := 0
	for n < len(c.starts) && c.starts[n] < c.base {
		n++
	}
	c.logprobs, c.starts = slices.Delete(c.logprobs, 0, n), slices.Delete(c.starts, 0, n)
}

// free is how much of the text can go out now: all but what may become a stop
// string.
func (c *choice) free() int {
	if c.done {
		return len(c.text)
	}
	return len(c.text) - c.stop.held()
}

// drop forgets the first n bytes of the text.
func (c *choice) drop(n int) {
	c.base += n
	c.text = c.text[:copy(c.text, c.text[n:])]
}

// take returns the text that can go out now, all of it once the choice is done,
// and the log-probabilities of the tokens that it came from. Both are valid until
// the next push, and taken for good by sent.
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

// sent drops what the last take returned, of which text had n bytes.
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
