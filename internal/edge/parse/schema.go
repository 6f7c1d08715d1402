package parse

import (
	"bytes"
	"encoding/json"
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
	Properties map[string]*schema `json:"properties"`
}

// mask returns what s allows; of an alternative without a type, anything.
func (s *schema) mask() typeMask {
	if s == nil {
		return 0
	}
	var m typeMask
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
	for _, alternatives := range [][]schema{s.AnyOf, s.OneOf} {
		for i := range alternatives {
			sub := alternatives[i].mask()
			if sub == 0 {
				return 0
			}
			m |= sub
		}
	}
	if m == 0 {
		for _, v := range s.Enum {
			m |= typeOf(v)
		}
	}
	return m
}

// parameterTypes reads the schemas of functions; one that is none allows
// anything.
func parameterTypes(fs []Function) map[string]map[string]typeMask {
	types := map[string]map[string]typeMask{}
	for _, f := range fs {
		var s schema
		if json.Unmarshal(f.Parameters, &s) != nil {
			continue
		}
		ps := map[string]typeMask{}
		for name, sub := range s.Properties {
			ps[name] = sub.mask()
		}
		types[f.Name] = ps
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
	return appendQuoted(dst, raw)
}

// fits reports whether v is JSON of a type in m, and no string: a string in
// quotes is a string with quotes unless no other type is allowed.
func fits(v []byte, m typeMask) bool {
	t := typeOf(v)
	return t != 0 && t != typeString && (m == 0 || m&t != 0) && json.Valid(v)
}
