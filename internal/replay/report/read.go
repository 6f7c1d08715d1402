package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"

	"penstock/internal/replay"
)

// Bounds of a result file.
const (
	maxSize    = 16 << 20 // bytes
	maxEntries = 1 << 14  // of one list, or kinds of errors of one row
)

// Read reads a result in the format of [WriteJSON] and nothing else: it refuses a file with unknown or
// duplicate members, missing members, negative numbers, or shares above 1, and names the place. It reads at
// most 16 MiB.
func Read(r io.Reader) (*replay.Result, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxSize:
		return nil, fmt.Errorf("not a result of penstock replay or bench: larger than %d MiB", maxSize>>20)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("not a result of penstock replay or bench: the file is empty")
	case !utf8.Valid(data):
		return nil, errors.New("not a result of penstock replay or bench: no UTF-8")
	}
	var result replay.Result
	d := resultDecoder{json.NewDecoder(bytes.NewReader(data))}
	d.in.UseNumber()
	err = d.decodeValue(reflect.ValueOf(&result).Elem(), "")
	if err == nil {
		err = d.checkEnd()
	}
	if err == nil {
		err = checkResult(&result)
	}
	if err != nil {
		return nil, fmt.Errorf("not a result that penstock replay --json or bench --json of this version prints: %w", err)
	}
	return &result, nil
}

// checkResult refuses a well-formed but impossible result.
func checkResult(r *replay.Result) error {
	if r.Command != "replay" && r.Command != "bench" {
		return fmt.Errorf(`command is %q, neither "replay" nor "bench"`, sanitizeText(r.Command, nameLimit))
	}
	if len(r.Rows) == 0 {
		return errors.New("rows is empty: there is nothing to compare")
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		switch {
		case row.Errors > row.Requests:
			return fmt.Errorf("rows[%d].errors is %d, more than the requests", i, row.Errors)
		case row.CachedTokens > row.InputTokens:
			return fmt.Errorf("rows[%d].cached_tokens is %d, more than the input tokens", i, row.CachedTokens)
		case row.CachedShare > 1:
			return fmt.Errorf("rows[%d].cached_share is %v: shares are from 0 to 1", i, row.CachedShare)
		case row.Goodput != nil && row.Goodput.Share > 1:
			return fmt.Errorf("rows[%d].goodput.share is %v: shares are from 0 to 1", i, row.Goodput.Share)
		}
	}
	return nil
}

// resultDecoder fills values by their tags. encoding/json alone accepts keys in another case, duplicate keys
// and missing members, and cannot name the place.
type resultDecoder struct{ in *json.Decoder }

// decodeValue reads the next value into v, which is at path.
func (d resultDecoder) decodeValue(v reflect.Value, path string) error {
	t, err := d.in.Token()
	if err != nil {
		return d.syntaxError(err)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if t == nil {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return d.decodeObject(v.Elem(), path, t)
	case reflect.Struct:
		return d.decodeObject(v, path, t)
	case reflect.Slice:
		return d.decodeList(v, path, t)
	case reflect.Map:
		return d.decodeCounts(v, path, t)
	case reflect.String:
		s, ok := t.(string)
		if !ok {
			return wrongTypeError(path, "a text", t)
		}
		v.SetString(s)
	case reflect.Bool:
		b, ok := t.(bool)
		if !ok {
			return wrongTypeError(path, "true or false", t)
		}
		v.SetBool(b)
	case reflect.Float64:
		n, ok := t.(json.Number)
		if !ok {
			return wrongTypeError(path, "a number", t)
		}
		f, err := n.Float64()
		if err != nil || f < 0 || math.IsInf(f, 0) {
			return fmt.Errorf("%s is %s: it must be a number from 0 up", path, sanitizeText(n.String(), 24))
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int64:
		n, ok := t.(json.Number)
		if !ok {
			return wrongTypeError(path, "a number", t)
		}
		i, err := n.Int64()
		if err != nil || i < 0 || i > 1<<53 {
			return fmt.Errorf("%s is %s: it must be a whole number from 0 up", path, sanitizeText(n.String(), 24))
		}
		v.SetInt(i)
	default:
		panic("report: no way to read a " + v.Type().String())
	}
	return nil
}

// decodeObject reads the members of an object; t should be its opening brace.
func (d resultDecoder) decodeObject(v reflect.Value, path string, t json.Token) error {
	if t != json.Delim('{') {
		return wrongTypeError(pathOrFile(path), "an object", t)
	}
	fields, required := structMembers(v.Type())
	seen := map[string]bool{}
	for d.in.More() {
		key, err := d.readKey(path)
		if err != nil {
			return err
		}
		at := joinPath(path, sanitizeText(key, nameLimit))
		field, ok := fields[key]
		switch {
		case !ok:
			return fmt.Errorf("%s is unknown", at)
		case seen[key]:
			return fmt.Errorf("%s is given twice", at)
		}
		seen[key] = true
		if err := d.decodeValue(v.Field(field), at); err != nil {
			return err
		}
	}
	if err := d.readClosing(); err != nil {
		return err
	}
	for _, key := range required {
		if !seen[key] {
			return fmt.Errorf("%s is missing", joinPath(path, key))
		}
	}
	return nil
}

// structMembers returns the fields of a struct by their JSON names, and the required names in order.
func structMembers(t reflect.Type) (fields map[string]int, required []string) {
	fields = map[string]int{}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		fields[name] = i
		if options != "omitempty" {
			required = append(required, name)
		}
	}
	return fields, required
}

func (d resultDecoder) decodeList(v reflect.Value, path string, t json.Token) error {
	if t != json.Delim('[') {
		return wrongTypeError(path, "a list", t)
	}
	for i := 0; d.in.More(); i++ {
		if i == maxEntries {
			return fmt.Errorf("%s has more than %d entries", path, maxEntries)
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.decodeValue(element, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
		v.Set(reflect.Append(v, element))
	}
	return d.readClosing()
}

// decodeCounts reads a map of numbers.
func (d resultDecoder) decodeCounts(v reflect.Value, path string, t json.Token) error {
	if t == nil {
		return nil
	}
	if t != json.Delim('{') {
		return wrongTypeError(path, "an object", t)
	}
	v.Set(reflect.MakeMap(v.Type()))
	for d.in.More() {
		key, err := d.readKey(path)
		if err != nil {
			return err
		}
		at := joinPath(path, sanitizeText(key, nameLimit))
		if v.Len() == maxEntries {
			return fmt.Errorf("%s has more than %d entries", path, maxEntries)
		}
		if v.MapIndex(reflect.ValueOf(key)).IsValid() {
			return fmt.Errorf("%s is given twice", at)
		}
		n := reflect.New(v.Type().Elem()).Elem()
		if err := d.decodeValue(n, at); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key), n)
	}
	return d.readClosing()
}

func (d resultDecoder) readKey(path string) (string, error) {
	t, err := d.in.Token()
	if err != nil {
		return "", d.syntaxError(err)
	}
	key, ok := t.(string)
	if !ok {
		return "", wrongTypeError(pathOrFile(path), "an object", t)
	}
	return key, nil
}

// readClosing reads the closing bracket.
func (d resultDecoder) readClosing() error {
	if _, err := d.in.Token(); err != nil {
		return d.syntaxError(err)
	}
	return nil
}

// checkEnd refuses data after the result.
func (d resultDecoder) checkEnd() error {
	if _, err := d.in.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows the result at byte %d; give one result in each file", d.in.InputOffset())
	}
	return nil
}

func (d resultDecoder) syntaxError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return fmt.Errorf("it is no JSON at byte %d", d.in.InputOffset())
}

func wrongTypeError(path, want string, t json.Token) error {
	got := "a number"
	switch t := t.(type) {
	case nil:
		got = "null"
	case bool:
		got = "true or false"
	case string:
		got = "a text"
	case json.Delim:
		got = "an object"
		if t == '[' {
			got = "a list"
		}
	}
	return fmt.Errorf("%s must be %s, not %s", path, want, got)
}

func pathOrFile(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
