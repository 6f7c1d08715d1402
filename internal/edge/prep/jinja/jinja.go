// Package jinja runs chat templates: Jinja2 as Hugging Face runs it, with trim_blocks and lstrip_blocks on,
// loop controls, generation blocks, its own tojson, raise_exception and strftime_now, in an immutable
// sandbox.
//
// A template is compiled once to a tree and rendered by walking it over Python's values: nil, bool, int64,
// *big.Int, float64, string, the results of List, and *Dict, which keeps the order of its keys. A template
// can call and read only what is listed here, and cannot change the values which it is given. Steps, output,
// memory and depth are bounded, so that a hostile template, or a hostile conversation in a harmless one, ends
// with an error.
//
// Differences from Python: strings which are marked safe are plain, since nothing is escaped by default, so
// that escaping twice escapes twice; autoescape and random are refused; a mistake in a constant is found when
// it is run, where Python may find it when it compiles; and values which Python prints with an address have
// none.
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
	maxSteps   = 300_000   // nodes evaluated and items visited, beyond those allowed by the input's size
	maxBytes   = 8 << 20   // bytes made, output included, beyond those allowed by the input's size
	maxRange   = 100_000   // items of a range, as in Python's sandbox
	maxIntBits = 4096      // bits of an integer
)

// Template is a compiled template. It is immutable and safe for concurrent use.
type Template struct {
	body    []stmt
	frame   *frame
	blocks  map[string]*blockStmt
	globals *scope
	survey  templateSurvey
}

// templateError is the panic value of throw; it does not leave the package.
type templateError struct {
	line    int // 0 if the state has it
	message string
	raised  bool // by the template itself
}

func throw(format string, a ...any) { throwAt(0, format, a...) }

func throwAt(line int, format string, a ...any) {
	panic(&templateError{line: line, message: fmt.Sprintf(format, a...)})
}

// recoveredError turns a panic of throw into an error, and panics again for others.
func recoveredError(r any, code fault.Code, line int) error {
	f, ok := r.(*templateError)
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

// Compile parses a template. The error is a *fault.Error with the code Unimplemented and names the line and
// the unsupported part.
func Compile(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fault.New(fault.Unimplemented, "chat template: larger than %d bytes", maxSource)
	}
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, recoveredError(r, fault.Unimplemented, 1)
		}
	}()
	return parseTemplate(source), nil
}

// Render runs the template with the names in vars; now is the time of strftime_now. The error is a
// *fault.Error with the code Invalid: the template's own message, verbatim, or what went wrong and on which
// line.
func (t *Template) Render(vars *Dict, now time.Time) (text string, err error) {
	size := measureSize(vars, 0)
	s := &renderState{builtins: &builtins, now: now, steps: maxSteps + size, bytes: maxBytes + 16*size, out: new(strings.Builder)}
	s.out.Grow(size) // most prompts are little more than their input
	defer func() {
		if r := recover(); r != nil {
			if e, ok := r.(runtime.Error); ok {
				panic(e)
			}
			text, err = "", recoveredError(r, fault.Invalid, s.line)
		}
	}()
	sc := newScope(t.globals, len(vars.keys)+1)
	for i, k := range vars.keys {
		if name, ok := k.(string); ok {
			sc.setName(name, vars.vals[i])
		}
	}
	sc.setName("self", &selfVar{t.blocks})
	s.top = t.frame.openScope(sc)
	s.runBody(t.body, s.top)
	return s.out.String(), nil
}

// measureSize returns the approximate bytes of a value.
func measureSize(v any, depth int) int {
	if depth > maxDepth {
		return 0
	}
	n := 8
	switch v := v.(type) {
	case string:
		n += len(v)
	case *listValue:
		for _, item := range v.items {
			n += measureSize(item, depth+1)
		}
	case *Dict:
		for i, k := range v.keys {
			n += measureSize(k, depth+1) + measureSize(v.vals[i], depth+1)
		}
	}
	return n
}

// renderState is the state of one rendering.
type renderState struct {
	builtins *builtinSet
	now      time.Time
	top      *scope // the template's own names
	out      *strings.Builder
	line     int
	steps    int // left
	bytes    int // left
	depth    int // of calls
}

// payStep pays for one step.
func (s *renderState) payStep() {
	if s.steps--; s.steps < 0 {
		throw("the template takes too long: the limit of steps is reached")
	}
}

// perStep is how many bytes are read for one step; code which looks at each character counts several times as
// many.
const (
	perStep = 32
	slowly  = 8
)

// payRead pays for reading n bytes.
func (s *renderState) payRead(n int) {
	if n < perStep {
		return
	}
	if s.steps -= n / perStep; s.steps < 0 {
		throw("the template takes too long: the limit of steps is reached")
	}
}

// payKeyRead pays for looking up a key.
func (s *renderState) payKeyRead(key any) {
	switch k := key.(type) {
	case string:
		s.payRead(len(k))
	case *tupleValue:
		for _, item := range k.items {
			s.payStep()
			s.payKeyRead(item)
		}
	}
}

// payBytes pays for n bytes made.
func (s *renderState) payBytes(n int) {
	s.checkRoom(n)
	s.bytes -= n
}

// checkRoom throws if n more bytes are not allowed.
func (s *renderState) checkRoom(n int) {
	if n < 0 || n > s.bytes {
		throw("the template makes too much: the limit of its output and memory is reached")
	}
}

// writeOutput appends to the output.
func (s *renderState) writeOutput(text string) {
	s.payBytes(len(text))
	s.out.WriteString(text)
}

// captureOutput returns the output of f.
func (s *renderState) captureOutput(f func()) string {
	out := s.out
	s.out = new(strings.Builder)
	f()
	text := s.out.String()
	s.out = out
	return text
}

// runNested bounds the call depth of f.
func (s *renderState) runNested(f func()) {
	if s.depth++; s.depth > maxDepth {
		throw("maximum recursion depth exceeded")
	}
	f()
	s.depth--
}

// scope holds the names of a block; other names are looked up in the parent.
type scope struct {
	parent *scope
	names  []string
	vals   []any
	at     map[string]int // index of the names, once there are many
}

// newScope returns a scope without names, with room for n.
func newScope(parent *scope, n int) *scope {
	return &scope{parent: parent, names: make([]string, 0, n), vals: make([]any, 0, n)}
}

// indexedNames is more than most scopes have.
const indexedNames = 16

func (sc *scope) findName(name string) int {
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

func (sc *scope) setName(name string, v any) {
	if i := sc.findName(name); i >= 0 {
		sc.vals[i] = v
		return
	}
	sc.names = append(sc.names, name)
	sc.vals = append(sc.vals, v)
	switch n := len(sc.names); {
	case sc.at != nil:
		sc.at[name] = n - 1
	case n > indexedNames:
		sc.at = make(map[string]int, 2*n)
		for i, name := range sc.names {
			sc.at[name] = i
		}
	}
}

func (sc *scope) lookupName(name string) (any, bool) {
	for ; sc != nil; sc = sc.parent {
		if i := sc.findName(name); i >= 0 {
			return sc.vals[i], true
		}
	}
	return nil, false
}
