package jinja

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"penstock/internal/strictjson"
)

// FromJSON reads one JSON value and keeps the order of its keys; for a duplicate key the last value counts,
// in the first place, as in Python. Values nested deeper than templates can print, and integers longer than
// they can compute with, are refused.
func FromJSON(data []byte) (any, error) {
	c := strictjson.NewCursor(data)
	v, err := readValue(&c, 0)
	switch {
	case c.Err() != nil:
		err = c.Err()
	case err == nil && c.End() != nil:
		err = errors.New("more than one value")
	}
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return v, nil
}

// readValue reads a value. The error is one of a limit; that of the syntax is the cursor's.
func readValue(c *strictjson.Cursor, depth int) (v any, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	switch c.Peek() {
	case '{':
		out := NewDict()
		for c.Open('{'); err == nil && c.More('}'); {
			k := c.ReadKey()
			v, err = readValue(c, depth+1)
			out.putKey(k, v)
		}
		return out, err
	case '[':
		out := &listValue{}
		for c.Open('['); err == nil && c.More(']'); {
			v, err = readValue(c, depth+1)
			out.items = append(out.items, v)
		}
		return out, err
	case '"':
		return c.ReadString(), nil
	case 't', 'f':
		return c.ReadBool(), nil
	case 'n':
		c.SkipNull()
		return nil, nil
	}
	return parseNumber(string(c.ReadNumber()))
}

// parseNumber parses a number: an integer unless it has a fraction or an exponent.
func parseNumber(text string) (any, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if strings.ContainsAny(text, ".eE") {
		f, _ := strconv.ParseFloat(text, 64) // infinite if out of range, as in Python
		return f, nil
	}
	if len(text) > maxIntBits/4 {
		return nil, errors.New("integer too large")
	}
	n, _ := new(big.Int).SetString(text, 10)
	return n, nil
}
