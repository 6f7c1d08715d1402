package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
)

// walkObject reads one JSON object from dec and calls visit with each key; visit
// must consume the value. A key that occurs twice is an error, because readers
// disagree about which value counts.
func walkObject(dec *json.Decoder, visit func(key string) error) error {
	err := walkKeys(dec, visit)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("ends in the middle of an object; the file is truncated, fetch it again")
	}
	return err
}

func walkKeys(dec *json.Decoder, visit func(key string) error) error {
	if err := expectDelim(dec, '{', "an object"); err != nil {
		return err
	}
	seen := make(map[string]struct{})
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("key is not a string")
		}
		if _, dup := seen[key]; dup {
			return fmt.Errorf("key %.100q occurs twice", key)
		}
		seen[key] = struct{}{}
		if err := visit(key); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

// readString reads one JSON string.
func readString(dec *json.Decoder) (string, error) {
	tok, err := dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("got %.100v, want a string", tok)
	}
	return s, nil
}

// readInts reads a JSON array of at most limit non-negative integers. dec must
// have UseNumber set.
func readInts(dec *json.Decoder, limit int) ([]int64, error) {
	if err := expectDelim(dec, '[', "an array"); err != nil {
		return nil, err
	}
	var list []int64
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("got %.100v, want a number", tok)
		}
		// The sign and range check is the parser's: 63 bits, no fraction.
		n, err := strconv.ParseUint(num.String(), 10, 63)
		if err != nil {
			return nil, fmt.Errorf("number %.100s is not an integer in range", num)
		}
		if len(list) == limit {
			return nil, fmt.Errorf("more than %d numbers", limit)
		}
		list = append(list, int64(n))
	}
	_, err := dec.Token() // the closing bracket
	return list, err
}

func expectDelim(dec *json.Decoder, want json.Delim, what string) error {
	tok, err := dec.Token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("got %.100v, want %s", tok, what)
	}
	return nil
}

// expectEnd checks that nothing but white space follows.
func expectEnd(dec *json.Decoder) error {
	switch _, err := dec.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errors.New("data after the end of the object")
}

// jsonObject is a JSON object whose keys were checked to be unique. Keys are matched exactly, unlike the keys
// of a struct.
type jsonObject map[string]json.RawMessage

func parseObject(data []byte) (jsonObject, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	obj := make(jsonObject)
	err := walkObject(dec, func(key string) error {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("%.100s: %w", key, err)
		}
		obj[key] = raw
		return nil
	})
	if err != nil {
		return nil, err
	}
	return obj, expectEnd(dec)
}

// has reports whether key is present with a value other than null.
func (o jsonObject) has(key string) bool {
	raw, ok := o[key]
	return ok && string(raw) != "null"
}

// get decodes the value of key into *dst, and leaves *dst alone if the key is
// missing or null.
func (o jsonObject) get(key string, dst any) error {
	if !o.has(key) {
		return nil
	}
	if err := json.Unmarshal(o[key], dst); err != nil {
		return fmt.Errorf("%s: %.200s", key, err) // the error echoes numbers of any length
	}
	return nil
}

// decodeFields decodes the values of several keys, in the order of their names.
func (o jsonObject) decodeFields(dst map[string]any) error {
	for _, key := range sortedKeys(dst) {
		if err := o.get(key, dst[key]); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
