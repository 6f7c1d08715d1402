package guide

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

// compileObject emits the body of an object's rule: the listed properties in order, then those which
// additionalProperties allows. A position in an object is the next possible property, and whether a comma
// precedes it.
func (c *compiler) object(r int, v *value) (int32, error) {
	listed, err := c.properties(v)
	if err != nil {
		return 0, err
	}
	further, open, err := c.further(v)
	if err != nil {
		return 0, err
	}
	done := c.literal("}", c.emit(instr{op: opReturn}))
	first, later := done, done
	if open {
		if first, later, err = c.openEnd(v, listed, further, done); err != nil {
			return 0, err
		}
	}
	// From the last property to the first. After a required property all others have a comma before them.
	for _, p := range slices.Backward(listed) {
		call := c.call(p.rule, later)
		key := string(append(appendString(nil, p.key), ':'))
		withComma := c.guard(p.rule, c.spell(","+key, call))
		without := c.guard(p.rule, c.spell(key, call))
		if p.required {
			c.all[r].calls = append(c.all[r].calls, p.rule)
			later, first = withComma, without
			continue
		}
		later, first = c.split(withComma, later), c.split(without, first)
	}
	return c.literal("{", first), nil
}

// listProperties returns the properties of v; required ones which are not listed come last.
func (c *compiler) properties(v *value) ([]property, error) {
	var listed []property
	if p := v.get("properties"); p != nil {
		if p.kind != kindObject {
			return nil, refuse(v, "properties", "must be an object")
		}
		for i, key := range p.keys {
			rule, err := c.rule(p.items[i])
			if err != nil {
				return nil, err
			}
			listed = append(listed, property{key: key, rule: rule})
		}
	}
	required, err := c.required(v, &listed)
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
			return nil, refuse(v, "properties", "has more than %d optional properties in a row", maxAlternatives)
		}
	}
	return listed, nil
}

// requiredNames returns the names of required properties. It appends unlisted ones to listed:
// additionalProperties defines them.
func (c *compiler) required(v *value, listed *[]property) (map[string]bool, error) {
	list := v.get("required")
	if list == nil {
		return nil, nil
	}
	if list.kind != kindArray {
		return nil, refuse(v, "required", "must be a list of names")
	}
	known := map[string]bool{}
	for _, p := range *listed {
		known[p.key] = true
	}
	required := map[string]bool{}
	for _, name := range list.items {
		if name.kind != kindString {
			return nil, refuse(v, "required", "must be a list of names")
		}
		if required[name.text] = true; known[name.text] {
			continue
		}
		known[name.text] = true
		rule, err := c.unlisted(v)
		if err != nil {
			return nil, err
		}
		*listed = append(*listed, property{key: name.text, rule: rule})
	}
	return required, nil
}

// unlistedRule returns the rule of a property which is required and not listed.
func (c *compiler) unlisted(v *value) (int, error) {
	switch more := v.get("additionalProperties"); {
	case more == nil:
		return c.anyValue(), nil
	case more.kind == kindBoolean && more.text == "false":
		return 0, refuse(v, "required", "names a property that is neither listed nor allowed by \"additionalProperties\"")
	default:
		return c.rule(more)
	}
}

// additionalRule returns the rule of unlisted properties, if they are allowed.
func (c *compiler) further(v *value) (rule int, open bool, err error) {
	switch more := v.get("additionalProperties"); {
	case more == nil && v.get("properties") != nil:
		return 0, false, nil
	case more == nil:
		return c.anyValue(), true, nil
	case more.kind == kindBoolean && more.text == "false":
		return 0, false, nil
	default:
		rule, err = c.rule(more)
		return rule, true, err
	}
}

// compileOpenEnd emits the end of an object which may have additional properties, whose names differ from
// the listed ones. It returns the entry for an object which is empty so far, and the entry for one which is
// not.
func (c *compiler) openEnd(v *value, listed []property, further int, done int32) (first, later int32, err error) {
	names := text{max: unlimited}
	if len(listed) > 0 {
		keys := make([]string, len(listed))
		for i, p := range listed {
			keys[i] = p.key
		}
		if names.dfa, err = except(keys, &c.budget); err != nil {
			return 0, 0, refuse(v, "additionalProperties", "is not supported beside so many properties; set it to false")
		}
	}
	c.g.texts = append(c.g.texts, names)
	// The end recurs after each property, so it is emitted before the code which leads to it.
	later = c.emit(instr{op: opSplit})
	name := c.emit(instr{op: opText, x: int32(len(c.g.texts) - 1), next: c.literal(":", c.call(further, later))})
	from := int32(len(c.g.targets))
	c.g.targets = append(c.g.targets, done, c.guard(further, c.literal(`,"`, name)))
	if !c.full() {
		c.g.code[later].x, c.g.code[later].y = from, from+2
	}
	return c.split(done, c.guard(further, c.literal(`"`, name))), later, nil
}

// compileArray emits the body of an array's rule: the items of prefixItems, then those of items.
func (c *compiler) array(r int, v *value) (int32, error) {
	least, most, err := bounds(v, "minItems", "maxItems")
	if err != nil {
		return 0, err
	}
	prefix, rest, open, err := c.items(v)
	if err != nil {
		return 0, err
	}
	if !open {
		most = min(most, uint32(len(prefix)))
	}
	if least > most {
		return 0, refuse(v, "minItems", "asks for %d items, and at most %d are allowed", least, most)
	}
	prefix = prefix[:min(uint32(len(prefix)), most)]
	open = open && uint32(len(prefix)) < most
	for i := range prefix[:min(uint32(len(prefix)), least)] {
		c.all[r].calls = append(c.all[r].calls, prefix[i])
	}
	if open && least > uint32(len(prefix)) {
		c.all[r].calls = append(c.all[r].calls, rest)
	}
	done := c.literal("]", c.emit(instr{op: opReturn}))
	count := func(next int32) int32 { return next } // nothing is counted without rest
	end := done
	if open {
		end, count = c.openItems(rest, least, most, done)
	}
	next := end
	for i, item := range slices.Backward(prefix) {
		comma := ","
		if i == 0 {
			comma = ""
		}
		enter := c.guard(item, c.literal(comma, c.call(item, count(next))))
		if next = enter; uint32(i) >= least {
			next = c.split(done, enter)
		}
	}
	if len(prefix) == 0 && open {
		next = c.guard(rest, c.call(rest, count(end)))
		if least == 0 {
			next = c.split(done, next)
		}
	}
	return c.literal("[", next), nil
}

// compileOpenItems emits the end of an array after at least one item: it closes if there are enough items,
// and continues if more are allowed. count prepends an instruction which counts an item.
func (c *compiler) openItems(rest int, least, most uint32, done int32) (end int32, count func(int32) int32) {
	enough := uint32(1)
	if least > 1 {
		enough = least
	}
	limit := enough // counting beyond it is useless, unless there is a maximum
	if most != unlimited {
		limit = most
	}
	count = func(next int32) int32 { return c.emit(instr{op: opCount, x: int32(limit), next: next}) }
	end = c.emit(instr{op: opSplit})
	more := c.guard(rest, c.literal(",", c.call(rest, count(end))))
	if most != unlimited {
		more = c.emit(instr{op: opMore, x: int32(most), next: more})
	}
	close := c.emit(instr{op: opEnough, x: int32(least), next: done})
	from := int32(len(c.g.targets))
	c.g.targets = append(c.g.targets, close, more)
	if !c.full() {
		c.g.code[end].x, c.g.code[end].y = from, from+2
	}
	return end, count
}

// itemRules returns the rules of the first items and of the rest, if a rest is allowed.
func (c *compiler) items(v *value) (prefix []int, rest int, open bool, err error) {
	list := v.get("prefixItems")
	if list != nil {
		if list.kind != kindArray {
			return nil, 0, false, refuse(v, "prefixItems", "must be a list of schemas")
		}
		for _, item := range list.items {
			rule, err := c.rule(item)
			if err != nil {
				return nil, 0, false, err
			}
			prefix = append(prefix, rule)
		}
	}
	if unique := v.get("uniqueItems"); unique != nil && (unique.kind != kindBoolean || unique.text != "false") {
		return nil, 0, false, refuse(v, "uniqueItems", "is not supported")
	}
	switch items := v.get("items"); {
	case items == nil && list != nil:
		return prefix, 0, false, nil
	case items == nil:
		return nil, c.anyValue(), true, nil
	case items.kind == kindArray:
		return nil, 0, false, refuse(v, "items", "must be one schema; a list of them is called \"prefixItems\"")
	case items.kind == kindBoolean && items.text == "false":
		return prefix, 0, false, nil
	default:
		rest, err = c.rule(items)
		return prefix, rest, true, err
	}
}

// countBounds returns two limits of v on a count; most is unlimited without an upper one.
func bounds(v *value, leastKey, mostKey string) (least, most uint32, err error) {
	most = unlimited
	for _, b := range []struct {
		key string
		to  *uint32
	}{{leastKey, &least}, {mostKey, &most}} {
		item := v.get(b.key)
		if item == nil {
			continue
		}
		n, err := strconv.ParseUint(item.text, 10, 31)
		if d, ok := parseDecimal(item.text); err != nil && ok && item.kind == kindNumber && !d.negative && d.point >= len(d.digits) {
			integer, _ := d.parts() // 1e3 and 5.0 are integers too
			n, err = strconv.ParseUint("0"+integer, 10, 31)
		}
		if item.kind != kindNumber || err != nil {
			return 0, 0, refuse(v, b.key, "must be an integer from 0 to 2147483647")
		}
		*b.to = uint32(n)
	}
	if least > most {
		return 0, 0, refuse(v, leastKey, "is more than %q, which no value matches", mostKey)
	}
	return least, most, nil
}
