package api

import (
	"strings"

	"penstock/internal/strictjson"
)

// IsValidName reports whether s can name a function or a schema: it has 1 to most bytes, each an ASCII
// letter, a digit or one of marks.
func IsValidName(s string, most int, marks string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte(marks, c) >= 0:
		default:
			return false
		}
	}
	return s != "" && len(s) <= most
}

// AppendCall appends a tool call in the form of chat requests and answers.
func AppendCall[S []byte | string](dst []byte, id, name string, arguments S) []byte {
	dst = strictjson.AppendMember(dst, `{"id":`, id)
	dst = strictjson.AppendMember(dst, `,"type":"function","function":{"name":`, name)
	dst = strictjson.AppendMember(dst, `,"arguments":`, arguments)
	return append(dst, `}}`...)
}

// AppendTool appends a function as an element of a chat request's tools. A nil description and nil parameters
// are left out.
func AppendTool(dst []byte, name string, description *string, parameters []byte) []byte {
	dst = strictjson.AppendMember(dst, `{"type":"function","function":{"name":`, name)
	if description != nil {
		dst = strictjson.AppendMember(dst, `,"description":`, *description)
	}
	if parameters != nil {
		dst = append(dst, `,"parameters":`...)
		dst = append(dst, parameters...)
	}
	return append(dst, `}}`...)
}
