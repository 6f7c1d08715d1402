// Package parse takes the text of a model apart: what it says, what it thinks,
// and which functions it calls with what arguments.
//
// There is one parser, and it is incremental: text comes in pieces of any size,
// events go out, and a whole answer is the fold of its events, so that
// a streamed answer and a whole one cannot differ. It reads byte by byte; what
// it says depends on the bytes and never on where the pieces end. Work is linear
// in the text, and what it holds back is bounded by maxHeld.
//
// The rules, for all formats:
//
//   - Reasoning comes first. Its opening marker counts only before anything else
//     was said, unless it is a token that cannot be typed.
//   - A call ends reasoning that was never closed if its marker is a token, or is
//     no single token of the vocabulary, and its header names a known function.
//     Any other call markup inside reasoning is reasoning.
//   - A call begins when its name is complete. Until then its markup is held;
//     if it turns out to be no call, or the text ends, the markup is content,
//     byte for byte.
//   - Arguments given as JSON are passed on as they were written. If the text
//     ends inside of them, so do they: nothing is repaired, and the call has no
//     CallEnd.
//   - Arguments given in another form become compact JSON. Parameters in XML
//     have the type that the function's schema gives them; without one, a
//     value that is JSON and no string is that value, and anything else a string.
//   - White space next to markup is layout and dropped, but that of content before
//     calls and reasoning is kept if content follows them.
//   - An end marker of reasoning that never began is dropped before anything else was
//     said, and amid content if it is a token or cannot be typed.
//   - What is left of a call's frame behind its arguments (a fence, a closing
//     bracket too many) is dropped, as are unknown keys of a call object.
//   - Formats without a marker of their own (bare JSON, Python calls) are calls
//     only at the beginning of the content and, if functions are known, only
//     with a known name.
package parse

import (
	"fmt"
	"slices"
	"strings"
)

// maxHeld is how many bytes of markup are held until they prove to be a call;
// more is content. maxName bounds a name or an id in a header, maxSpace the
// white space that waits for what follows it.
const (
	maxHeld  = 64 << 10
	maxName  = 256
	maxSpace = 256
)

// Kind says what an Event tells.
type Kind uint8

// The kinds. For each call there is one CallBegin, then any number of
// Arguments, then a CallEnd unless the text ended before.
const (
	Content Kind = iota
	Reasoning
	CallBegin
	Arguments
	CallEnd
)

// String returns the kind's name, for tests and logs.
func (k Kind) String() string {
	return [...]string{"content", "reasoning", "call", "arguments", "end"}[k]
}

// Event is one step of an answer.
type Event struct {
	Kind Kind
	// Index counts the calls of the answer from 0. CallBegin, Arguments, CallEnd.
	Index int
	// Name is the function that is called. CallBegin.
	Name string
	// ID is the call's id: the model's own where its format has one, else made
	// from the parser's seed and Index. CallBegin.
	ID string
	// Text continues the content, the reasoning or the arguments. It is valid
	// until the parser is used again, and ends between characters if the text
	// that was pushed did.
	Text []byte

	from, to int // of Text in Parser.out
}

// Start says where an answer begins.
type Start uint8

// The starts. OpenAfter and Continued find them out.
const (
	StyleDecides Start = iota // inside reasoning if the style says so
	StartOpen                 // inside reasoning
	StartClosed               // where content begins
	StartAmid                 // amid content, where only markers begin anything
)

// Function is a tool that the client offered.
type Function struct {
	Name string
	// Parameters is the JSON schema of its arguments; may be nil.
	Parameters []byte
}

// Config says how a model writes, and what it may call.
type Config struct {
	// Tools and Reasoning name a format and a style (see Formats and Styles); ""
	// is none, and its markup is content.
	Tools, Reasoning string
	Functions        []Function
	// HasToken reports whether the vocabulary has a marker as one token. Inside
	// reasoning such a marker begins a call only where PushToken reads it, since a
	// model that writes it in pieces only mentions it; and only so are markers that end
	// reasoning no part of the content. Nil: nothing is known.
	HasToken func(marker string) bool
}

// Grammar is what the parsers of one request's choices have in common. It does not
// change and is safe for concurrent use.
type Grammar struct {
	types   map[string]map[string]typeMask // of parameters, by function
	schemas map[string]*schema             // of arguments, by function
	known   map[string]bool                // names of functions
	tokens  map[string]bool                // markers that are one token

	harmony, harmonyCalls bool

	machine           func() opener // nil without a format
	shortIDs          bool
	start, mid, after set // of content: nothing said yet, amid, directly after a call
	rethink, think    set // of reasoning: nothing thought yet, amid
	thinks            bool
	forced            bool // begins inside reasoning if nobody knows better
	markup            []string
}

// Parser parses one choice of an answer. It serves one goroutine.
type Parser struct {
	*Grammar
	seed string
	tool opener // nil without a format

	mach machine
	set  *set   // the markers that mach waits for
	hold []byte // a proper beginning of a marker of set

	tentative bool   // raw may prove to be no call
	unclosed  bool   // and began inside reasoning
	isToken   bool   // the text that is being read is one token
	answered  bool   // a marker opened the answer that another ends
	ended     bool   // space has that other
	raw       []byte // markup as written
	space     []byte // white space that may touch markup
	before    []byte // white space of content before the reasoning that is read
	touch     bool   // the last thing was markup
	calls     int

	events []Event
	base   int // of this Push in events
	out    []byte
}

// machine reads one part of a format.
type machine interface {
	char(p *Parser, c byte)
	marker(p *Parser, l literal) // which p's set had
	end(p *Parser)               // of the text; what is held has been read
}

// opener is the machine of a format of calls; open begins it behind a marker.
type opener interface {
	machine
	open(p *Parser, arg int)
	sets() []*set // that it waits for once it is open
}

// Compile returns the grammar of a model, or an error that lists the names there
// are.
func Compile(cfg Config) (*Grammar, error) {
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
	g.thinks, g.forced = len(s.end) > 0, s.forced
	g.markers(&f, &s)
	g.collect(&f, &s)
	if cfg.HasToken != nil {
		for _, m := range slices.Concat(f.open, s.end) {
			g.tokens[m] = cfg.HasToken(m)
		}
	}
	return g, nil
}

// markers sets what each state waits for.
func (g *Grammar) markers(f *format, s *style) {
	var tools, bare, first, anywhere, done []literal
	for i, m := range f.open {
		tools = append(tools, literal{m, actTool, i})
		if len(g.known) > 0 && isTag(m) {
			done = append(done, literal{m, actUnclosed, i})
		}
	}
	for i, m := range f.bare {
		bare = append(bare, literal{m, actTool, -1 - i})
	}
	for _, m := range f.drop {
		tools = append(tools, literal{m, actDrop, 0})
	}
	for _, m := range s.open {
		first = append(first, literal{m, actThink, 0})
	}
	if s.anywhere {
		anywhere = first
	}
	for _, m := range s.end {
		done = append(done, literal{m, actEndThink, 0})
	}
	g.start = newSet(slices.Concat(tools, bare, first)...)
	g.mid = newSet(slices.Concat(tools, anywhere)...)
	g.after = newSet(slices.Concat(tools, bare, anywhere)...)
	stray := actStray
	if s.anywhere {
		stray = actDrop
	}
	for _, m := range s.end { // of reasoning that never began, or that a call ended before
		g.start.add(literal{m, actEndThink, 0})
		g.mid.add(literal{m, stray, 0})
		g.after.add(literal{m, actDrop, 0})
	}
	if s.label != "" { // some checkpoints leave out the marker before it
		g.start.add(literal{s.label, actThink, 0})
	}
	if s.answer != "" {
		g.start.add(literal{s.answer, actAnswer, 0})
		g.mid.add(literal{s.answerEnd, actEndAnswer, 0})
		g.after.add(literal{s.answerEnd, actEndAnswer, 0})
	}
	for _, c := range f.separator {
		g.after.add(literal{string(c), actDrop, 0})
	}
	g.think, g.rethink = newSet(done...), newSet(done...)
	for _, m := range s.open { // a model may repeat what its template wrote
		g.rethink.add(literal{m, actDrop, 0})
	}
	if s.label != "" {
		g.rethink.add(literal{s.label, actDrop, 0})
	}
}

// isTag reports whether a tokenizer can have m as one token: whether it is a whole
// tag, and not the beginning of one.
func isTag(m string) bool { return strings.HasSuffix(m, ">") || strings.HasSuffix(m, "]") }

// Parser returns the parser of one choice, whose answer begins as start says. seed
// makes the ids of its calls: choices of one answer have different ones, and the
// same choice, resumed, the same.
func (g *Grammar) Parser(start Start, seed string) *Parser {
	p := &Parser{Grammar: g, seed: seed}
	switch {
	case g.harmony:
		h := &harmony{calls: g.harmonyCalls}
		h.idle(p)
		return p
	case g.machine != nil:
		p.tool = g.machine()
	}
	p.mach, p.set = content, &p.start
	if g.opens(start) {
		p.mach, p.set, p.touch = reasoning, &p.rethink, true
	} else if start == StartAmid {
		p.set = &p.mid
	}
	return p
}

// opens reports whether an answer begins inside reasoning.
func (g *Grammar) opens(start Start) bool {
	return g.thinks && (start == StartOpen || start == StyleDecides && g.forced)
}

// Thinking reports whether the text that comes next is reasoning, as far as can be
// told before it has come.
func (p *Parser) Thinking() bool {
	if h, ok := p.mach.(*harmony); ok {
		return h.phase == harmonyBody && h.kind == Reasoning
	}
	return p.unclosed || p.mach == machine(reasoning)
}

// Push reads text and appends the events that it completes to dst.
func (p *Parser) Push(dst []Event, text []byte) []Event {
	p.begin(dst)
	for i := 0; i < len(text); {
		if n := p.run(text[i:]); n > 0 {
			i += n
			continue
		}
		p.feed(text[i])
		i++
	}
	return p.flush()
}

// PushToken is Push for text that is one token of the vocabulary, or a part of one.
func (p *Parser) PushToken(dst []Event, text []byte) []Event {
	p.isToken = true
	dst = p.Push(dst, text)
	p.isToken = false
	return dst
}

// Close ends the text and appends the last events to dst. The parser is done.
func (p *Parser) Close(dst []Event) []Event {
	p.begin(dst)
	for len(p.hold) > 0 {
		c := p.hold[0]
		p.hold = p.hold[1:]
		p.set = &noMarkers
		p.char(c)
	}
	p.set = &noMarkers
	if p.tentative {
		p.giveUp()
	}
	if p.touch || p.ended { // what stands before a call and has nothing behind it
		p.space = p.space[:0]
	}
	p.mach.end(p)
	return p.flush()
}

func (p *Parser) begin(dst []Event) {
	p.events, p.base, p.out = dst, len(dst), p.out[:0]
}

func (p *Parser) flush() []Event {
	for i := p.base; i < len(p.events); i++ {
		if e := &p.events[i]; e.to > e.from {
			e.Text = p.out[e.from:e.to:e.to]
		}
	}
	dst := p.events
	p.events = nil
	return dst
}

// emit appends text to the event of kind that is being made, or makes one.
func (p *Parser) emit(k Kind, text ...byte) {
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

// call begins the call of name and reports whether it did: what is written inside
// reasoning is a call only of a known function. id is the model's, or "".
func (p *Parser) call(name, id string) bool {
	if p.unclosed {
		if !p.known[name] {
			p.giveUp()
			return false
		}
		p.unclosed = false
		p.endReasoning()
	}
	p.tentative, p.raw = false, p.raw[:0]
	if id == "" {
		id = p.callID(p.calls)
	}
	p.events = append(p.events, Event{Kind: CallBegin, Index: p.calls, Name: name, ID: id})
	p.calls++
	return true
}

// finish ends the last call.
func (p *Parser) finish() {
	p.events = append(p.events, Event{Kind: CallEnd, Index: p.calls - 1})
}
