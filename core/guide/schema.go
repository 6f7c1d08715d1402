package guide

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
var typed = map[string]kind{
	"properties": kindObject, "required": kindObject, "additionalProperties": kindObject,
	"items": kindArray, "prefixItems": kindArray, "minItems": kindArray, "maxItems": kindArray, "uniqueItems": kindArray,
	"minLength": kindString, "maxLength": kindString, "pattern": kindString,
	"minimum": kindNumber, "maximum": kindNumber, "exclusiveMinimum": kindNumber, "exclusiveMaximum": kindNumber,
}

// compileBody emits the body of the rule r from the schema v.
func (c *compiler) schema(r int, v *value) (int32, error) {
	switch {
	case v.kind == kindBoolean && v.text == "true":
		return c.either(r, []int{c.anyValue()}), nil
	case v.kind == kindBoolean:
		return 0, refuse(v, "", "is false, which no value matches")
	case v.kind != kindObject:
		return 0, refuse(v, "", "must be an object, true or false, not of type %s", kindNames[v.kind])
	}
	composer := ""
	for _, key := range v.keys {
		_, isTyped := typed[key]
		switch {
		case silent(v, key) || key == "type" || key == "format" || isTyped:
		case !slices.Contains(composers, key):
			return 0, refuse(v, key, "is not supported")
		case composer != "":
			return 0, refuse(v, key, "is not supported beside %q", composer)
		default:
			composer = key
		}
	}
	if composer == "" {
		return c.typed(r, v)
	}
	for _, key := range v.keys {
		value := key == "type" && (composer == "enum" || composer == "const")
		if key != composer && !value && !silent(v, key) {
			return 0, refuse(v, key, "is not supported beside %q", composer)
		}
	}
	switch composer {
	case "$ref":
		return c.reference(r, v)
	case "enum", "const":
		return c.values(r, v, composer)
	}
	return c.combination(r, v, composer)
}

// isAnnotation reports whether a keyword of v does not constrain values. propertyNames is one if any name
// matches it.
func silent(v *value, key string) bool {
	if key != "propertyNames" {
		return slices.Contains(annotations, key)
	}
	names := v.get(key)
	if names.kind == kindBoolean {
		return names.text == "true"
	}
	return names.kind == kindObject && !slices.ContainsFunc(names.keys, func(k string) bool {
		return !slices.Contains(annotations, k) && (k != "type" || names.get(k).kind != kindString || names.get(k).text != "string")
	})
}

// compileReference emits a rule which equals the one named by $ref.
func (c *compiler) reference(r int, v *value) (int32, error) {
	to, err := c.resolve(v)
	if err != nil {
		return 0, err
	}
	target, err := c.rule(to)
	if err != nil {
		return 0, err
	}
	return c.either(r, []int{target}), nil
}

// resolveRef returns the schema named by v's $ref.
func (c *compiler) resolve(v *value) (*value, error) {
	ref := v.get("$ref")
	if ref.kind != kindString {
		return nil, refuse(v, "$ref", "must be a string")
	}
	pointer, local := strings.CutPrefix(ref.text, "#")
	pointer, ok := percentDecoded(pointer)
	if !local || !ok || pointer != "" && pointer[0] != '/' {
		return nil, refuse(v, "$ref", "must point into this schema, as #/$defs/name does")
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
				return nil, refuse(v, "$ref", "points to nothing")
			}
			at = at.items[i]
			continue
		}
		if at = at.get(name); at == nil {
			return nil, refuse(v, "$ref", "points to nothing")
		}
	}
	return at, nil
}

// percentDecode decodes the escapes of a URI. ok is false if one is invalid.
func percentDecoded(s string) (out string, ok bool) {
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
		high, okHigh := hexDigit(s[i+1])
		low, okLow := hexDigit(s[i+2])
		if !okHigh || !okLow {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String(), true
}

// compileCombination emits a rule from the schemas of anyOf, oneOf or allOf.
func (c *compiler) combination(r int, v *value, key string) (int32, error) {
	list := v.get(key)
	switch {
	case list.kind != kindArray || len(list.items) == 0:
		return 0, refuse(v, key, "must be a list of at least one schema")
	case key == "allOf" && len(list.items) > 1:
		return 0, refuse(v, key, "is supported with one schema, not with %d; merge them", len(list.items))
	case len(list.items) > maxAlternatives:
		return 0, refuse(v, key, "has %d schemas; at most %d are taken", len(list.items), maxAlternatives)
	}
	if key == "oneOf" {
		if err := c.checkDisjoint(v, list.items); err != nil {
			return 0, err
		}
	}
	rules := make([]int, len(list.items))
	for i, item := range list.items {
		var err error
		if rules[i], err = c.rule(item); err != nil {
			return 0, err
		}
	}
	return c.either(r, rules), nil
}

// compileValues emits a rule of the values of enum or const. With a type, values of other types are left
// out.
func (c *compiler) values(r int, v *value, key string) (int32, error) {
	types, err := typesOf(v)
	if err != nil {
		return 0, err
	}
	list := []*value{v.get(key)}
	if key == "enum" {
		if list[0].kind != kindArray || len(list[0].items) == 0 {
			return 0, refuse(v, key, "must be a list of at least one value")
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
		return 0, refuse(v, key, "has no value of the type asked for")
	}
	slices.Sort(texts)
	return c.spellings(slices.Compact(texts), 0, c.emit(instr{op: opReturn})), nil
}

// isOneOf reports whether v has one of the types. A number without a fraction is an integer, in any
// spelling.
func (v *value) isOneOf(types []kind) bool {
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
func typesOf(v *value) ([]kind, error) {
	named := v.get("type")
	if named == nil {
		return nil, nil
	}
	list := []*value{named}
	if named.kind == kindArray {
		list = named.items
	}
	var types []kind
	for _, t := range list {
		i := slices.Index(kindNames[:], t.text)
		switch {
		case t.kind != kindString || i < 0:
			return nil, refuse(v, "type", "must be null, boolean, object, array, number, string, integer or a list of these")
		case slices.Contains(types, kind(i)):
			return nil, refuse(v, "type", "names %s twice", t.text)
		}
		types = append(types, kind(i))
	}
	if len(types) == 0 {
		return nil, refuse(v, "type", "is an empty list, which no value matches")
	}
	return types, nil
}

// impliedTypes returns the types of a schema: those it names, otherwise the type of its keywords; nil if it
// allows any value.
func impliedTypes(v *value) ([]kind, error) {
	types, err := typesOf(v)
	if err != nil || types != nil {
		return types, err
	}
	for _, key := range v.keys {
		t, ok := typed[key]
		if key == "format" {
			t, ok = formatKind(v.get(key).text), true
		}
		if !ok || slices.Contains(types, t) {
			continue
		}
		if types != nil {
			return nil, refuse(v, key, "is about values of another type than the keywords before it; say which types are meant with \"type\"")
		}
		types = []kind{t}
	}
	return types, nil
}

// compileTyped emits a rule from the types of v and the keywords which apply to them.
func (c *compiler) typed(r int, v *value) (int32, error) {
	types, err := impliedTypes(v)
	switch {
	case err != nil:
		return 0, err
	case types == nil:
		return c.either(r, []int{c.anyValue()}), nil
	case len(types) == 1:
		return c.ofType(r, v, types[0])
	}
	rules := make([]int, len(types))
	for i, t := range types {
		rules[i] = c.reserve(v)
		body, err := c.ofType(rules[i], v, t)
		if err != nil {
			return 0, err
		}
		c.g.code[c.all[rules[i]].entry].next = body
	}
	return c.either(r, rules), nil
}

// compileType emits the body of the rule r for values of one type.
func (c *compiler) ofType(r int, v *value, t kind) (int32, error) {
	done := c.emit(instr{op: opReturn})
	switch t {
	case kindObject:
		return c.object(r, v)
	case kindArray:
		return c.array(r, v)
	case kindString:
		return c.text(v, done)
	case kindNumber, kindInteger:
		return c.number(v, t, done)
	case kindBoolean:
		return c.split(c.literal("true", done), c.literal("false", done)), nil
	}
	return c.literal("null", done), nil
}

// anyValueRule returns the rule of any value.
func (c *compiler) anyValue() int {
	if c.any >= 0 {
		return c.any
	}
	// A placeholder schema, only for errors.
	v := &value{kind: kindObject}
	c.any = c.reserve(v)
	r, rules := c.any, []int{}
	for _, t := range []kind{kindString, kindNumber, kindBoolean, kindNull, kindArray, kindObject} {
		one := c.reserve(v)
		body, err := c.ofType(one, v, t)
		if err != nil {
			panic("guide: the rule of any value: " + err.Error()) // it depends on nothing
		}
		c.g.code[c.all[one].entry].next = body
		rules = append(rules, one)
	}
	c.g.code[c.all[r].entry].next = c.either(r, rules)
	return r
}
