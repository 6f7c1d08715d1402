package media

// ElementType is the type of the elements of a tensor of numbers.
type ElementType uint8

// The element types. The zero value is none of them. The numbers are part of the wire format: append only.
const (
	Float32 ElementType = iota + 1
	Float16
	BFloat16
)

// Size returns the size of an element in bytes; 0 if the type is unknown.
func (t ElementType) Size() int {
	switch t {
	case Float32:
		return 4
	case Float16, BFloat16:
		return 2
	}
	return 0
}

// String returns the name which checkpoints and engines use.
func (t ElementType) String() string {
	switch t {
	case Float32:
		return "float32"
	case Float16:
		return "float16"
	case BFloat16:
		return "bfloat16"
	}
	return "unknown"
}

// EncoderRows are the output of an encoder for one object: one row for each of the tokens which stand for the
// object in a prompt.
type EncoderRows struct {
	// Shape is rows, then the width of a row; encoders which feed several layers of the model have the layers
	// first.
	Shape []int
	Type  ElementType
	// Grid is the number of frames, rows and columns of merged patches, from which models compute positions;
	// zeros if the model does not need it.
	Grid [3]int
	// Encoder names what must be equal for two encoders to make the same rows: weights, processor settings and
	// numerics.
	Encoder string
	// Digest is the digest of the elements, by the bulk-transfer plane's function; nil if they have not been
	// read here.
	Digest []byte
	// Data are the elements, little-endian, row by row, if they are sent inline. Otherwise Handle says where
	// they can be fetched; only the process which wrote the handle reads it.
	Data   []byte
	Handle []byte
}

// Bytes returns the size of the elements in bytes; 0 if the shape is empty, the type unknown, or the product
// over limit.
func (r *EncoderRows) Bytes(limit int) int {
	n := r.Type.Size()
	if len(r.Shape) == 0 {
		return 0
	}
	for _, d := range r.Shape {
		if d <= 0 || n == 0 || n > limit/d {
			return 0
		}
		n *= d
	}
	return n
}
