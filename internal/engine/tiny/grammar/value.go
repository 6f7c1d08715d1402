package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock/core/fault"
)

// jsonValue is a JSON value which keeps the order of members and the spelling of numbers.
type jsonValue struct {
	kind  jsonKind
	text  string       // of a string; of a number, its spelling
	keys  []string     // of an object, in order
	items []*jsonValue // of an object or an array
	// index finds the members of a large object; otherwise nil.
	index map[string]int

	parent *jsonValue
	name   string // key or index in parent
}

// jsonKind is a JSON type as schemas name them; true and false are boolean.
type jsonKind uint8

const (
	kindNull jsonKind = iota
	kindBoolean
	kindObject
	kindArray
	kindNumber
	kindString
	kindInteger // schemas only: a number without fraction
)

var kindNames = [...]string{"null", "boolean", "object", "array", "number", "string", "integer"}

// parseSchema parses the JSON of the schema.
func parseSchema(schema []byte) (*jsonValue, error) {
	p := schemaParser{d: json.NewDecoder(bytes.NewReader(schema))}
	p.d.UseNumber()
	if !utf8.Valid(schema) {
		return nil, fault.New(fault.Invalid, "the JSON schema is not valid UTF-8")
	}
	v, err := p.parseValue(nil, "", 0)
	if err != nil {
		return nil, err
	}
	if p.d.More() {
		return nil, fault.New(fault.Invalid, "the JSON schema is followed by something else")
	}
	if p.replaced && bytes.Contains(bytes.ToLower(schema), []byte(`\ud`)) {
		return nil, fault.New(fault.Invalid, "the JSON schema has half of a surrogate pair, which is no character")
	}
	return v, nil
}

type schemaParser struct {
	d        *json.Decoder
	replaced bool // some string has U+FFFD, which the decoder substitutes for invalid characters
}

func (p *schemaParser) parseValue(parent *jsonValue, name string, depth int) (*jsonValue, error) {
	v := &jsonValue{parent: parent, name: name}
	token, err := p.d.Token()
	switch {
	case err != nil:
		return nil, fault.New(fault.Invalid, "the JSON schema is not valid JSON: %w", err)
	case depth > maxSchemaDepth:
		return nil, refuseKeyword(parent, "", "nests deeper than %d levels", maxSchemaDepth)
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '{' {
			return v, p.parseObject(v, depth)
		}
		return v, p.parseArray(v, depth)
	case string:
		v.kind, v.text = kindString, token
		p.replaced = p.replaced || strings.ContainsRune(token, utf8.RuneError)
	case json.Number:
		v.kind, v.text = kindNumber, token.String()
	case bool:
		v.kind, v.text = kindBoolean, strconv.FormatBool(token)
	default:
		v.kind, v.text = kindNull, "null"
	}
	return v, nil
}

func (p *schemaParser) parseObject(v *jsonValue, depth int) error {
	v.kind = kindObject
	seen := map[string]int{}
	for p.d.More() {
		token, err := p.d.Token()
		if err != nil {
			return fault.New(fault.Invalid, "the JSON schema is not valid JSON: %w", err)
		}
		key := token.(string) // only a string can be there
		p.replaced = p.replaced || strings.ContainsRune(key, utf8.RuneError)
		if _, twice := seen[key]; twice {
			return refuseKeyword(v, key, "is there twice")
		}
		seen[key] = len(v.keys)
		item, err := p.parseValue(v, key, depth+1)
		if err != nil {
			return err
		}
		v.keys, v.items = append(v.keys, key), append(v.items, item)
	}
	if len(v.keys) > 16 {
		v.index = seen
	}
	return p.readEnd()
}

func (p *schemaParser) parseArray(v *jsonValue, depth int) error {
	v.kind = kindArray
	for p.d.More() {
		item, err := p.parseValue(v, strconv.Itoa(len(v.items)), depth+1)
		if err != nil {
			return err
		}
		v.items = append(v.items, item)
	}
	return p.readEnd()
}

// readEnd reads the end of an object or an array.
func (p *schemaParser) readEnd() error {
	if _, err := p.d.Token(); err != nil {
		return fault.New(fault.Invalid, "the JSON schema is not valid JSON: %w", err)
	}
	return nil
}

// member returns a member of an object; nil if absent.
func (v *jsonValue) member(key string) *jsonValue {
	if v.index != nil {
		if i, ok := v.index[key]; ok {
			return v.items[i]
		}
		return nil
	}
	if i := slices.Index(v.keys, key); i >= 0 {
		return v.items[i]
	}
	return nil
}

// jsonPointer returns the location of v as a JSON pointer in URI fragment form, truncated if it is long.
func (v *jsonValue) jsonPointer() string {
	var names []string
	for ; v != nil && v.parent != nil; v = v.parent {
		names = append(names, pointerEscaper.Replace(v.name))
	}
	slices.Reverse(names)
	p := "#"
	for _, name := range names {
		p += "/" + name
		if len(p) > 200 {
			return strings.ToValidUTF8(p[:200], "") + "…"
		}
	}
	return p
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// refuseKeyword returns an error about a keyword of the schema v, or about v itself if keyword is empty.
func refuseKeyword(v *jsonValue, keyword, format string, args ...any) error {
	subject := "the schema"
	if keyword != "" {
		if len(keyword) > 100 {
			keyword = strings.ToValidUTF8(keyword[:100], "") + "…"
		}
		subject = strconv.Quote(keyword)
	}
	return fault.New(fault.Invalid, "JSON schema at %s: %s %w", v.jsonPointer(), subject, fmt.Errorf(format, args...))
}

// appendJSON appends the compact text of v: members in order, numbers in their spelling.
func (v *jsonValue) appendJSON(dst []byte) []byte {
	switch v.kind {
	case kindObject:
		dst = append(dst, '{')
		for i, item := range v.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendJSONString(dst, v.keys[i]), ':')
			dst = item.appendJSON(dst)
		}
		return append(dst, '}')
	case kindArray:
		dst = append(dst, '[')
		for i, item := range v.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = item.appendJSON(dst)
		}
		return append(dst, ']')
	case kindString:
		return appendJSONString(dst, v.text)
	}
	return append(dst, v.text...)
}

// appendJSONString appends s as JSON with the fewest possible escapes.
func appendJSONString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			dst = append(dst, '\\', b)
		case b >= 0x20:
			dst = append(dst, b)
		case b == '\b':
			dst = append(dst, '\\', 'b')
		case b == '\f':
			dst = append(dst, '\\', 'f')
		case b == '\n':
			dst = append(dst, '\\', 'n')
		case b == '\r':
			dst = append(dst, '\\', 'r')
		case b == '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
		}
	}
	return append(dst, '"')
}
