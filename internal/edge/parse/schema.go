package parse

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// typeMask is the JSON types that a schema allows; 0 is any.
type typeMask uint8

const (
	typeString typeMask = 1 << iota
	typeNumber
	typeBoolean
	typeNull
	typeObject
	typeArray
)

func (m *typeMask) add(name string) {
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

// schema is the little of JSON schema that gives a parameter its type.
type schema struct {
	Type       json.RawMessage    `json:"type"`
	Enum       []json.RawMessage  `json:"enum"`
	AnyOf      []schema           `json:"anyOf"`
	OneOf      []schema           `json:"oneOf"`
	AllOf      []schema           `json:"allOf"`
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Additional *schema            `json:"additionalProperties"`
}

// UnmarshalJSON reads an object; a schema that is true or false, or lists items,
// allows anything.
func (s *schema) UnmarshalJSON(b []byte) error {
	type plain schema
	if typeOf(b) != typeObject {
		return nil
	}
	return json.Unmarshal(b, (*plain)(s))
}

// mask returns what s allows; of an alternative without a type, anything.
func (s *schema) mask() typeMask {
	if s == nil {
		return 0
	}
	m := s.own()
	for _, alternatives := range [][]schema{s.AnyOf, s.OneOf} {
		for i := range alternatives {
			sub := alternatives[i].mask()
			if sub == 0 {
				return 0
			}
			m |= sub
		}
	}
	for i := range s.AllOf {
		switch sub := s.AllOf[i].mask(); {
		case m == 0:
			m = sub
		case m&sub != 0:
			m &= sub
		}
	}
	if m == 0 {
		for _, v := range s.Enum {
			m |= typeOf(v)
		}
	}
	return m
}

// own returns the types that s names itself.
func (s *schema) own() (m typeMask) {
	var one string
	var many []string
	switch {
	case json.Unmarshal(s.Type, &one) == nil:
		m.add(one)
	case json.Unmarshal(s.Type, &many) == nil:
		for _, t := range many {
			m.add(t)
		}
	}
	return m
}

// container returns the first of s and its alternatives that is an array or an
// object, and which of the two it is; nil and 0 if none is.
func (s *schema) container() (*schema, typeMask) {
	if s == nil {
		return nil, 0
	}
	m := s.own()
	switch {
	case m&typeArray != 0, m == 0 && s.Items != nil:
		return s, typeArray
	case m&typeObject != 0, m == 0 && (s.Properties != nil || s.Additional != nil):
		return s, typeObject
	}
	for _, alternatives := range [][]schema{s.AnyOf, s.OneOf, s.AllOf} {
		for i := range alternatives {
			if c, kind := alternatives[i].container(); c != nil {
				return c, kind
			}
		}
	}
	return nil, 0
}

// property returns the schema of a member of the objects that s allows; nil if s says
// nothing of it.
func (s *schema) property(name string) *schema {
	if s == nil {
		return nil
	}
	if p := s.Properties[name]; p != nil {
		return p
	}
	return s.Additional
}

// argumentSchemas reads the schemas of functions; one that cannot be read is left out
// and allows anything.
func argumentSchemas(fs []Function) map[string]*schema {
	schemas := map[string]*schema{}
	for _, f := range fs {
		var s schema
		if json.Unmarshal(f.Parameters, &s) == nil {
			schemas[f.Name] = &s
		}
	}
	return schemas
}

// parameterTypes returns the types of each function's parameters.
func parameterTypes(schemas map[string]*schema) map[string]map[string]typeMask {
	types := map[string]map[string]typeMask{}
	for f, s := range schemas {
		ps := map[string]typeMask{}
		for name, sub := range s.Properties {
			ps[name] = sub.mask()
		}
		types[f] = ps
	}
	return types
}

// typeOf returns the type of a JSON value by its first byte.
func typeOf(b []byte) typeMask {
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

// appendTyped appends raw, the text of a parameter, as the JSON value that m
// makes of it: of the types that are allowed the one that raw is written in, as
// JSON or as Python, else a string.
func appendTyped(dst, raw []byte, m typeMask) []byte {
	if m == typeString {
		return appendQuoted(dst, raw)
	}
	v := bytes.TrimSpace(raw)
	if fits(v, m) {
		return append(dst, v...)
	}
	if w := pythonValue(v); m != 0 && fits(w, m) {
		return append(dst, w...)
	}
	if m&typeNumber != 0 { // leading zeros, a plus
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return strconv.AppendInt(dst, n, 10)
		}
	}
	return appendQuoted(dst, raw)
}

// fits reports whether v is JSON of a type in m, and no string: a string in
// quotes is a string with quotes unless no other type is allowed.
func fits(v []byte, m typeMask) bool {
	t := typeOf(v)
	return t != 0 && t != typeString && (m == 0 || m&t != 0) && json.Valid(v)
}
