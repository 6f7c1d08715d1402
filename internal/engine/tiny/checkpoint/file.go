package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// shardFile is one open safetensors file.
type shardFile struct {
	name      string // base name, for error messages
	handle    *os.File
	dataStart int64 // offset of the data part
	entries   []tensorEntry
}

func openFile(path, name string) (*shardFile, error) {
	f, err := openRegular(path, name)
	if err != nil {
		return nil, err
	}
	s := &shardFile{name: name, handle: f}
	if err := s.readHeader(); err != nil {
		f.Close()
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return s, nil
}

// openRegular opens a file to read. It refuses anything but a regular file before opening it: opening a named
// pipe would wait for a writer.
func openRegular(path, name string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("checkpoint %s: not a regular file but of type %s", name, info.Mode().Type())
	}
	return os.Open(path)
}

// readHeader reads the length, then the header. It checks the length against the size of the file before it
// allocates memory for it.
func (s *shardFile) readHeader() error {
	info, err := s.handle.Stat()
	if err != nil {
		return err
	}
	var prefix [8]byte
	if info.Size() < int64(len(prefix)) {
		return fmt.Errorf("%d bytes are no safetensors file", info.Size())
	}
	if _, err := s.handle.ReadAt(prefix[:], 0); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	rest := info.Size() - int64(len(prefix))
	switch {
	case n > maxHeader:
		return fmt.Errorf("header of %d bytes, the format allows %d; this is no safetensors file", n, maxHeader)
	case int64(n) > rest:
		return fmt.Errorf("header of %d bytes in a file with %d left; the file is truncated, fetch it again", n, rest)
	}
	header := make([]byte, n)
	if _, err := s.handle.ReadAt(header, int64(len(prefix))); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	s.dataStart = int64(len(prefix)) + int64(n)
	s.entries, err = decodeHeader(header, rest-int64(n))
	return err
}

// chunkBytes is how many bytes are converted at a time, so that a tensor is never in memory twice.
const chunkBytes = 1 << 20

// readTensor returns the tensor of e as float32. Its size has been checked against the file's.
func (s *shardFile) readTensor(e *tensorEntry) (Tensor, error) {
	if !e.dtype.isFloat() {
		return Tensor{}, fmt.Errorf("is %s, want BF16, F16 or F32; quantised checkpoints are not supported", e.dtype)
	}
	unit := e.dtype.byteSize()
	t := Tensor{Shape: e.shape, Data: make([]float32, (e.end-e.begin)/unit)}
	buf := make([]byte, min(chunkBytes, e.end-e.begin))
	for done := int64(0); done < e.end-e.begin; {
		n := min(int64(len(buf)), e.end-e.begin-done)
		if _, err := s.handle.ReadAt(buf[:n], s.dataStart+e.begin+done); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Tensor{}, fmt.Errorf("read: %w", err)
		}
		first := done / unit
		convertElements(t.Data[first:first+n/unit], buf[:n], e.dtype)
		done += n
	}
	return t, nil
}

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
