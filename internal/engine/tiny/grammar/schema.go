package grammar

import (
	"slices"
	"strconv"
	"strings"
)

// annotations are keywords which do not constrain values.
var annotations = []string{
	"title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "$defs", "definitions",
	"deprecated", "readOnly", "writeOnly", "discriminator", "contentMediaType", "contentEncoding",
}

// composers are keywords which constrain by other schemas or by values; a schema has at most one.
var composers = []string{"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}

// keywordKinds maps the keywords which apply to one type to that type.
var keywordKinds = map[string]jsonKind{
	"properties": kindObject, "required": kindObject, "additionalProperties": kindObject,
	"items": kindArray, "prefixItems": kindArray, "minItems": kindArray, "maxItems": kindArray, "uniqueItems": kindArray,
	"minLength": kindString, "maxLength": kindString, "pattern": kindString,
	"minimum": kindNumber, "maximum": kindNumber, "exclusiveMinimum": kindNumber, "exclusiveMaximum": kindNumber,
}

// compileBody emits the body of the rule r from the schema v.
func (c *compiler) compileBody(r int, v *jsonValue) (int32, error) {
	switch {
	case v.kind == kindBoolean && v.text == "true":
		return c.emitAlternatives(r, []int{c.anyValueRule()}), nil
	case v.kind == kindBoolean:
		return 0, refuseKeyword(v, "", "is false, which no value matches")
	case v.kind != kindObject:
		return 0, refuseKeyword(v, "", "must be an object, true or false, not of type %s", kindNames[v.kind])
	}
	composer := ""
	for _, key := range v.keys {
		_, isTyped := keywordKinds[key]
		switch {
		case isAnnotation(v, key) || key == "type" || key == "format" || isTyped:
		case !slices.Contains(composers, key):
			return 0, refuseKeyword(v, key, "is not supported")
		case composer != "":
			return 0, refuseKeyword(v, key, "is not supported beside %q", composer)
		default:
			composer = key
		}
	}
	if composer == "" {
		return c.compileTyped(r, v)
	}
	for _, key := range v.keys {
		value := key == "type" && (composer == "enum" || composer == "const")
		if key != composer && !value && !isAnnotation(v, key) {
			return 0, refuseKeyword(v, key, "is not supported beside %q", composer)
		}
	}
	switch composer {
	case "$ref":
		return c.compileReference(r, v)
	case "enum", "const":
		return c.compileValues(r, v, composer)
	}
	return c.compileCombination(r, v, composer)
}

// isAnnotation reports whether a keyword of v does not constrain values. propertyNames is one if any name
// matches it.
func isAnnotation(v *jsonValue, key string) bool {
	if key != "propertyNames" {
		return slices.Contains(annotations, key)
	}
	names := v.member(key)
	if names.kind == kindBoolean {
		return names.text == "true"
	}
	return names.kind == kindObject && !slices.ContainsFunc(names.keys, func(k string) bool {
		return !slices.Contains(annotations, k) && (k != "type" || names.member(k).kind != kindString || names.member(k).text != "string")
	})
}

// compileReference emits a rule which equals the one named by $ref.
func (c *compiler) compileReference(r int, v *jsonValue) (int32, error) {
	to, err := c.resolveRef(v)
	if err != nil {
		return 0, err
	}
	target, err := c.ruleFor(to)
	if err != nil {
		return 0, err
	}
	return c.emitAlternatives(r, []int{target}), nil
}

// resolveRef returns the schema named by v's $ref.
func (c *compiler) resolveRef(v *jsonValue) (*jsonValue, error) {
	ref := v.member("$ref")
	if ref.kind != kindString {
		return nil, refuseKeyword(v, "$ref", "must be a string")
	}
	pointer, local := strings.CutPrefix(ref.text, "#")
	pointer, ok := percentDecode(pointer)
	if !local || !ok || pointer != "" && pointer[0] != '/' {
		return nil, refuseKeyword(v, "$ref", "must point into this schema, as #/$defs/name does")
	}
	at := c.root
	if pointer == "" {
		return at, nil
	}
	for name := range strings.SplitSeq(pointer[1:], "/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		if at.kind == kindArray {
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(at.items) {
				return nil, refuseKeyword(v, "$ref", "points to nothing")
			}
			at = at.items[i]
			continue
		}
		if at = at.member(name); at == nil {
			return nil, refuseKeyword(v, "$ref", "points to nothing")
		}
	}
	return at, nil
}

// percentDecode decodes the escapes of a URI. ok is false if one is invalid.
func percentDecode(s string) (out string, ok bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		high, okHigh := parseHexDigit(s[i+1])
		low, okLow := parseHexDigit(s[i+2])
		if !okHigh || !okLow {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String(), true
}

// compileCombination emits a rule from the schemas of anyOf, oneOf or allOf.
func (c *compiler) compileCombination(r int, v *jsonValue, key string) (int32, error) {
	list := v.member(key)
	switch {
	case list.kind != kindArray || len(list.items) == 0:
		return 0, refuseKeyword(v, key, "must be a list of at least one schema")
	case key == "allOf" && len(list.items) > 1:
		return 0, refuseKeyword(v, key, "is supported with one schema, not with %d; merge them", len(list.items))
	case len(list.items) > maxAlternatives:
		return 0, refuseKeyword(v, key, "has %d schemas; at most %d are taken", len(list.items), maxAlternatives)
	}
	if key == "oneOf" {
		if err := c.checkDisjoint(v, list.items); err != nil {
			return 0, err
		}
	}
	rules := make([]int, len(list.items))
	for i, item := range list.items {
		var err error
		if rules[i], err = c.ruleFor(item); err != nil {
			return 0, err
		}
	}
	return c.emitAlternatives(r, rules), nil
}

// compileValues emits a rule of the values of enum or const. With a type, values of other types are left
// out.
func (c *compiler) compileValues(r int, v *jsonValue, key string) (int32, error) {
	types, err := namedTypes(v)
	if err != nil {
		return 0, err
	}
	list := []*jsonValue{v.member(key)}
	if key == "enum" {
		if list[0].kind != kindArray || len(list[0].items) == 0 {
			return 0, refuseKeyword(v, key, "must be a list of at least one value")
		}
		list = list[0].items
	}
	var texts []string
	for _, item := range list {
		if types == nil || item.isOneOf(types) {
			texts = append(texts, string(item.appendJSON(nil)))
		}
	}
	if len(texts) == 0 {
		return 0, refuseKeyword(v, key, "has no value of the type asked for")
	}
	slices.Sort(texts)
	return c.emitSpellings(slices.Compact(texts), 0, c.emitInstr(instr{op: opReturn})), nil
}

// isOneOf reports whether v has one of the types. A number without a fraction is an integer, in any
// spelling.
func (v *jsonValue) isOneOf(types []jsonKind) bool {
	if slices.Contains(types, v.kind) {
		return true
	}
	if v.kind != kindNumber || !slices.Contains(types, kindInteger) {
		return false
	}
	d, ok := parseDecimal(v.text)
	return ok && d.point >= len(d.digits)
}

// namedTypes returns the types which v names; nil if it names none.
func namedTypes(v *jsonValue) ([]jsonKind, error) {
	named := v.member("type")
	if named == nil {
		return nil, nil
	}
	list := []*jsonValue{named}
	if named.kind == kindArray {
		list = named.items
	}
	var types []jsonKind
	for _, t := range list {
		i := slices.Index(kindNames[:], t.text)
		switch {
		case t.kind != kindString || i < 0:
			return nil, refuseKeyword(v, "type", "must be null, boolean, object, array, number, string, integer or a list of these")
		case slices.Contains(types, jsonKind(i)):
			return nil, refuseKeyword(v, "type", "names %s twice", t.text)
		}
		types = append(types, jsonKind(i))
	}
	if len(types) == 0 {
		return nil, refuseKeyword(v, "type", "is an empty list, which no value matches")
	}
	return types, nil
}

// impliedTypes returns the types of a schema: those it names, otherwise the type of its keywords; nil if it
// allows any value.
func impliedTypes(v *jsonValue) ([]jsonKind, error) {
	types, err := namedTypes(v)
	if err != nil || types != nil {
		return types, err
	}
	for _, key := range v.keys {
		t, ok := keywordKinds[key]
		if key == "format" {
			t, ok = formatKind(v.member(key).text), true
		}
		if !ok || slices.Contains(types, t) {
			continue
		}
		if types != nil {
			return nil, refuseKeyword(v, key, "is about values of another type than the keywords before it; say which types are meant with \"type\"")
		}
		types = []jsonKind{t}
	}
	return types, nil
}

// compileTyped emits a rule from the types of v and the keywords which apply to them.
func (c *compiler) compileTyped(r int, v *jsonValue) (int32, error) {
	types, err := impliedTypes(v)
	switch {
	case err != nil:
		return 0, err
	case types == nil:
		return c.emitAlternatives(r, []int{c.anyValueRule()}), nil
	case len(types) == 1:
		return c.compileType(r, v, types[0])
	}
	rules := make([]int, len(types))
	for i, t := range types {
		rules[i] = c.reserveRule(v)
		body, err := c.compileType(rules[i], v, t)
		if err != nil {
			return 0, err
		}
		c.g.code[c.all[rules[i]].entry].next = body
	}
	return c.emitAlternatives(r, rules), nil
}

// compileType emits the body of the rule r for values of one type.
func (c *compiler) compileType(r int, v *jsonValue, t jsonKind) (int32, error) {
	done := c.emitInstr(instr{op: opReturn})
	switch t {
	case kindObject:
		return c.compileObject(r, v)
	case kindArray:
		return c.compileArray(r, v)
	case kindString:
		return c.compileString(v, done)
	case kindNumber, kindInteger:
		return c.compileNumber(v, t, done)
	case kindBoolean:
		return c.emitSplit(c.emitLiteral("true", done), c.emitLiteral("false", done)), nil
	}
	return c.emitLiteral("null", done), nil
}

// anyValueRule returns the rule of any value.
func (c *compiler) anyValueRule() int {
	if c.anyRule >= 0 {
		return c.anyRule
	}
	// A placeholder schema, only for errors.
	v := &jsonValue{kind: kindObject}
	c.anyRule = c.reserveRule(v)
	r, rules := c.anyRule, []int{}
	for _, t := range []jsonKind{kindString, kindNumber, kindBoolean, kindNull, kindArray, kindObject} {
		one := c.reserveRule(v)
		body, err := c.compileType(one, v, t)
		if err != nil {
			panic("grammar: the rule of any value: " + err.Error()) // it depends on nothing
		}
		c.g.code[c.all[one].entry].next = body
		rules = append(rules, one)
	}
	c.g.code[c.all[r].entry].next = c.emitAlternatives(r, rules)
	return r
}
