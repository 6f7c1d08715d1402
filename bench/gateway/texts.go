package main

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"penstock/internal/edge/prep"
	"penstock/internal/replay"
)

// textLibrary makes texts from lines of English, by a seed. Its texts are already JSON-escaped, so that
// sending a body of hundreds of kilobytes costs next to nothing.
type textLibrary struct {
	lines [][]byte // with line end, as in a JSON string
	rng   *rand.Rand
	// bytesPerToken is the JSON bytes of a token, so that texts have about the requested number of tokens.
	bytesPerToken float64
}

func newTextLibrary(text string, pipe *prep.Pipeline, seed uint64) (*textLibrary, error) {
	l := &textLibrary{rng: rand.New(rand.NewPCG(seed, 0))}
	tokens, bytes := 0, 0
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) <= 30 {
			continue
		}
		line += "\n"
		quoted, err := json.Marshal(line)
		if err != nil {
			return nil, err
		}
		quoted = quoted[1 : len(quoted)-1]
		if len(l.lines) < 4000 {
			tokens += len(pipe.EncodeText(nil, line))
			bytes += len(quoted)
		}
		l.lines = append(l.lines, quoted)
	}
	if len(l.lines) < 4000 {
		return nil, errors.New("the text has fewer than 4,000 lines of 30 characters: take a larger one")
	}
	l.bytesPerToken = float64(bytes) / float64(tokens)
	return l, nil
}

// appendText appends a text of about this many tokens, never the same twice.
func (l *textLibrary) appendText(dst []byte, tokens int) []byte {
	for end := len(dst) + int(float64(tokens)*l.bytesPerToken); len(dst) < end; {
		dst = append(dst, l.lines[l.rng.IntN(len(l.lines))]...)
	}
	return dst
}

// appendMessage appends a message with such a text to a conversation.
func (l *textLibrary) appendMessage(talk []byte, role string, tokens int) []byte {
	if len(talk) > 0 {
		talk = append(talk, ',')
	}
	talk = append(talk, `{"role":"`+role+`","content":"`...)
	return append(l.appendText(talk, tokens), `"}`...)
}

// newRequestBody returns a request for a streamed response to a conversation.
func newRequestBody(talk []byte, output int) json.RawMessage {
	b := make([]byte, 0, len(talk)+192)
	b = append(b, `{"model":"bench","stream":true,"stream_options":{"include_usage":true},"temperature":0,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(output), 10)
	b = append(b, `,"messages":[`...)
	return append(append(b, talk...), "]}"...)
}

// distinctChats is a workload of single-message conversations which share nothing. With ready set it cycles
// through those, otherwise it makes each on demand.
type distinctChats struct {
	library       *textLibrary
	ready         []json.RawMessage
	input, output int
	talk          []byte
	next          int
}

// prebuild builds n of the requests in advance.
func (a *distinctChats) prebuild(n int) *distinctChats {
	for range n {
		a.ready = append(a.ready, newRequestBody(a.library.appendMessage(nil, "user", a.input), a.output))
	}
	return a
}

func (a *distinctChats) Next(r *replay.Request) error {
	var b json.RawMessage
	if len(a.ready) > 0 {
		b = a.ready[a.next%len(a.ready)]
	} else {
		a.talk = a.library.appendMessage(a.talk[:0], "user", a.input)
		b = newRequestBody(a.talk, a.output)
	}
	*r = replay.Request{Index: a.next, Input: a.input, Output: a.output, Payload: b}
	a.next++
	return nil
}

func (a *distinctChats) Close() error { return nil }

// growingChats is a workload of several conversations, which grow by a response and a question with each
// request, in turn. Their first requests, one per conversation, are about input tokens long.
type growingChats struct {
	library *textLibrary
	talks   [][]byte
	input   int
	output  int
	next    int
	limit   int // requests; 0 is no end
}

const turnTokens = 100 // tokens of a response, and of a question

func newGrowingChats(l *textLibrary, conversations, input, output int) *growingChats {
	return &growingChats{library: l, talks: make([][]byte, conversations), input: input, output: output}
}

func (g *growingChats) Next(r *replay.Request) error {
	if g.limit > 0 && g.next == g.limit {
		return io.EOF
	}
	t := &g.talks[g.next%len(g.talks)]
	if len(*t) == 0 {
		*t = g.library.appendMessage(nil, "user", g.input)
	} else {
		*t = g.library.appendMessage(g.library.appendMessage(*t, "assistant", turnTokens), "user", turnTokens)
	}
	*r = replay.Request{Index: g.next, Input: g.input, Output: g.output, Payload: newRequestBody(*t, g.output)}
	g.next++
	return nil
}

func (g *growingChats) Close() error { return nil }
