// Package parse splits the output of a model into content, reasoning and tool calls.
//
// There is one parser, and it is incremental: it reads pieces of text of any size and emits events. A whole
// answer is the fold of its events, so that a streamed answer and a whole one differ only by their
// ContentFallback. The parser reads byte by byte; its output depends on the bytes and never on the boundaries
// of the pieces. Its work is linear in the text, and maxHeld bounds the markup which it holds back.
//
// The rules for all formats:
//
//   - Reasoning comes first. Its opening marker counts only before any other output, unless it is a token
//     which users cannot type.
//   - A call ends reasoning which was not closed, if its marker arrives as one token or is not a single token
//     of the vocabulary, and its header names a known function. Any other call markup inside reasoning is
//     reasoning.
//   - A call begins when its name is complete. Until then its markup is held. If it is no call after all, or
//     the text ends, the markup is content, byte for byte.
//   - Arguments in JSON are passed on unchanged. If the text ends within them, they are incomplete: nothing
//     is repaired, and the call has no CallEnd.
//   - Arguments in another form are converted to compact JSON. XML parameters get the type in the function's
//     schema. Without a schema, a value which is JSON but not a string is that value, and any other value is
//     a string.
//   - White space next to markup is layout and is dropped. Before and after calls and reasoning which have
//     content on both sides it is kept.
//   - An end marker of reasoning without a start is dropped before any other output. Amid content it is
//     dropped if it arrives as one token or cannot be typed.
//   - The rest of a call's frame after its arguments (a fence, a surplus closing bracket) is dropped, as are
//     unknown keys of a call object.
//   - If the answer has neither content nor calls, its reasoning becomes content where Config.Fallback says so.
//   - Formats without a marker of their own (bare JSON, Python calls) are calls only at the start of the
//     content and, if functions are known, only with a known name.
package parse

import (
	"fmt"
	"slices"
	"strings"
)

// maxHeld bounds the markup which is held until it proves to be a call, in bytes; more is content. maxName
// bounds a name or an id in a header. maxSpace bounds the white space which waits for what follows it.
const (
	maxHeld  = 64 << 10
	maxName  = 256
	maxSpace = 256
)

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds. Each call has one CallBegin, then any number of Arguments, then a CallEnd unless the text ended
// before.
const (
	Content EventKind = iota
	Reasoning
	CallBegin
	Arguments
	CallEnd
)

// String returns the kind's name, for tests and logs.
func (k EventKind) String() string {
	return [...]string{"content", "reasoning", "call", "arguments", "end"}[k]
}

// Event is one step of an answer.
type Event struct {
	Kind EventKind
	// Index is the index of the call in the answer, from 0. CallBegin, Arguments and CallEnd only.
	Index int
	// Name is the function to call. CallBegin only.
	Name string
	// ID is the call's id: the model's own if its format has one, else derived from the parser's seed and
	// Index. CallBegin only.
	ID string
	// Text continues the content, the reasoning or the arguments. It is valid until the next use of the
	// parser. It ends between characters if the pushed text did.
	Text []byte

	from, to int // of Text in Parser.out
}

// StartState says where an answer starts.
type StartState uint8

// The start states. StartAfter and ContinuedStart determine them.
const (
	StyleDecides StartState = iota // inside reasoning if the style says so
	StartOpen                      // inside reasoning
	StartClosed                    // at the start of content
	StartAmid                      // within content, where only markers have a meaning
)

// ContentFallback says what happens to the reasoning of an answer which has neither content nor calls.
type ContentFallback uint8

// The fallbacks.
const (
	// NoFallback leaves the answer without content.
	NoFallback ContentFallback = iota
	// RepeatReasoning repeats the reasoning as content where the answer ends. It is for answers which are
	// streamed.
	RepeatReasoning
	// MoveReasoning makes the reasoning content. It is for answers which are read whole: no event has
	// reasoning before content or a call follows it.
	MoveReasoning
)

// Function is a tool which the client offers.
type Function struct {
	Name string
	// Parameters is the JSON schema of its arguments; may be nil.
	Parameters []byte
}

// Config describes the output format of a model, and the functions which it may call.
type Config struct {
	// Tools and Reasoning name a format and a style (see Formats and Styles); "" is none: then its markup is
	// content.
	Tools, Reasoning string
	Functions        []Function
	// HasToken reports whether the vocabulary has a marker as one token. Such a marker starts a call inside
	// reasoning only if PushToken reads it, since a model which writes it in pieces only mentions it. Under
	// the same condition an end marker of reasoning amid content is dropped. Nil means that nothing is known
	// of the vocabulary.
	HasToken func(marker string) bool
	// Fallback applies to answers which do not continue content.
	Fallback ContentFallback
}

// Grammar is common to the parsers of all choices of a request. It is immutable and safe for concurrent use.
type Grammar struct {
	types   map[string]map[string]typeMask // of parameters, by function
	schemas map[string]*paramSchema        // of arguments, by function
	known   map[string]bool                // names of functions
	tokens  map[string]bool                // whether a marker is one token

	harmony, harmonyCalls bool

	machine           func() callMachine // nil without a format
	shortIDs          bool
	start, mid, after markerSet // for content: before any output, amid, directly after a call
	rethink, think    markerSet // for reasoning: before any output, amid
	section           markerSet // think, after a section whose first call is of no known function
	thinks            bool
	forced            bool   // the default is to start inside reasoning
	label             string // of reasoning, without white space; "" if it has none
	fallback          ContentFallback
	markup            []string
}

// Parser parses one choice of an answer. It is not safe for concurrent use.
//
// Its machine is the state of the output:
//
//	contentMachine    content, or white space before it
//	reasoningMachine  reasoning
//	tool              markup of a possible call (tentative), or a call
//	harmonyMachine    everything, in the format harmony
type Parser struct {
	*Grammar
	seed string
	tool callMachine // nil without a format

	current stateMachine
	markers *markerSet // which current reacts to
	held    []byte     // a proper prefix of one of markers

	tentative       bool   // heldMarkup may prove not to be a call
	callInReasoning bool   // the tentative call is inside reasoning
	isToken         bool   // the text being read is one token
	inSection       bool   // such a section began in this reasoning
	answerOpened    bool   // the marker answer was read, which answerEnd follows
	answerEnded     bool   // space contains answerEnd
	heldMarkup      []byte // markup as written
	space           []byte // white space which may be next to markup
	contentSpace    []byte // white space of content before the current reasoning
	spaceAfter      []byte // white space after calls or reasoning, which follow content
	hasContent      bool   // content was emitted, or the answer starts within content
	afterMarkup     bool   // markup was read last
	reasoning       []byte // which may become content; nil if hasContent, calls or fallback say that it does not
	calls           int

	events []Event
	base   int // index of this Push's first event in events
	out    []byte
}

// stateMachine reads one part of a format.
type stateMachine interface {
	readByte(p *Parser, c byte)
	readMarker(p *Parser, l markerRule) // l is one of p.markers
	endText(p *Parser)                  // called at the end of the text, after the held bytes were read
}

// callMachine is the machine of a tool call format. openCalls starts it after a marker.
type callMachine interface {
	stateMachine
	openCalls(p *Parser, arg int)
	markerSets() []*markerSet // all sets which it uses after openCalls
}

// CompileGrammar returns the grammar of a model. The error for an unknown name lists the valid ones.
func CompileGrammar(cfg Config) (*Grammar, error) {
	g := &Grammar{schemas: argumentSchemas(cfg.Functions), known: map[string]bool{}, tokens: map[string]bool{}}
	g.types = parameterTypes(g.schemas)
	for _, f := range cfg.Functions {
		g.known[f.Name] = true
	}
	f, ok := findFormat(cfg.Tools)
	if !ok {
		return nil, fmt.Errorf("parse: unknown tool-call format %q; there are %s", cfg.Tools, strings.Join(Formats(), ", "))
	}
	s, ok := findStyle(cfg.Reasoning)
	if !ok {
		return nil, fmt.Errorf("parse: unknown reasoning style %q; there are %s", cfg.Reasoning, strings.Join(Styles(), ", "))
	}
	for _, b := range f.bare {
		for _, m := range s.open {
			if strings.HasPrefix(m, b) {
				return nil, fmt.Errorf("parse: reasoning style %q begins like calls in format %q; choose another of the two", cfg.Reasoning, cfg.Tools)
			}
		}
	}
	g.harmony, g.harmonyCalls = f.harmony || s.harmony, f.harmony
	g.machine, g.shortIDs = f.machine, f.shortIDs
	g.thinks, g.forced, g.label = len(s.end) > 0, s.forced, strings.TrimSpace(s.label)
	g.fallback = cfg.Fallback
	g.buildMarkerSets(&f, &s)
	g.collectMarkup(&f, &s)
	if cfg.HasToken != nil {
		for _, m := range slices.Concat(f.open, s.end) {
			g.tokens[m] = cfg.HasToken(m)
		}
	}
	return g, nil
}

// buildMarkerSets builds the marker set of each state.
func (g *Grammar) buildMarkerSets(f *toolFormat, s *reasoningStyle) {
	var tools, bare, first, anywhere, done []markerRule
	for i, m := range f.open {
		tools = append(tools, markerRule{m, actTool, i})
		if len(g.known) > 0 && isTag(m) {
			done = append(done, markerRule{m, actUnclosed, i})
		}
	}
	for i, m := range f.bare {
		bare = append(bare, markerRule{m, actTool, -1 - i})
	}
	for _, m := range f.drop {
		tools = append(tools, markerRule{m, actDrop, 0})
	}
	for _, m := range s.open {
		first = append(first, markerRule{m, actThink, 0})
	}
	if s.anywhere {
		anywhere = first
	}
	for _, m := range s.end {
		done = append(done, markerRule{m, actEndThink, 0})
	}
	g.start = newMarkerSet(slices.Concat(tools, bare, first)...)
	g.mid = newMarkerSet(slices.Concat(tools, anywhere)...)
	g.after = newMarkerSet(slices.Concat(tools, bare, anywhere)...)
	stray := actStray
	if s.anywhere {
		stray = actDrop
	}
	for _, m := range s.end { // of reasoning which never began, or which a call ended
		g.start.addMarker(markerRule{m, actEndThink, 0})
		g.mid.addMarker(markerRule{m, stray, 0})
		g.after.addMarker(markerRule{m, actDrop, 0})
	}
	if s.label != "" { // some checkpoints omit the marker before it
		g.start.addMarker(markerRule{s.label, actThink, 0})
	}
	if s.answer != "" {
		g.start.addMarker(markerRule{s.answer, actAnswer, 0})
		g.mid.addMarker(markerRule{s.answerEnd, actEndAnswer, 0})
		g.after.addMarker(markerRule{s.answerEnd, actEndAnswer, 0})
	}
	for _, c := range f.separator {
		g.after.addMarker(markerRule{string(c), actDrop, 0})
	}
	g.think, g.rethink, g.section = newMarkerSet(done...), newMarkerSet(done...), newMarkerSet(done...)
	if f.inner != "" && len(g.known) > 0 {
		g.section.addMarker(markerRule{f.inner, actUnclosed, 1})
	}
	for _, m := range s.open { // a model may repeat what its template wrote
		g.rethink.addMarker(markerRule{m, actDrop, 0})
	}
	if s.label != "" {
		g.rethink.addMarker(markerRule{s.label, actDrop, 0})
	}
}

// isTag reports whether m can be one token: it is a complete tag, not the start of one.
func isTag(m string) bool { return strings.HasSuffix(m, ">") || strings.HasSuffix(m, "]") }

// NewParser returns the parser of one choice, whose answer starts in the given state. The ids of its calls
// derive from seed: use different seeds for the choices of an answer, and the same for a resumed choice.
func (g *Grammar) NewParser(start StartState, seed string) *Parser {
	p := &Parser{Grammar: g, seed: seed}
	switch {
	case g.harmony:
		h := &harmonyMachine{calls: g.harmonyCalls}
		h.enterIdle(p)
		return p
	case g.machine != nil:
		p.tool = g.machine()
	}
	p.current, p.markers = contentMachine, &p.start
	if g.startsInReasoning(start) {
		p.current, p.markers, p.afterMarkup = reasoningMachine, &p.rethink, true
	} else if start == StartAmid {
		p.markers, p.hasContent = &p.mid, true
	}
	return p
}

// startsInReasoning reports whether an answer starts inside reasoning.
func (g *Grammar) startsInReasoning(start StartState) bool {
	return g.thinks && (start == StartOpen || start == StyleDecides && g.forced)
}

// InReasoning reports whether the next text is reasoning, as far as is known before it arrives.
func (p *Parser) InReasoning() bool {
	if h, ok := p.current.(*harmonyMachine); ok {
		return h.phase == harmonyBody && h.kind == Reasoning
	}
	return p.callInReasoning || p.current == stateMachine(reasoningMachine)
}

// Push reads text and appends the completed events to dst.
func (p *Parser) Push(dst []Event, text []byte) []Event {
	p.beginEvents(dst)
	for i := 0; i < len(text); {
		if n := p.readPlainText(text[i:]); n > 0 {
			i += n
			continue
		}
		p.feedByte(text[i])
		i++
	}
	return p.flushEvents()
}

// PushToken is Push for text which is one token of the vocabulary, or part of one.
func (p *Parser) PushToken(dst []Event, text []byte) []Event {
	p.isToken = true
	dst = p.Push(dst, text)
	p.isToken = false
	return dst
}

// Close ends the text and appends the last events to dst. The parser must not be used afterwards.
func (p *Parser) Close(dst []Event) []Event {
	p.beginEvents(dst)
	if p.markers == &p.rethink && p.label != "" && string(p.held) == p.label {
		p.held = p.held[:0] // the answer was cut off behind the label, which is not reasoning
	}
	for len(p.held) > 0 {
		c := p.held[0]
		p.held = p.held[1:]
		p.markers = &noMarkers
		p.dispatchByte(c)
	}
	p.markers = &noMarkers
	if p.tentative {
		p.abandonCall()
	}
	if p.afterMarkup || p.answerEnded { // no content follows
		p.space, p.spaceAfter = p.space[:0], p.spaceAfter[:0]
	}
	p.current.endText(p)
	if p.mayFallBack() {
		p.appendText(Content, p.reasoning)
	}
	return p.flushEvents()
}

// mayFallBack reports whether the reasoning becomes content if the answer ends here.
func (p *Parser) mayFallBack() bool { return p.fallback != NoFallback && !p.hasContent && p.calls == 0 }

// keepReasoning says that content or a call follows the reasoning so far, which stays reasoning.
func (p *Parser) keepReasoning() {
	if p.mayFallBack() && p.fallback == MoveReasoning {
		p.appendText(Reasoning, p.reasoning)
	}
	p.reasoning = nil
}

func (p *Parser) beginEvents(dst []Event) {
	p.events, p.base, p.out = dst, len(dst), p.out[:0]
}

func (p *Parser) flushEvents() []Event {
	for i := p.base; i < len(p.events); i++ {
		if e := &p.events[i]; e.to > e.from {
			e.Text = p.out[e.from:e.to:e.to]
		}
	}
	dst := p.events
	p.events = nil
	return dst
}

// emitText emits text of kind k.
func (p *Parser) emitText(k EventKind, text ...byte) {
	switch {
	case len(text) == 0:
		return
	case k == Reasoning && p.mayFallBack():
		if p.reasoning = append(p.reasoning, text...); p.fallback == MoveReasoning {
			return
		}
	case k == Content:
		p.keepReasoning()
		p.hasContent = true
	}
	p.appendText(k, text)
}

// appendText appends text to the last event if it is of kind k, and else to a new event.
func (p *Parser) appendText(k EventKind, text []byte) {
	if len(text) == 0 {
		return
	}
	from := len(p.out)
	p.out = append(p.out, text...)
	index := 0
	if k == Arguments {
		index = p.calls - 1
	}
	if n := len(p.events); n > p.base && p.events[n-1].Kind == k {
		p.events[n-1].to = len(p.out)
		return
	}
	p.events = append(p.events, Event{Kind: k, Index: index, from: from, to: len(p.out)})
}

// beginCall begins the call of name and reports whether it did: inside reasoning, only a known function is a
// call. id is the model's, or "".
func (p *Parser) beginCall(name, id string) bool {
	if p.callInReasoning {
		if !p.known[name] {
			p.inSection = true
			p.abandonCall()
			return false
		}
		p.callInReasoning = false
		p.endReasoning()
	}
	p.keepReasoning()
	p.tentative, p.heldMarkup, p.spaceAfter = false, p.heldMarkup[:0], p.spaceAfter[:0]
	if id == "" {
		id = p.makeCallID(p.calls)
	}
	p.events = append(p.events, Event{Kind: CallBegin, Index: p.calls, Name: name, ID: id})
	p.calls++
	return true
}

// finishCall ends the last call.
func (p *Parser) finishCall() {
	p.events = append(p.events, Event{Kind: CallEnd, Index: p.calls - 1})
}
