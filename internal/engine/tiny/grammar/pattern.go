package grammar

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"sort"
	"unicode"
	"unicode/utf8"
)

// dfa is a deterministic automaton over characters. States are numbered from 0, the start. Every state
// leads to acceptance.
type dfa struct {
	first  []rune  // the first character of each class, ascending; a class ends where the next starts
	table  []int32 // the next state by state and class; -1 for none
	accept []bool
}

// nextState returns the state after r; -1 if r is not allowed.
func (d *dfa) nextState(q uint64, r rune) int32 { return d.table[int(q)*len(d.first)+d.classOf(r)] }

// hasTransition reports whether any character between first and last is allowed. The range contains no
// surrogates.
func (d *dfa) hasTransition(q uint64, first, last rune) bool {
	row := d.table[int(q)*len(d.first):][:len(d.first)]
	for i := d.classOf(first); i < len(row) && d.first[i] <= last; i++ {
		if row[i] >= 0 {
			return true
		}
	}
	return false
}

func (d *dfa) classOf(r rune) int {
	return sort.Search(len(d.first), func(i int) bool { return d.first[i] > r }) - 1
}

// The bounds of all automata of a schema together, and of one pattern.
const (
	maxPatternBytes = 2048    // bytes
	maxProgram      = 5_000   // instructions
	maxCells        = 1 << 20 // entries of tables
	maxWork         = 1 << 20 // instructions visited
)

// workPerInstruction is the cost of compiling a program, in visited instructions.
const workPerInstruction = 16

// budget is the unused part of the bounds.
type budget struct{ cells, work int }

func (b *budget) spend(cells, work int) bool {
	b.cells -= cells
	b.work -= work
	return b.cells >= 0 && b.work >= 0
}

// programSize bounds the size of the program of a parsed pattern before it is compiled: repetitions
// multiply.
func programSize(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		size += programSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return min(size, maxProgram+1)
}

// patternError says why a pattern is refused.
type patternError string

func (e patternError) Error() string { return string(e) }

const (
	errPatternLong  patternError = "is too long"
	errPatternLarge patternError = "needs too large an automaton; simplify it"
	errPatternEdge  patternError = "has an assertion other than ^ and $"
	errPatternNone  patternError = "matches no string of the length asked for"
	errPatternOther patternError = "matches no string of the format beside it"
)

// compilePattern returns the automaton of the strings in which pattern matches somewhere.
func compilePattern(pattern string, b *budget) (*dfa, error) {
	if len(pattern) > maxPatternBytes {
		return nil, errPatternLong
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, patternError("is not a regular expression that is supported here (RE2 syntax): " + err.Error())
	}
	if size := programSize(re); size > maxProgram || !b.spend(0, workPerInstruction*size) {
		return nil, errPatternLarge
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return nil, patternError("cannot be compiled: " + err.Error())
	}
	for i := range prog.Inst {
		in := &prog.Inst[i]
		if in.Op == syntax.InstEmptyWidth && syntax.EmptyOp(in.Arg)&^(syntax.EmptyBeginText|syntax.EmptyEndText) != 0 {
			return nil, errPatternEdge
		}
	}
	s := subsetBuilder{prog: prog, first: characterClasses(prog), ids: map[string]int32{}, seen: make([]bool, len(prog.Inst)), budget: b}
	return s.buildDFA()
}

// characterClasses returns the first characters of ranges whose characters are equivalent to prog. The
// surrogates are a separate range.
func characterClasses(prog *syntax.Prog) []rune {
	cuts := []rune{0, '\n', '\n' + 1, highFirst, lowLast + 1}
	for i := range prog.Inst {
		in := &prog.Inst[i]
		if in.Op != syntax.InstRune && in.Op != syntax.InstRune1 {
			continue
		}
		if len(in.Rune) == 1 {
			r := in.Rune[0]
			cuts = append(cuts, r, r+1)
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				cuts = append(cuts, f, f+1)
			}
			continue
		}
		for j := 0; j+1 < len(in.Rune); j += 2 {
			cuts = append(cuts, in.Rune[j], in.Rune[j+1]+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	return slices.DeleteFunc(cuts, func(r rune) bool { return r > utf8.MaxRune })
}

// subsetBuilder builds a deterministic automaton from a program: its states are sets of instructions. All
// sets in which the pattern has matched are one state, because the rest of the text does not matter.
type subsetBuilder struct {
	prog  *syntax.Prog
	first []rune
	// sets holds the instructions of each state which wait for a character or for the end of the text; nil
	// for the matched state.
	sets   [][]uint32
	accept []bool
	table  []int32
	ids    map[string]int32
	budget *budget

	seen []bool
	todo []uint32
	set  []uint32
	key  []byte
}

const matchedKey = "everything" // the key of the matched state

func (s *subsetBuilder) buildDFA() (*dfa, error) {
	s.addReachable(uint32(s.prog.Start), syntax.EmptyBeginText)
	if s.stateID(syntax.EmptyBeginText) < 0 {
		return nil, errPatternLarge
	}
	for q := 0; q < len(s.sets); q++ {
		from := s.sets[q]
		for _, first := range s.first {
			if !s.budget.spend(0, len(from)+1) {
				return nil, errPatternLarge
			}
			next := int32(-1)
			switch {
			case first == highFirst: // surrogates are not characters
			case from == nil:
				next = int32(q)
			default:
				for _, pc := range from {
					if in := &s.prog.Inst[pc]; consumesRune(in, first) {
						s.addReachable(in.Out, 0)
					}
				}
				s.addReachable(uint32(s.prog.Start), 0) // a match may start here
				if next = s.stateID(0); next < 0 {
					return nil, errPatternLarge
				}
			}
			s.table = append(s.table, next)
		}
	}
	return trimDead(&dfa{first: s.first, table: s.table, accept: s.accept})
}

func consumesRune(in *syntax.Inst, r rune) bool {
	switch in.Op {
	case syntax.InstRune, syntax.InstRune1:
		return in.MatchRune(r)
	case syntax.InstRuneAny:
		return true
	case syntax.InstRuneAnyNotNL:
		return r != '\n'
	}
	return false
}

// addReachable adds to s.set the instructions reachable from pc under the conditions.
func (s *subsetBuilder) addReachable(pc uint32, conditions syntax.EmptyOp) {
	s.todo = append(s.todo[:0], pc)
	for len(s.todo) > 0 {
		pc := s.todo[len(s.todo)-1]
		s.todo = s.todo[:len(s.todo)-1]
		if s.seen[pc] {
			continue
		}
		s.seen[pc] = true
		s.set = append(s.set, pc)
		s.budget.spend(0, 1)
		switch in := &s.prog.Inst[pc]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			s.todo = append(s.todo, in.Out, in.Arg)
		case syntax.InstCapture, syntax.InstNop:
			s.todo = append(s.todo, in.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^conditions == 0 {
				s.todo = append(s.todo, in.Out)
			}
		}
	}
}

// stateID returns the id of the state of s.set, and empties s.set. It returns -1 if there are too many
// states.
func (s *subsetBuilder) stateID(conditions syntax.EmptyOp) int32 {
	waiting, matched := []uint32{}, false
	for _, pc := range s.set {
		s.seen[pc] = false
		switch in := &s.prog.Inst[pc]; in.Op {
		case syntax.InstMatch:
			matched = true
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			waiting = append(waiting, pc)
		case syntax.InstEmptyWidth:
			if need := syntax.EmptyOp(in.Arg) &^ conditions; need == syntax.EmptyEndText {
				waiting = append(waiting, pc)
			}
		}
	}
	s.set = s.set[:0]
	if matched {
		waiting = nil
	}
	slices.Sort(waiting)
	s.key = append(s.key[:0], matchedKey...)
	if !matched {
		s.key = s.key[:0]
		for _, pc := range waiting {
			s.key = binary.LittleEndian.AppendUint32(s.key, pc)
		}
		// After the end assertions of the first state, ^ holds too.
		s.key = append(s.key, byte(conditions))
	}
	if id, ok := s.ids[string(s.key)]; ok {
		return id
	}
	if !s.budget.spend(len(s.first), len(waiting)) {
		return -1
	}
	id := int32(len(s.sets))
	s.ids[string(s.key)] = id
	s.sets = append(s.sets, waiting)
	s.accept = append(s.accept, matched || s.matchesAtEnd(waiting, conditions))
	return id
}

// matchesAtEnd reports whether the pattern matches if the text ends in state waiting.
func (s *subsetBuilder) matchesAtEnd(waiting []uint32, conditions syntax.EmptyOp) bool {
	for _, pc := range waiting {
		if in := &s.prog.Inst[pc]; in.Op == syntax.InstEmptyWidth {
			s.addReachable(in.Out, conditions|syntax.EmptyEndText)
		}
	}
	matched := false
	for _, pc := range s.set {
		s.seen[pc] = false
		matched = matched || s.prog.Inst[pc].Op == syntax.InstMatch
	}
	s.set = s.set[:0]
	return matched
}

// trimDead removes the transitions to states which cannot reach acceptance.
func trimDead(d *dfa) (*dfa, error) {
	classes := len(d.first)
	into := make([][]int32, len(d.accept))
	for i, to := range d.table {
		if from := int32(i / classes); to >= 0 && (len(into[to]) == 0 || into[to][len(into[to])-1] != from) {
			into[to] = append(into[to], from)
		}
	}
	live := make([]bool, len(d.accept))
	var todo []int32
	for q, ok := range d.accept {
		if ok {
			live[q] = true
			todo = append(todo, int32(q))
		}
	}
	for len(todo) > 0 {
		q := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range into[q] {
			if !live[from] {
				live[from] = true
				todo = append(todo, from)
			}
		}
	}
	if !live[0] {
		return nil, errPatternNone
	}
	for i, to := range d.table {
		if to >= 0 && !live[to] {
			d.table[i] = -1
		}
	}
	return d, nil
}

// limitLength returns the automaton of the strings of d with least to most characters: pairs of a state of
// d and a character count, which stops counting if there is no upper limit.
func (d *dfa) limitLength(least, most uint32, b *budget) (*dfa, error) {
	type pair struct {
		q int32
		n uint32
	}
	ids := map[pair]int32{}
	var pairs []pair
	out := &dfa{first: d.first}
	state := func(p pair) int32 {
		id, ok := ids[p]
		if !ok {
			id = int32(len(pairs))
			ids[p] = id
			pairs = append(pairs, p)
			out.accept = append(out.accept, d.accept[p.q] && p.n >= least)
		}
		return id
	}
	state(pair{})
	for i := 0; i < len(pairs); i++ {
		if !b.spend(len(d.first), len(d.first)) {
			return nil, errPatternLarge
		}
		p := pairs[i]
		n := p.n + 1
		if most == unlimited {
			n = min(n, least)
		}
		for _, q := range d.table[int(p.q)*len(d.first):][:len(d.first)] {
			if q < 0 || n > most {
				out.table = append(out.table, -1)
				continue
			}
			out.table = append(out.table, state(pair{q, n}))
		}
	}
	return trimDead(out)
}

// intersectDFA returns the automaton of the strings in both d and e: pairs of their states, over classes
// which are common to both.
func intersectDFA(d, e *dfa, b *budget) (*dfa, error) {
	type pair struct{ d, e int32 }
	first := slices.Concat(d.first, e.first)
	slices.Sort(first)
	out := &dfa{first: slices.Compact(first)}
	ids := map[pair]int32{}
	var pairs []pair
	state := func(p pair) int32 {
		id, ok := ids[p]
		if !ok {
			id = int32(len(pairs))
			ids[p] = id
			pairs = append(pairs, p)
			out.accept = append(out.accept, d.accept[p.d] && e.accept[p.e])
		}
		return id
	}
	state(pair{})
	for i := 0; i < len(pairs); i++ {
		if !b.spend(len(out.first), len(out.first)) {
			return nil, errPatternLarge
		}
		p := pairs[i]
		for _, r := range out.first {
			q := pair{d.nextState(uint64(p.d), r), e.nextState(uint64(p.e), r)}
			if q.d < 0 || q.e < 0 {
				out.table = append(out.table, -1)
				continue
			}
			out.table = append(out.table, state(q))
		}
	}
	out, err := trimDead(out)
	if err != nil {
		return nil, errPatternOther
	}
	return out, nil
}

// excludeNames returns the automaton of all strings except names.
func excludeNames(names []string, b *budget) (*dfa, error) {
	cuts := []rune{0, highFirst, lowLast + 1}
	for _, name := range names {
		for _, r := range name {
			cuts = append(cuts, r, r+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	d := &dfa{first: slices.DeleteFunc(cuts, func(r rune) bool { return r > utf8.MaxRune })}
	// State 0 is the empty string. State 1 is any string which starts no name; every character leads to it
	// until a name overrides the transition.
	grow := func() bool {
		for _, first := range d.first {
			next := int32(1)
			if first == highFirst {
				next = -1
			}
			d.table = append(d.table, next)
		}
		d.accept = append(d.accept, true)
		return b.spend(len(d.first), len(d.first))
	}
	for range 2 {
		if !grow() {
			return nil, errPatternLarge
		}
	}
	for _, name := range names {
		q := 0
		for _, r := range name {
			cell := q*len(d.first) + d.classOf(r)
			if d.table[cell] == 1 {
				d.table[cell] = int32(len(d.accept))
				if !grow() {
					return nil, errPatternLarge
				}
			}
			q = int(d.table[cell])
		}
		d.accept[q] = false
	}
	return d, nil // every state leads to state 1
}
