package sim

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// The arrays of a profile file, as Dynamo's profiler names them.
const (
	arrayISL     = "prefill_isl"
	arrayTTFT    = "prefill_ttft_ms"
	arrayKV      = "decode_active_kv_tokens"
	arrayContext = "decode_context_length"
	arrayITL     = "decode_itl"
)

// maxProfile bounds a profile file, and each array in it, in bytes. A typical one has a few kilobytes.
const maxProfile = 8 << 20

// maxMembers bounds the arrays of a file; a profile uses five.
const maxMembers = 64

// OpenProfile reads a profile file; see ReadProfile.
func OpenProfile(path string) (*Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("sim profile: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxProfile+1))
	if err != nil {
		return nil, fmt.Errorf("sim profile: %w", err)
	}
	p, err := ReadProfile(data)
	if err != nil {
		return nil, fmt.Errorf("sim profile %s: %w", path, err)
	}
	return p, nil
}

// ReadProfile reads a profile in NumPy's NPZ format, compressed or not, with the
// one-dimensional arrays prefill_isl, prefill_ttft_ms, decode_active_kv_tokens,
// decode_context_length and the two-dimensional decode_itl, a row for each number
// of tokens in the cache. Other arrays are ignored. It keeps no part of data.
func ReadProfile(data []byte) (*Profile, error) {
	if len(data) > maxProfile {
		return nil, fmt.Errorf("larger than %d bytes", maxProfile)
	}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("not an NPZ file: %w", err)
	}
	if len(archive.File) > maxMembers {
		return nil, fmt.Errorf("%d arrays, more than %d", len(archive.File), maxMembers)
	}
	var lists [4][]float64
	for i, name := range []string{arrayISL, arrayTTFT, arrayKV, arrayContext} {
		a, err := readMember(archive, name)
		if err == nil && len(a.shape) != 1 {
			err = fmt.Errorf("%d dimensions, not 1", len(a.shape))
		}
		if err != nil {
			return nil, fmt.Errorf("array %s: %w", name, err)
		}
		lists[i] = a.values
	}
	grid, err := readMember(archive, arrayITL)
	if err == nil && len(grid.shape) != 2 {
		err = fmt.Errorf("%d dimensions, not 2", len(grid.shape))
	}
	if err != nil {
		return nil, fmt.Errorf("array %s: %w", arrayITL, err)
	}
	p, err := NewProfile(lists[0], lists[1], lists[2], lists[3], grid.toRows())
	if err != nil {
		return nil, fmt.Errorf("array %w", err)
	}
	return p, nil
}

// readMember reads one array of an archive.
func readMember(archive *zip.Reader, name string) (*npyArray, error) {
	var found *zip.File
	for _, f := range archive.File {
		if f.Name != name+".npy" {
			continue
		}
		if found != nil {
			return nil, errors.New("it is there twice")
		}
		found = f
	}
	if found == nil {
		return nil, errors.New("it is missing")
	}
	r, err := found.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxProfile+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxProfile {
		return nil, fmt.Errorf("larger than %d bytes", maxProfile)
	}
	return readArray(raw)
}

// npyArray is an array of numbers in NumPy's NPY format.
type npyArray struct {
	shape   []int
	fortran bool // columns are contiguous, not rows
	values  []float64
}

// toRows returns the rows of a two-dimensional array.
func (a *npyArray) toRows() [][]float64 {
	rows := make([][]float64, a.shape[0])
	flat := a.values
	if a.fortran {
		flat = make([]float64, len(a.values))
		for i, v := range a.values {
			row, col := i%a.shape[0], i/a.shape[0]
			flat[row*a.shape[1]+col] = v
		}
	}
	for i := range rows {
		rows[i] = flat[i*a.shape[1] : (i+1)*a.shape[1]]
	}
	return rows
}

// npyMagic starts the header of an NPY file: magic, version, length of the text. The text is a dictionary in
// Python's syntax with these three keys.
const npyMagic = "\x93NUMPY"

var (
	npyDescr = regexp.MustCompile(`'descr': *'([<>|=][a-z][0-9]+)'`)
	npyOrder = regexp.MustCompile(`'fortran_order': *(True|False)`)
	npyShape = regexp.MustCompile(`'shape': *\(([0-9, ]*)\)`)
)

// readArray reads an NPY file of any version. It must use all of raw: a file that is truncated, or longer
// than its header says, is invalid.
func readArray(raw []byte) (*npyArray, error) {
	header, body, err := cutHeader(raw)
	if err != nil {
		return nil, err
	}
	descr, order, shape := npyDescr.FindSubmatch(header), npyOrder.FindSubmatch(header), npyShape.FindSubmatch(header)
	if descr == nil || order == nil || shape == nil {
		return nil, fmt.Errorf("its header is not one of numbers: %.80q", header)
	}
	number, size, err := numberDecoder(string(descr[1]))
	if err != nil {
		return nil, err
	}
	a := &npyArray{fortran: string(order[1]) == "True"}
	if a.shape, err = parseShape(string(shape[1]), len(body)/size); err != nil {
		return nil, err
	}
	n := 1
	for _, d := range a.shape {
		n *= d
	}
	if n*size != len(body) {
		return nil, fmt.Errorf("%d bytes for %d numbers of %d", len(body), n, size)
	}
	a.values = make([]float64, n)
	for i := range a.values {
		a.values[i] = number(body[i*size:])
	}
	return a, nil
}

// cutHeader splits an NPY file into the text of its header and its numbers.
func cutHeader(raw []byte) (header, body []byte, err error) {
	rest, ok := bytes.CutPrefix(raw, []byte(npyMagic))
	if !ok || len(rest) < 4 {
		return nil, nil, errors.New("not in the NPY format")
	}
	length := uint64(binary.LittleEndian.Uint16(rest[2:]))
	from := uint64(4)
	switch version := rest[0]; {
	case version == 1:
	case version == 2 || version == 3:
		if len(rest) < 6 {
			return nil, nil, errors.New("its header is cut short")
		}
		length, from = uint64(binary.LittleEndian.Uint32(rest[2:])), 6
	default:
		return nil, nil, fmt.Errorf("version %d of the NPY format is not known", version)
	}
	if length > uint64(len(rest))-from {
		return nil, nil, errors.New("its header is cut short")
	}
	return rest[from : from+length], rest[from+length:], nil
}

// parseShape parses the dimensions in text, whose product is at most limit.
func parseShape(text string, limit int) ([]int, error) {
	var shape []int
	n := 1
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		d, err := strconv.Atoi(part)
		if err != nil || len(shape) == 2 {
			return nil, fmt.Errorf("shape (%.40s) is not of one or two dimensions", text)
		}
		if d == 0 || d > limit/n {
			return nil, fmt.Errorf("shape (%.40s) does not fit the %d numbers there", text, limit)
		}
		n *= d
		shape = append(shape, d)
	}
	return shape, nil
}

// numberDecoder returns a function that reads a number of an array of type descr, and the size of a number.
func numberDecoder(descr string) (number func([]byte) float64, size int, err error) {
	var order binary.ByteOrder = binary.LittleEndian
	if descr[0] == '>' {
		order = binary.BigEndian
	}
	switch descr[1:] {
	case "f8":
		return func(b []byte) float64 { return math.Float64frombits(order.Uint64(b)) }, 8, nil
	case "f4":
		return func(b []byte) float64 { return float64(math.Float32frombits(order.Uint32(b))) }, 4, nil
	case "i8":
		return func(b []byte) float64 { return float64(int64(order.Uint64(b))) }, 8, nil
	case "u8":
		return func(b []byte) float64 { return float64(order.Uint64(b)) }, 8, nil
	case "i4":
		return func(b []byte) float64 { return float64(int32(order.Uint32(b))) }, 4, nil
	case "u4":
		return func(b []byte) float64 { return float64(order.Uint32(b)) }, 4, nil
	}
	return nil, 0, fmt.Errorf("numbers of type %s: must be f4, f8, i4, i8, u4 or u8", descr)
}
