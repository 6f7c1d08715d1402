package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// shardFile is one open safetensors file.
type file struct {
	name    string // base name, for error messages
	f       *os.File
	data    int64 // offset of the data part
	entries []entry
}

func openFile(path, name string) (*file, error) {
	f, err := openRegular(path, name)
	if err != nil {
		return nil, err
	}
	s := &file{name: name, f: f}
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
func (s *file) readHeader() error {
	info, err := s.f.Stat()
	if err != nil {
		return err
	}
	var prefix [8]byte
	if info.Size() < int64(len(prefix)) {
		return fmt.Errorf("%d bytes are no safetensors file", info.Size())
	}
	if _, err := s.f.ReadAt(prefix[:], 0); err != nil {
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
	if _, err := s.f.ReadAt(header, int64(len(prefix))); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	s.data = int64(len(prefix)) + int64(n)
	s.entries, err = decodeHeader(header, rest-int64(n))
	return err
}

// chunkBytes is how many bytes are converted at a time, so that a tensor is never in memory twice.
const chunk = 1 << 20

// readTensor returns the tensor of e as float32. Its size has been checked against the file's.
func (s *file) read(e *entry) (Tensor, error) {
	if !e.dtype.float() {
		return Tensor{}, fmt.Errorf("is %s, want BF16, F16 or F32; quantised checkpoints are not supported", e.dtype)
	}
	unit := e.dtype.size()
	t := Tensor{Shape: e.shape, Data: make([]float32, (e.end-e.begin)/unit)}
	buf := make([]byte, min(chunk, e.end-e.begin))
	for done := int64(0); done < e.end-e.begin; {
		n := min(int64(len(buf)), e.end-e.begin-done)
		if _, err := s.f.ReadAt(buf[:n], s.data+e.begin+done); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Tensor{}, fmt.Errorf("read: %w", err)
		}
		first := done / unit
		convert(t.Data[first:first+n/unit], buf[:n], e.dtype)
		done += n
	}
	return t, nil
}
