package frontend

import (
	"math/rand/v2"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/parse"
	"penstock/internal/edge/prep"
)

// outputParser splits the text of one choice into content, reasoning and calls. Its zero value passes
// text through.
type outputParser struct {
	parser *parse.Parser // nil if the text is plain
	events []parse.Event
	parts  []outputPart // not sent yet
	text   []byte       // of pieces

	inReasoning bool
	calls       int  // calls
	callOpen    bool // the last of them has not ended
	closed      bool // further text is ignored
}

// outputPart is one step of the answer; its text is a part of outputParser.text.
type outputPart struct {
	kind     api.ChunkKind
	call     int
	id, name string
	from, to int
}

// push reads text, which is the choice's next.
func (s *outputParser) push(text []byte) {
	if s.closed {
		return
	}
	s.events = s.parser.Push(s.events[:0], text)
	s.collectEvents()
}

// pushMarker is push for the text of a token which is a marker.
func (s *outputParser) pushMarker(text []byte) {
	if s.closed {
		return
	}
	s.events = s.parser.PushToken(s.events[:0], text)
	s.collectEvents()
}

// close reads the end of the text.
func (s *outputParser) close() {
	if s.closed {
		return
	}
	s.events = s.parser.Close(s.events[:0])
	s.collectEvents()
}

// chunkKinds maps the kinds of parser events to the kinds of chunks.
var chunkKinds = [...]api.ChunkKind{
	parse.Content:   api.Text,
	parse.Reasoning: api.Reasoning,
	parse.CallBegin: api.CallBegin,
	parse.Arguments: api.Arguments,
	parse.CallEnd:   api.CallEnd,
}

// collectEvents copies the events, whose text belongs to the parser, until they are sent.
func (s *outputParser) collectEvents() {
	for i := range s.events {
		e := &s.events[i]
		switch e.Kind {
		case parse.CallBegin:
			s.calls, s.callOpen = s.calls+1, true
		case parse.CallEnd:
			s.callOpen = false
		}
		from := len(s.text)
		s.text = append(s.text, e.Text...)
		p := outputPart{kind: chunkKinds[e.Kind], call: e.Index, id: e.ID, name: e.Name, from: from, to: len(s.text)}
		if n := len(s.parts); n > 0 && len(e.Text) > 0 && s.parts[n-1].kind == p.kind {
			s.parts[n-1].to = p.to
			continue
		}
		s.parts = append(s.parts, p)
	}
	s.inReasoning = s.parser.InReasoning()
}

// hasCall reports whether the first call is complete.
func (s *outputParser) hasCall() bool { return s.calls > 1 || s.calls == 1 && !s.callOpen }

// keepFirstCall drops everything after the first call, past and future.
func (s *outputParser) keepFirstCall() {
	for i := range s.parts {
		if s.parts[i].kind == api.CallEnd {
			s.parts = s.parts[:i+1]
			break
		}
	}
	s.calls, s.callOpen, s.closed = 1, false, true
}

// finishReason is why the choice ended, given why its text did.
func (s *outputParser) finishReason(r api.FinishReason) api.FinishReason {
	if r == api.ReasonStop && s.calls > 0 && !s.callOpen {
		return api.ReasonCalls
	}
	return r
}

// appendChunks appends the new output of the choice of index n. Log-probabilities go with the first
// part that can have some.
func (s *outputParser) appendChunks(dst []api.Chunk, n int, logprobs []api.Logprob, r *textRules) []api.Chunk {
	for i := range s.parts {
		p := &s.parts[i]
		if p.kind == api.Reasoning && r.hideReasoning {
			continue
		}
		c := api.Chunk{Kind: p.kind, Choice: n, Call: p.call, CallID: p.id, Name: p.name, Text: s.text[p.from:p.to]}
		if p.kind == api.Text || p.kind == api.Reasoning {
			c.Logprobs, logprobs = logprobs, nil
		}
		dst = append(dst, c)
	}
	if len(logprobs) > 0 {
		dst = append(dst, api.Chunk{Kind: api.Text, Choice: n, Logprobs: logprobs})
	}
	return dst
}

// dropSent drops the parts after they are sent.
func (s *outputParser) dropSent() { s.parts, s.text = s.parts[:0], s.text[:0] }

// outputGrammar returns the grammar which splits the answers to the request; nil if they are plain
// text.
func (p *typedRequest) outputGrammar() (*parse.Grammar, error) {
	q, cfg := p.req, parse.Config{Reasoning: p.model.format.reasoning}
	if q.FillContent {
		if cfg.Fallback = parse.MoveReasoning; q.Stream {
			cfg.Fallback = parse.RepeatReasoning
		}
	}
	switch {
	case !q.Endpoint.IsConversation():
		return nil, nil
	case q.ToolChoice.RequiresCall(): // the guide makes it JSON
		cfg = parse.Config{Tools: "json", Functions: parserFunctions(q.Tools)}
	case q.Format.Kind != api.FormatText: // all of the text is the JSON
		return nil, nil
	case q.ToolChoice.Mode == api.ToolAuto && len(q.Tools) > 0:
		if cfg.Tools = p.model.format.tools; cfg.Tools == "" {
			return nil, fault.InvalidParam("tools", "how the model '%s' writes calls is not known: name the format where its worker is started (--tool-call-parser), or leave 'tools' out", p.model.Card.Name)
		}
		cfg.Functions = parserFunctions(q.Tools)
		cfg.HasToken = p.model.pipeline.HasToken
	}
	if cfg.Tools == "" && cfg.Reasoning == "" {
		return nil, nil
	}
	g, err := parse.CompileGrammar(cfg)
	if err != nil { // names that exclude each other; the catalog also logs it
		return nil, fault.InvalidParam("tools", "the model '%s' cannot be given tools: %v", p.model.Card.Name, err)
	}
	return g, nil
}

func parserFunctions(tools []api.Tool) []parse.Function {
	fs := make([]parse.Function, len(tools))
	for i, t := range tools {
		fs[i] = parse.Function{Name: t.Name, Parameters: t.Parameters}
	}
	return fs
}

// tailTokens is the number of tokens at the end of a prompt that show whether its answer begins inside
// reasoning: an assistant's opening and a marker.
const tailTokens = 24

// answerStart says where an answer to a prompt begins: inside reasoning, with content, or within the
// message that it continues. Calls that a guide demands are the whole answer, whatever it continues.
func (p *typedRequest) answerStart(prompt []kv.Token) parse.StartState {
	if q := p.req; q.ContinueFinal && q.Ext.Tokens == nil && !q.ToolChoice.RequiresCall() {
		if text := q.Messages[len(q.Messages)-1].Content; text != "" {
			return parse.ContinuedStart(p.model.format.reasoning, text)
		}
	}
	d := p.model.pipeline.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
	var text []byte
	for _, t := range prompt[max(0, len(prompt)-tailTokens):] {
		text = d.Push(text, t)
	}
	return parse.StartAfter(p.model.format.reasoning, string(d.Flush(text)))
}

// markerTokens returns the tokens that are the grammar's markers, and the length of their text.
func markerTokens(t prep.Tokenizer, g *parse.Grammar) map[kv.Token]int {
	markers := map[kv.Token]int{}
	for _, m := range g.TokenMarkers() {
		if id, ok := t.ID(m); ok {
			markers[id] = len(m)
		}
	}
	return markers
}

// attachParsers gives each choice of a generation its parser.
func (p *typedRequest) attachParsers(g *generationTask) {
	grammar := p.grammar
	if grammar == nil {
		return
	}
	g.rules.oneCall, g.rules.hideReasoning = p.req.OneCall, p.req.HideReasoning
	g.rules.markers = markerTokens(g.rules.tokenizer, grammar)
	start := p.answerStart(g.Request.Prompt)
	// Clients that give several requests one id must not get one id for two calls.
	seed := strconv.FormatUint(rand.Uint64(), 36)
	for i := range g.choices {
		c := &g.choices[i]
		c.parser.parser = grammar.NewParser(start, seed+"/"+strconv.Itoa(i))
		c.parser.inReasoning = c.parser.parser.InReasoning()
		// Vocabularies which have special tokens for markup use them.
		c.decoder = g.rules.tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
	}
}
