// Package jinja runs chat templates: Jinja2 as Hugging Face runs it, with
// trim_blocks and lstrip_blocks on, loop controls, generation blocks, its own
// tojson, raise_exception and strftime_now, in an immutable sandbox.
//
// A template is compiled once to a tree and rendered by walking it over Python's
// values: nil, bool, int64, *big.Int, float64, string, what List makes, and
// *Dict, which keeps the order of its keys. Nothing can be called or read but
// what is listed here, and nothing a template is given can be changed by it.
// Steps, output, memory and depth are bounded, so that a hostile template, or a
// hostile conversation in a decent one, ends with an error.
//
// What differs from Python: strings that are marked safe are plain, since nothing
// is escaped unless asked for, so that escaping twice does; autoescape and random
// are refused; a mistake in a constant is found when it is run, where Python may
// find it when it compiles; and what prints an address in Python prints none.
package jinja

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"penstock/core/fault"
)

// The bounds of a template and of one rendering.
const (
	maxSource  = 256 << 10 // bytes of a template
	maxDepth   = 160       // levels of the tree, of macros within macros, of values within values
	maxChain   = 1000      // operators in a row
	maxSteps   = 300_000   // nodes evaluated and items walked, beyond those that the input's size allows
	maxBytes   = 8 << 20   // bytes made, output included, likewise
	maxRange   = 100_000   // items of a range, as in Python's sandbox
	maxIntBits = 4096      // bits of an integer
)

// Template is a compiled template. It does not change and is safe for concurrent
// use.
type Template struct {
	body    []stmt
	frame   *frame
	blocks  map[string]*blockStmt
	globals *scope
	survey  survey
}

// failure is what throw panics with; it does not leave the package.
type failure struct {
	line    int // 0 if the state knows
	message string
	raised  bool // by the template itself
}

func throw(format string, a ...any) { throwAt(0, format, a...) }

func throwAt(line int, format string, a ...any) {
	panic(&failure{line: line, message: fmt.Sprintf(format, a...)})
}

// caught turns a panic of throw into an error, and lets others through.
func caught(r any, code fault.Code, line int) error {
	f, ok := r.(*failure)
	if !ok {
		panic(r)
	}
	if f.raised {
		return fault.New(code, "%s", f.message)
	}
	if f.line > 0 {
		line = f.line
	}
	return fault.New(code, "chat template, line %d: %s", line, f.message)
}

// Compile parses a template. The error is a *fault.Error with the code
// Unimplemented and names the line and what cannot be understood.
func Compile(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fault.New(fault.Unimplemented, "chat template: larger than %d bytes", maxSource)
	}
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, caught(r, fault.Unimplemented, 1)
		}
	}()
	return parse(source), nil
}

// Render runs the template with the names in vars; now is what strftime_now
// tells. The error is a *fault.Error with the code Invalid: what the template
// raised, word for word, or what went wrong and on which line.
func (t *Template) Render(vars *Dict, now time.Time) (text string, err error) {
	size := measure(vars, 0)
	s := &state{now: now, steps: maxSteps + size, bytes: maxBytes + 16*size, out: new(strings.Builder)}
	s.out.Grow(size) // most prompts are what they are made of, and little more
	defer func() {
		if r := recover(); r != nil {
			if e, ok := r.(runtime.Error); ok {
				panic(e)
			}
			text, err = "", caught(r, fault.Invalid, s.line)
		}
	}()
	sc := newScope(t.globals, len(vars.keys)+1)
	for i, k := range vars.keys {
		if name, ok := k.(string); ok {
			sc.set(name, vars.vals[i])
		}
	}
	sc.set("self", &self{t.blocks})
	s.top = t.frame.scope(sc)
	s.run(t.body, s.top)
	return s.out.String(), nil
}

// measure returns about how many bytes a value is.
func measure(v any, depth int) int {
	if depth > maxDepth {
		return 0
	}
	n := 8
	switch v := v.(type) {
	case string:
		n += len(v)
	case *list:
		for _, item := range v.items {
			n += measure(item, depth+1)
		}
	case *Dict:
		for i, k := range v.keys {
			n += measure(k, depth+1) + measure(v.vals[i], depth+1)
		}
	}
	return n
}

// state is one rendering.
type state struct {
	now   time.Time
	top   *scope // the template's own names
	out   *strings.Builder
	line  int
	steps int // left
	bytes int // left
	depth int // of calls
}

// step pays for one step.
func (s *state) step() {
	if s.steps--; s.steps < 0 {
		throw("the template takes too long: the limit of steps is reached")
	}
}

// perStep is how many bytes are read for one step; what looks at each character
// says that it reads several times as many.
const (
	perStep = 32
	slowly  = 8
)

// read pays for looking at n bytes.
func (s *state) read(n int) {
	if n < perStep {
		return
	}
	if s.steps -= n / perStep; s.steps < 0 {
		throw("the template takes too long: the limit of steps is reached")
	}
}

// readKey pays for looking a key up.
func (s *state) readKey(key any) {
	switch k := key.(type) {
	case string:
		s.read(len(k))
	case *tuple:
		for _, item := range k.items {
			s.step()
			s.readKey(item)
		}
	}
}

// spend pays for n bytes made.
func (s *state) spend(n int) {
	s.room(n)
	s.bytes -= n
}

// room throws if n bytes cannot be made.
func (s *state) room(n int) {
	if n < 0 || n > s.bytes {
		throw("the template makes too much: the limit of its output and memory is reached")
	}
}

// write appends to the output.
func (s *state) write(text string) {
	s.spend(len(text))
	s.out.WriteString(text)
}

// capture returns what f writes.
func (s *state) capture(f func()) string {
	out := s.out
	s.out = new(strings.Builder)
	f()
	text := s.out.String()
	s.out = out
	return text
}

// call guards the depth of what f runs.
func (s *state) nested(f func()) {
	if s.depth++; s.depth > maxDepth {
		throw("maximum recursion depth exceeded")
	}
	f()
	s.depth--
}

// scope holds the names of a block; what is not here is looked up outside.
type scope struct {
	parent *scope
	names  []string
	vals   []any
	at     map[string]int // of the names, once there are many
}

// newScope returns a scope without names, with room for n.
func newScope(parent *scope, n int) *scope {
	return &scope{parent: parent, names: make([]string, 0, n), vals: make([]any, 0, n)}
}

// manyNames is more than most scopes have.
const manyNames = 16

func (sc *scope) find(name string) int {
	if sc.at != nil {
		if i, ok := sc.at[name]; ok {
			return i
		}
		return -1
	}
	for i, n := range sc.names {
		if n == name {
			return i
		}
	}
	return -1
}

func (sc *scope) set(name string, v any) {
	if i := sc.find(name); i >= 0 {
		sc.vals[i] = v
		return
	}
	sc.names = append(sc.names, name)
	sc.vals = append(sc.vals, v)
	switch n := len(sc.names); {
	case sc.at != nil:
		sc.at[name] = n - 1
	case n > manyNames:
		sc.at = make(map[string]int, 2*n)
		for i, name := range sc.names {
			sc.at[name] = i
		}
	}
}

func (sc *scope) get(name string) (any, bool) {
	for ; sc != nil; sc = sc.parent {
		if i := sc.find(name); i >= 0 {
			return sc.vals[i], true
		}
	}
	return nil, false
}
