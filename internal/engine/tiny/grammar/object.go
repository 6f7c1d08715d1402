package grammar

import (
	"slices"
	"strconv"
)

// property is a listed property of an object, in order.
type property struct {
	key      string
	rule     int
	required bool
}

// compileObject emits the body of an object's rule: the listed properties in order, then properties which
// additionalProperties allows. A position in an object is the next possible property, and whether a comma
// precedes it.
func (c *compiler) compileObject(r int, v *jsonValue) (int32, error) {
	listed, err := c.listProperties(v)
	if err != nil {
		return 0, err
	}
	further, open, err := c.additionalRule(v)
	if err != nil {
		return 0, err
	}
	done := c.emitLiteral("}", c.emitInstr(instr{op: opReturn}))
	first, later := done, done
	if open {
		if first, later, err = c.compileOpenEnd(v, listed, further, done); err != nil {
			return 0, err
		}
	}
	// From the last property to the first. After a required property all others have a comma before them.
	for _, p := range slices.Backward(listed) {
		call := c.emitCall(p.rule, later)
		key := string(append(appendJSONString(nil, p.key), ':'))
		withComma := c.emitRoomGuard(p.rule, c.emitSpelling(","+key, call))
		without := c.emitRoomGuard(p.rule, c.emitSpelling(key, call))
		if p.required {
			c.all[r].calls = append(c.all[r].calls, p.rule)
			later, first = withComma, without
			continue
		}
		later, first = c.emitSplit(withComma, later), c.emitSplit(without, first)
	}
	return c.emitLiteral("{", first), nil
}

// listProperties returns the properties of v; required ones which are not listed come last.
func (c *compiler) listProperties(v *jsonValue) ([]property, error) {
	var listed []property
	if p := v.member("properties"); p != nil {
		if p.kind != kindObject {
			return nil, refuseKeyword(v, "properties", "must be an object")
		}
		for i, key := range p.keys {
			rule, err := c.ruleFor(p.items[i])
			if err != nil {
				return nil, err
			}
			listed = append(listed, property{key: key, rule: rule})
		}
	}
	required, err := c.requiredNames(v, &listed)
	if err != nil {
		return nil, err
	}
	inARow := 0
	for i := range listed {
		p := &listed[i]
		p.required = required[p.key]
		if inARow++; p.required {
			inARow = 0
		}
		if inARow > maxAlternatives {
			return nil, refuseKeyword(v, "properties", "has more than %d optional properties in a row", maxAlternatives)
		}
	}
	return listed, nil
}

// requiredNames returns the names of required properties. It appends unlisted ones to listed:
// additionalProperties defines them.
func (c *compiler) requiredNames(v *jsonValue, listed *[]property) (map[string]bool, error) {
	list := v.member("required")
	if list == nil {
		return nil, nil
	}
	if list.kind != kindArray {
		return nil, refuseKeyword(v, "required", "must be a list of names")
	}
	known := map[string]bool{}
	for _, p := range *listed {
		known[p.key] = true
	}
	required := map[string]bool{}
	for _, name := range list.items {
		if name.kind != kindString {
			return nil, refuseKeyword(v, "required", "must be a list of names")
		}
		if required[name.text] = true; known[name.text] {
			continue
		}
		known[name.text] = true
		rule, err := c.unlistedRule(v)
		if err != nil {
			return nil, err
		}
		*listed = append(*listed, property{key: name.text, rule: rule})
	}
	return required, nil
}

// unlistedRule returns the rule of a property which is required and not listed.
func (c *compiler) unlistedRule(v *jsonValue) (int, error) {
	switch more := v.member("additionalProperties"); {
	case more == nil:
		return c.anyValueRule(), nil
	case more.kind == kindBoolean && more.text == "false":
		return 0, refuseKeyword(v, "required", "names a property that is neither listed nor allowed by \"additionalProperties\"")
	default:
		return c.ruleFor(more)
	}
}

// additionalRule returns the rule of unlisted properties, if they are allowed.
func (c *compiler) additionalRule(v *jsonValue) (rule int, open bool, err error) {
	switch more := v.member("additionalProperties"); {
	case more == nil && v.member("properties") != nil:
		return 0, false, nil
	case more == nil:
		return c.anyValueRule(), true, nil
	case more.kind == kindBoolean && more.text == "false":
		return 0, false, nil
	default:
		rule, err = c.ruleFor(more)
		return rule, true, err
	}
}

// compileOpenEnd emits the end of an object which may have additional properties, whose names differ from
// the listed ones. It returns the entry for an object which is empty so far, and the entry for one which is
// not.
func (c *compiler) compileOpenEnd(v *jsonValue, listed []property, further int, done int32) (first, later int32, err error) {
	names := stringRule{max: unlimited}
	if len(listed) > 0 {
		keys := make([]string, len(listed))
		for i, p := range listed {
			keys[i] = p.key
		}
		if names.dfa, err = excludeNames(keys, &c.budget); err != nil {
			return 0, 0, refuseKeyword(v, "additionalProperties", "is not supported beside so many properties; set it to false")
		}
	}
	c.g.strings = append(c.g.strings, names)
	// The end recurs after each property, so it is emitted before the code which leads to it.
	later = c.emitInstr(instr{op: opSplit})
	name := c.emitInstr(instr{op: opText, x: int32(len(c.g.strings) - 1), next: c.emitLiteral(":", c.emitCall(further, later))})
	from := int32(len(c.g.targets))
	c.g.targets = append(c.g.targets, done, c.emitRoomGuard(further, c.emitLiteral(`,"`, name)))
	if !c.isFull() {
		c.g.code[later].x, c.g.code[later].y = from, from+2
	}
	return c.emitSplit(done, c.emitRoomGuard(further, c.emitLiteral(`"`, name))), later, nil
}

// compileArray emits the body of an array's rule: first prefixItems, then items.
func (c *compiler) compileArray(r int, v *jsonValue) (int32, error) {
	least, most, err := countBounds(v, "minItems", "maxItems")
	if err != nil {
		return 0, err
	}
	prefix, rest, open, err := c.itemRules(v)
	if err != nil {
		return 0, err
	}
	if !open {
		most = min(most, uint32(len(prefix)))
	}
	if least > most {
		return 0, refuseKeyword(v, "minItems", "asks for %d items, and at most %d are allowed", least, most)
	}
	prefix = prefix[:min(uint32(len(prefix)), most)]
	open = open && uint32(len(prefix)) < most
	for i := range prefix[:min(uint32(len(prefix)), least)] {
		c.all[r].calls = append(c.all[r].calls, prefix[i])
	}
	if open && least > uint32(len(prefix)) {
		c.all[r].calls = append(c.all[r].calls, rest)
	}
	done := c.emitLiteral("]", c.emitInstr(instr{op: opReturn}))
	count := func(next int32) int32 { return next } // nothing is counted without rest
	end := done
	if open {
		end, count = c.compileOpenItems(rest, least, most, done)
	}
	next := end
	for i, item := range slices.Backward(prefix) {
		comma := ","
		if i == 0 {
			comma = ""
		}
		enter := c.emitRoomGuard(item, c.emitLiteral(comma, c.emitCall(item, count(next))))
		if next = enter; uint32(i) >= least {
			next = c.emitSplit(done, enter)
		}
	}
	if len(prefix) == 0 && open {
		next = c.emitRoomGuard(rest, c.emitCall(rest, count(end)))
		if least == 0 {
			next = c.emitSplit(done, next)
		}
	}
	return c.emitLiteral("[", next), nil
}

// compileOpenItems emits the end of an array after at least one item: it closes if there are enough items,
// and continues if more are allowed. count prepends an instruction which counts an item.
func (c *compiler) compileOpenItems(rest int, least, most uint32, done int32) (end int32, count func(int32) int32) {
	enough := uint32(1)
	if least > 1 {
		enough = least
	}
	limit := enough // counting beyond it is useless, unless there is a maximum
	if most != unlimited {
		limit = most
	}
	count = func(next int32) int32 { return c.emitInstr(instr{op: opCount, x: int32(limit), next: next}) }
	end = c.emitInstr(instr{op: opSplit})
	more := c.emitRoomGuard(rest, c.emitLiteral(",", c.emitCall(rest, count(end))))
	if most != unlimited {
		more = c.emitInstr(instr{op: opMore, x: int32(most), next: more})
	}
	close := c.emitInstr(instr{op: opEnough, x: int32(least), next: done})
	from := int32(len(c.g.targets))
	c.g.targets = append(c.g.targets, close, more)
	if !c.isFull() {
		c.g.code[end].x, c.g.code[end].y = from, from+2
	}
	return end, count
}

// itemRules returns the rules of the first items and of the rest, if a rest is allowed.
func (c *compiler) itemRules(v *jsonValue) (prefix []int, rest int, open bool, err error) {
	list := v.member("prefixItems")
	if list != nil {
		if list.kind != kindArray {
			return nil, 0, false, refuseKeyword(v, "prefixItems", "must be a list of schemas")
		}
		for _, item := range list.items {
			rule, err := c.ruleFor(item)
			if err != nil {
				return nil, 0, false, err
			}
			prefix = append(prefix, rule)
		}
	}
	if unique := v.member("uniqueItems"); unique != nil && (unique.kind != kindBoolean || unique.text != "false") {
		return nil, 0, false, refuseKeyword(v, "uniqueItems", "is not supported")
	}
	switch items := v.member("items"); {
	case items == nil && list != nil:
		return prefix, 0, false, nil
	case items == nil:
		return nil, c.anyValueRule(), true, nil
	case items.kind == kindArray:
		return nil, 0, false, refuseKeyword(v, "items", "must be one schema; a list of them is called \"prefixItems\"")
	case items.kind == kindBoolean && items.text == "false":
		return prefix, 0, false, nil
	default:
		rest, err = c.ruleFor(items)
		return prefix, rest, true, err
	}
}

// countBounds returns two limits of v on a count; most is unlimited without an upper one.
func countBounds(v *jsonValue, leastKey, mostKey string) (least, most uint32, err error) {
	most = unlimited
	for _, b := range []struct {
		key string
		to  *uint32
	}{{leastKey, &least}, {mostKey, &most}} {
		item := v.member(b.key)
		if item == nil {
			continue
		}
		n, err := strconv.ParseUint(item.text, 10, 31)
		if d, ok := parseDecimal(item.text); err != nil && ok && item.kind == kindNumber && !d.negative && d.point >= len(d.digits) {
			integer, _ := d.splitPoint() // 1e3 and 5.0 are integers too
			n, err = strconv.ParseUint("0"+integer, 10, 31)
		}
		if item.kind != kindNumber || err != nil {
			return 0, 0, refuseKeyword(v, b.key, "must be an integer from 0 to 2147483647")
		}
		*b.to = uint32(n)
	}
	if least > most {
		return 0, 0, refuseKeyword(v, leastKey, "is more than %q, which no value matches", mostKey)
	}
	return least, most, nil
}
