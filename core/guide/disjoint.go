package guide

import "slices"

// maxProofs bounds the schemas, names and values compared for one oneOf.
const maxProofs = 1 << 18

// checkDisjoint refuses alternatives if one value might match two of them.
func (c *compiler) checkDisjoint(v *value, list []*value) error {
	proofs := maxProofs
	for i, a := range list {
		for j, b := range list[:i] {
			if !c.disjoint(a, b, &proofs) {
				return refuse(v, "oneOf", "needs alternatives of which no value can match two, by type, or by a required property with different \"const\" or \"enum\"; %d and %d may both match: use \"anyOf\"", j, i)
			}
		}
	}
	return nil
}

// areDisjoint reports whether it is certain that no value matches both schemas. It compares types, the
// values of enum and const, and required properties.
func (c *compiler) disjoint(a, b *value, proofs *int) bool {
	if *proofs--; *proofs < 0 {
		return false
	}
	a, b = c.followed(a), c.followed(b)
	if a == nil || b == nil || a.kind != kindObject || b.kind != kindObject {
		return false
	}
	valuesA, valuesB := listed(a), listed(b)
	if valuesA != nil && valuesB != nil {
		if *proofs -= len(valuesA) * len(valuesB); *proofs < 0 {
			return false
		}
		return !slices.ContainsFunc(valuesA, func(x *value) bool {
			return slices.ContainsFunc(valuesB, func(y *value) bool { return mayEqual(x, y) })
		})
	}
	typesA, typesB := possible(a, valuesA), possible(b, valuesB)
	if typesA == nil || typesB == nil {
		return false
	}
	if !overlap(typesA, typesB) {
		return true
	}
	if !slices.Equal(typesA, []kind{kindObject}) || !slices.Equal(typesB, []kind{kindObject}) {
		return false
	}
	return c.discriminated(a, b, proofs)
}

// haveDiscriminator reports whether two objects have a required property in which they differ.
func (c *compiler) discriminated(a, b *value, proofs *int) bool {
	propertiesA, propertiesB := a.get("properties"), b.get("properties")
	requiredA, requiredB := a.get("required"), b.get("required")
	if propertiesA == nil || propertiesB == nil || requiredA == nil || requiredB == nil {
		return false
	}
	names := func(name string) func(*value) bool {
		return func(v *value) bool { return v.kind == kindString && v.text == name }
	}
	for _, key := range requiredA.items {
		if *proofs -= len(requiredB.items); *proofs < 0 {
			return false
		}
		if !slices.ContainsFunc(requiredB.items, names(key.text)) {
			continue
		}
		x, y := propertiesA.get(key.text), propertiesB.get(key.text)
		if x != nil && y != nil && c.disjoint(x, y, proofs) {
			return true
		}
	}
	return false
}

// followRefs follows v's $ref; nil if it leads nowhere or too far.
func (c *compiler) followed(v *value) *value {
	for range 16 {
		if v.kind != kindObject || v.get("$ref") == nil {
			return v
		}
		to, err := c.resolve(v)
		if err != nil {
			return nil
		}
		v = to
	}
	return nil
}

// allowedValues returns the values which enum or const allow; nil if there is neither.
func listed(v *value) []*value {
	if x := v.get("const"); x != nil {
		return []*value{x}
	}
	if x := v.get("enum"); x != nil && x.kind == kindArray {
		return x.items
	}
	return nil
}

// possibleTypes returns the types of v's values; nil if they are not certain.
func possible(v *value, values []*value) []kind {
	var types []kind
	for _, x := range values {
		types = append(types, x.kind)
	}
	if values != nil {
		return types
	}
	if slices.ContainsFunc(composers, func(key string) bool { return v.get(key) != nil }) {
		return nil
	}
	types, err := impliedTypes(v)
	if err != nil {
		return nil
	}
	return types
}

func overlap(a, b []kind) bool {
	numbers := func(k kind) kind {
		if k == kindInteger {
			return kindNumber
		}
		return k
	}
	return slices.ContainsFunc(a, func(x kind) bool {
		return slices.ContainsFunc(b, func(y kind) bool { return numbers(x) == numbers(y) })
	})
}

// mayEqual reports whether two values may be equal. It compares strings, booleans and numbers, and
// otherwise only types.
func mayEqual(a, b *value) bool {
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
