package api

import "strings"

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
