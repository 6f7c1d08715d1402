package checkpoint

import (
	"encoding/binary"
	"math"
)

// convertElements decodes little-endian elements of type d from src into dst, which has
// one element for each in src. Every F16 and BF16 value is a float32, so nothing
// is rounded. The dtype must be a float one.
func convertElements(dst []float32, src []byte, d dtype) {
	switch d {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case "F16":
		for i := range dst {
			dst[i] = fromHalf(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// fromHalf widens an IEEE 754 binary16: 1 sign bit, 5 of exponent, 10 of
// fraction.
func fromHalf(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exponent := uint32(h>>10) & 31
	fraction := uint32(h) & 1023
	switch exponent {
	case 0: // zero or subnormal: fraction counts units of 2^-24, exactly a float32
		value := float32(fraction) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(value))
	case 31: // infinity or NaN
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

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
