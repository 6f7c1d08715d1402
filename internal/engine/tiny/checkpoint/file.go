package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
