package grammar

import "slices"

// maxProofs bounds the schemas, names and values compared for one oneOf.
const maxProofs = 1 << 18

// checkDisjoint refuses alternatives if one value might match two of them.
func (c *compiler) checkDisjoint(v *jsonValue, list []*jsonValue) error {
	proofs := maxProofs
	for i, a := range list {
		for j, b := range list[:i] {
			if !c.areDisjoint(a, b, &proofs) {
				return refuseKeyword(v, "oneOf", "needs alternatives of which no value can match two, by type, or by a required property with different \"const\" or \"enum\"; %d and %d may both match: use \"anyOf\"", j, i)
			}
		}
	}
	return nil
}

// areDisjoint reports whether it is certain that no value matches both schemas. It compares types, the
// values of enum and const, and required properties.
func (c *compiler) areDisjoint(a, b *jsonValue, proofs *int) bool {
	if *proofs--; *proofs < 0 {
		return false
	}
	a, b = c.followRefs(a), c.followRefs(b)
	if a == nil || b == nil || a.kind != kindObject || b.kind != kindObject {
		return false
	}
	valuesA, valuesB := allowedValues(a), allowedValues(b)
	if valuesA != nil && valuesB != nil {
		if *proofs -= len(valuesA) * len(valuesB); *proofs < 0 {
			return false
		}
		return !slices.ContainsFunc(valuesA, func(x *jsonValue) bool {
			return slices.ContainsFunc(valuesB, func(y *jsonValue) bool { return mayEqual(x, y) })
		})
	}
	typesA, typesB := possibleTypes(a, valuesA), possibleTypes(b, valuesB)
	if typesA == nil || typesB == nil {
		return false
	}
	if !typesOverlap(typesA, typesB) {
		return true
	}
	if !slices.Equal(typesA, []jsonKind{kindObject}) || !slices.Equal(typesB, []jsonKind{kindObject}) {
		return false
	}
	return c.haveDiscriminator(a, b, proofs)
}

// haveDiscriminator reports whether two objects have a required property in which they differ.
func (c *compiler) haveDiscriminator(a, b *jsonValue, proofs *int) bool {
	propertiesA, propertiesB := a.member("properties"), b.member("properties")
	requiredA, requiredB := a.member("required"), b.member("required")
	if propertiesA == nil || propertiesB == nil || requiredA == nil || requiredB == nil {
		return false
	}
	names := func(name string) func(*jsonValue) bool {
		return func(v *jsonValue) bool { return v.kind == kindString && v.text == name }
	}
	for _, key := range requiredA.items {
		if *proofs -= len(requiredB.items); *proofs < 0 {
			return false
		}
		if !slices.ContainsFunc(requiredB.items, names(key.text)) {
			continue
		}
		x, y := propertiesA.member(key.text), propertiesB.member(key.text)
		if x != nil && y != nil && c.areDisjoint(x, y, proofs) {
			return true
		}
	}
	return false
}

// followRefs follows v's $ref; nil if it leads nowhere or too far.
func (c *compiler) followRefs(v *jsonValue) *jsonValue {
	for range 16 {
		if v.kind != kindObject || v.member("$ref") == nil {
			return v
		}
		to, err := c.resolveRef(v)
		if err != nil {
			return nil
		}
		v = to
	}
	return nil
}

// allowedValues returns the values which enum or const allow; nil if there is neither.
func allowedValues(v *jsonValue) []*jsonValue {
	if x := v.member("const"); x != nil {
		return []*jsonValue{x}
	}
	if x := v.member("enum"); x != nil && x.kind == kindArray {
		return x.items
	}
	return nil
}

// possibleTypes returns the types of v's values; nil if they are not certain.
func possibleTypes(v *jsonValue, values []*jsonValue) []jsonKind {
	var types []jsonKind
	for _, x := range values {
		types = append(types, x.kind)
	}
	if values != nil {
		return types
	}
	if slices.ContainsFunc(composers, func(key string) bool { return v.member(key) != nil }) {
		return nil
	}
	types, err := impliedTypes(v)
	if err != nil {
		return nil
	}
	return types
}

func typesOverlap(a, b []jsonKind) bool {
	numbers := func(k jsonKind) jsonKind {
		if k == kindInteger {
			return kindNumber
		}
		return k
	}
	return slices.ContainsFunc(a, func(x jsonKind) bool {
		return slices.ContainsFunc(b, func(y jsonKind) bool { return numbers(x) == numbers(y) })
	})
}

// mayEqual reports whether two values may be equal. It compares strings, booleans and numbers, and
// otherwise only types.
func mayEqual(a, b *jsonValue) bool {
	if a.kind != b.kind {
		return false
	}
	switch a.kind {
	case kindString, kindBoolean:
		return a.text == b.text
	case kindNumber:
		x, okX := parseDecimal(a.text)
		y, okY := parseDecimal(b.text)
		return !okX || !okY || x == y
	}
	return true
}
