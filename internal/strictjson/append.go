package strictjson

import "strconv"

// AppendMember appends opening, the text up to a value, such as `,"model":`, and then s as a JSON string.
func AppendMember[S []byte | string](dst []byte, opening string, s S) []byte {
	return AppendString(append(dst, opening...), s)
}

// AppendOptional is AppendMember with null in place of an empty string.
func AppendOptional(dst []byte, opening, s string) []byte {
	if s == "" {
		return append(append(dst, opening...), "null"...)
	}
	return AppendMember(dst, opening, s)
}

// AppendInt appends opening, as AppendMember does, and then n.
func AppendInt(dst []byte, opening string, n int) []byte {
	return strconv.AppendInt(append(dst, opening...), int64(n), 10)
}

// AppendComma appends the comma before element i of an array: none before the first.
func AppendComma(dst []byte, i int) []byte {
	if i == 0 {
		return dst
	}
	return append(dst, ',')
}
