package parse

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// typeMask is the set of JSON types which a schema allows; 0 is any.
type typeMask uint8

const (
	typeString typeMask = 1 << iota
	typeNumber
	typeBoolean
	typeNull
	typeObject
	typeArray
)

func (m *typeMask) addType(name string) {
	switch name {
	case "string":
		*m |= typeString
	case "number", "integer":
		*m |= typeNumber
	case "boolean":
		*m |= typeBoolean
	case "null":
		*m |= typeNull
	case "object":
		*m |= typeObject
	case "array":
		*m |= typeArray
	}
}

// paramSchema is the part of a JSON schema which determines the type of a parameter. The allowed types are
// computed once, so that each query takes constant time, whatever the client's schema.
type paramSchema struct {
	types      typeMask     // allowed
	own        typeMask     // named by itself
	holder     *paramSchema // the first of itself and its alternatives which is an array or an object; nil if none is
	holds      typeMask     // which of the two holder is
	properties map[string]*paramSchema
	items      *paramSchema
	additional *paramSchema
}

// newSchema builds the schema of decoded JSON. A schema which is true or false, or a list of items, allows
// anything.
func newSchema(v any) *paramSchema {
	s := &paramSchema{}
	o, ok := v.(map[string]any)
	if !ok {
		return s
	}
	s.own = namedTypes(o["type"])
	anyOf, oneOf, allOf := newSchemas(o["anyOf"]), newSchemas(o["oneOf"]), newSchemas(o["allOf"])
	s.types = s.allowedTypes(slices.Concat(anyOf, oneOf), allOf, o["enum"])
	if members, ok := o["properties"].(map[string]any); ok {
		s.properties = make(map[string]*paramSchema, len(members))
		for name, member := range members { // computed independently
			s.properties[name] = newSchema(member)
		}
	}
	if items, ok := o["items"]; ok && items != nil {
		s.items = newSchema(items)
	}
	if additional, ok := o["additionalProperties"]; ok && additional != nil {
		s.additional = newSchema(additional)
	}
	s.findContainer(slices.Concat(anyOf, oneOf, allOf))
	return s
}

func newSchemas(v any) []*paramSchema {
	list, _ := v.([]any)
	all := make([]*paramSchema, len(list))
	for i := range list {
		all[i] = newSchema(list[i])
	}
	return all
}

// namedTypes returns the types of a "type", which is a name or a list of names.
func namedTypes(v any) (m typeMask) {
	switch v := v.(type) {
	case string:
		m.addType(v)
	case []any:
		for _, name := range v {
			if name, ok := name.(string); ok {
				m.addType(name)
			}
		}
	}
	return m
}

// allowedTypes returns the types which s allows. An alternative without a type allows anything.
func (s *paramSchema) allowedTypes(alternatives, all []*paramSchema, enum any) typeMask {
	m := s.own
	for _, sub := range alternatives {
		if sub.types == 0 {
			return 0
		}
		m |= sub.types
	}
	for _, sub := range all {
		switch {
		case m == 0:
			m = sub.types
		case m&sub.types != 0:
			m &= sub.types
		}
	}
	if values, ok := enum.([]any); ok && m == 0 {
		for _, v := range values {
			m |= typeOfValue(v)
		}
	}
	return m
}

// findContainer finds the first of s and its alternatives which is an array or an object.
func (s *paramSchema) findContainer(alternatives []*paramSchema) {
	switch m := s.own; {
	case m&typeArray != 0, m == 0 && s.items != nil:
		s.holder, s.holds = s, typeArray
	case m&typeObject != 0, m == 0 && (s.properties != nil || s.additional != nil):
		s.holder, s.holds = s, typeObject
	default:
		for _, sub := range alternatives {
			if sub.holder != nil {
				s.holder, s.holds = sub.holder, sub.holds
				return
			}
		}
	}
}

// allowedMask returns the types which s allows; 0 is any.
func (s *paramSchema) allowedMask() typeMask {
	if s == nil {
		return 0
	}
	return s.types
}

// containerSchema returns the first of s and its alternatives which is an array or an object, and which of
// the two it is; nil and 0 if none is.
func (s *paramSchema) containerSchema() (*paramSchema, typeMask) {
	if s == nil {
		return nil, 0
	}
	return s.holder, s.holds
}

// propertySchema returns the schema of a member of the objects which s allows; nil if s does not restrict it.
func (s *paramSchema) propertySchema(name string) *paramSchema {
	if s == nil {
		return nil
	}
	if p := s.properties[name]; p != nil {
		return p
	}
	return s.additional
}

// argumentSchemas parses the schemas of functions. A schema which cannot be parsed is left out and allows
// anything.
func argumentSchemas(fs []Function) map[string]*paramSchema {
	schemas := map[string]*paramSchema{}
	for _, f := range fs {
		d := json.NewDecoder(bytes.NewReader(f.Parameters))
		d.UseNumber() // of any size
		var v any
		if d.Decode(&v) == nil {
			schemas[f.Name] = newSchema(v)
		}
	}
	return schemas
}

// parameterTypes returns the types of each function's parameters.
func parameterTypes(schemas map[string]*paramSchema) map[string]map[string]typeMask {
	types := map[string]map[string]typeMask{}
	for f, s := range schemas {
		ps := map[string]typeMask{}
		for name, sub := range s.properties {
			ps[name] = sub.allowedMask()
		}
		types[f] = ps
	}
	return types
}

// typeOfValue returns the type of a decoded value.
func typeOfValue(v any) typeMask {
	switch v.(type) {
	case string:
		return typeString
	case bool:
		return typeBoolean
	case nil:
		return typeNull
	case map[string]any:
		return typeObject
	case []any:
		return typeArray
	}
	return typeNumber
}

// jsonTypeOf returns the type of a JSON value by its first byte.
func jsonTypeOf(b []byte) typeMask {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"':
		return typeString
	case '{':
		return typeObject
	case '[':
		return typeArray
	case 't', 'f':
		return typeBoolean
	case 'n':
		return typeNull
	}
	return typeNumber
}

// appendTyped appends raw, the text of a parameter, as a JSON value. The value has the allowed type in which
// raw is written, as JSON or as Python, and else is a string.
func appendTyped(dst, raw []byte, m typeMask) []byte {
	if m == typeString {
		return appendQuoted(dst, raw)
	}
	v := bytes.TrimSpace(raw)
	if matchesType(v, m) {
		return append(dst, v...)
	}
	if w := convertPythonValue(v); m != 0 && matchesType(w, m) {
		return append(dst, w...)
	}
	if m&typeNumber != 0 { // leading zeros, a plus
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return strconv.AppendInt(dst, n, 10)
		}
	}
	return appendQuoted(dst, raw)
}

// matchesType reports whether v is JSON of a type in m other than string: text in quotes is a string
// including the quotes, unless no other type is allowed.
func matchesType(v []byte, m typeMask) bool {
	t := jsonTypeOf(v)
	return t != 0 && t != typeString && (m == 0 || m&t != 0) && json.Valid(v)
}
