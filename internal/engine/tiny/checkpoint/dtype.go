package checkpoint

// dtype is the element type of a stored tensor, by its name in the format.
type dtype string

// byteSize returns the bytes of one element; 0 for a name which the format does not have, or which packs
// several elements into a byte.
func (d dtype) byteSize() int64 {
	switch d {
	case "F64", "I64", "U64", "C64":
		return 8
	case "F32", "I32", "U32":
		return 4
	case "F16", "BF16", "I16", "U16":
		return 2
	case "BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0":
		return 1
	}
	return 0
}

// isFloat reports whether tensors of this type can be read as float32.
func (d dtype) isFloat() bool {
	return d == "F32" || d == "F16" || d == "BF16"
}
