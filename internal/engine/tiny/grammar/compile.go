package grammar

import (
	"penstock/core/fault"
)

// compiler compiles a schema to a program. Each reachable schema becomes a rule: a run of code which writes
// one value and returns. Code is emitted from its end to its beginning, because every instruction names its
// successor.
type compiler struct {
	g        Grammar
	root     *jsonValue
	rules    map[*jsonValue]int // by schema
	all      []rule
	anyRule  int // the rule of any value; -1 until created
	patterns map[string]*dfa
	budget   budget
}

// rule is one value. Its room is the least nesting depth of its values: a rule is entered only where that
// depth is available, so that every text can be ended.
type rule struct {
	schema *jsonValue
	entry  int32
	// A rule has either alternatives, which nest no deeper, or unavoidable calls.
	alternatives []int
	calls        []int
	room         int
}

const noRoom = MaxDepth

func (c *compiler) compileSchema() (*Grammar, error) {
	c.budget = budget{cells: maxCells, work: maxWork}
	end := c.emitInstr(instr{op: opEnd})
	root, err := c.ruleFor(c.root)
	if err != nil {
		return nil, err
	}
	c.g.start = c.emitCall(root, end)
	if err := c.computeRooms(); err != nil {
		return nil, err
	}
	if err := c.checkCycles(); err != nil {
		return nil, err
	}
	if len(c.g.code) > maxCode {
		return nil, newTooLarge()
	}
	for i := range c.g.code {
		switch in := &c.g.code[i]; in.op {
		case opCall:
			in.x = c.all[in.x].entry
		case opRoom:
			in.x = int32(c.all[in.x].room) + in.y
		}
	}
	return &c.g, nil
}

func newTooLarge() error {
	return fault.New(fault.Invalid, "the JSON schema is too large; simplify it, or send less of it")
}

// emitInstr appends an instruction and returns its index. Beyond the bound it keeps nothing: isFull reports
// that.
func (c *compiler) emitInstr(in instr) int32 {
	if c.isFull() {
		return 0
	}
	c.g.code = append(c.g.code, in)
	return int32(len(c.g.code) - 1)
}

// isFull reports whether the program exceeds its bound.
func (c *compiler) isFull() bool { return len(c.g.code) > maxCode }

// emitSplit continues at each of targets.
func (c *compiler) emitSplit(targets ...int32) int32 {
	if len(targets) == 1 {
		return targets[0]
	}
	from := int32(len(c.g.targets))
	c.g.targets = append(c.g.targets, targets...)
	return c.emitInstr(instr{op: opSplit, x: from, y: int32(len(c.g.targets))})
}

// emitCall writes the value of a rule and continues at next.
func (c *compiler) emitCall(rule int, next int32) int32 {
	return c.emitInstr(instr{op: opCall, next: next, x: int32(rule)})
}

// emitRoomGuard continues at next if there is room for a call of the rule.
func (c *compiler) emitRoomGuard(rule int, next int32) int32 {
	return c.emitInstr(instr{op: opRoom, next: next, x: int32(rule), y: 1})
}

// emitLiteral writes bytes.
func (c *compiler) emitLiteral(s string, next int32) int32 {
	if s == "" || c.isFull() {
		return next
	}
	from := int32(len(c.g.bytes))
	c.g.bytes = append(c.g.bytes, s...)
	return c.emitInstr(instr{op: opLiteral, next: next, x: from, y: int32(len(c.g.bytes))})
}

// ruleFor returns the rule of a schema, and creates it if it is new.
func (c *compiler) ruleFor(v *jsonValue) (int, error) {
	if r, ok := c.rules[v]; ok {
		return r, nil
	}
	r := c.reserveRule(v)
	c.rules[v] = r
	body, err := c.compileBody(r, v)
	if err == nil && c.isFull() {
		err = newTooLarge()
	}
	if err != nil {
		return 0, err
	}
	c.g.code[c.all[r].entry].next = body
	return r, nil
}

// reserveRule creates a rule without code.
func (c *compiler) reserveRule(v *jsonValue) int {
	r := len(c.all)
	c.all = append(c.all, rule{schema: v, entry: c.emitInstr(instr{op: opRoom, x: int32(r)})})
	return r
}

// emitAlternatives emits the body of a rule which is one of several others.
func (c *compiler) emitAlternatives(r int, rules []int) int32 {
	c.all[r].alternatives = rules
	targets := make([]int32, len(rules))
	for i, other := range rules {
		targets[i] = c.all[other].entry
	}
	return c.emitSplit(targets...)
}

// computeRooms computes the room of every rule, in order of depth: at each depth it settles the rules all
// of whose calls, or one of whose alternatives, are settled. A rule which is never settled can never end.
func (c *compiler) computeRooms() error {
	users := make([][]int, len(c.all))
	waiting := make([]int, len(c.all)) // unsettled calls
	var now, next []int
	for i := range c.all {
		r := &c.all[i]
		r.room = noRoom
		waiting[i] = len(r.calls)
		for _, used := range r.alternatives {
			users[used] = append(users[used], i)
		}
		for _, used := range r.calls {
			users[used] = append(users[used], i)
		}
		if len(r.alternatives) == 0 && len(r.calls) == 0 {
			now = append(now, i)
		}
	}
	for depth := 0; depth < noRoom && len(now) > 0; depth++ {
		next = next[:0]
		for len(now) > 0 {
			i := now[len(now)-1]
			now = now[:len(now)-1]
			if c.all[i].room <= depth {
				continue
			}
			c.all[i].room = depth
			for _, user := range users[i] {
				if len(c.all[user].alternatives) > 0 {
					now = append(now, user)
				} else if waiting[user]--; waiting[user] == 0 {
					next = append(next, user)
				}
			}
		}
		now, next = next, now
	}
	for i := range c.all {
		if c.all[i].room == noRoom {
			return refuseKeyword(c.all[i].schema, "", "can never end: it requires itself, or nests deeper than %d levels", MaxDepth)
		}
	}
	return nil
}

// checkCycles refuses rules which are alternatives of themselves.
func (c *compiler) checkCycles() error {
	const entered, left = 1, 2
	state := make([]uint8, len(c.all))
	type step struct{ rule, next int }
	for start := range c.all {
		path := []step{{rule: start}}
		if state[start] == left {
			continue
		}
		state[start] = entered
		for len(path) > 0 {
			top := &path[len(path)-1]
			r := &c.all[top.rule]
			if top.next == len(r.alternatives) {
				state[top.rule] = left
				path = path[:len(path)-1]
				continue
			}
			other := r.alternatives[top.next]
			top.next++
			switch state[other] {
			case entered:
				return refuseKeyword(c.all[other].schema, "", "refers to itself without anything in between")
			case 0:
				state[other] = entered
				path = append(path, step{rule: other})
			}
		}
	}
	return nil
}
