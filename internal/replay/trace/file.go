package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// openOrSpool checks whether the file can be read repeatedly, and copies it if not.
func (w *Workload) openOrSpool() error {
	if w.path == "-" {
		w.name = "<stdin>"
		if w.opts.Stdin == nil {
			return errors.New("there is no standard input here; name a file")
		}
		return w.copyToSpool(w.opts.Stdin)
	}
	stat, err := os.Stat(w.path)
	switch {
	case err != nil:
		return unwrapPathError(err)
	case stat.IsDir():
		return errors.New("is a directory; name a file in it")
	case stat.Mode().IsRegular():
		w.stat = stat
		return nil
	}
	file, err := os.Open(w.path)
	if err != nil {
		return unwrapPathError(err)
	}
	return errors.Join(w.copyToSpool(file), file.Close())
}

// copyToSpool copies from to a temporary file without a name, which disappears with the process.
func (w *Workload) copyToSpool(from io.Reader) error {
	spool, err := os.CreateTemp("", "penstock-trace-*")
	if err != nil {
		return err
	}
	n, err := io.Copy(spool, io.LimitReader(from, w.opts.SpoolBytes+1))
	if err == nil && n > w.opts.SpoolBytes {
		err = fmt.Errorf("what can be read only once is copied, and it has more than %d bytes; put it into a file and name that", w.opts.SpoolBytes)
	}
	if err = errors.Join(err, os.Remove(spool.Name())); err != nil {
		return errors.Join(err, spool.Close())
	}
	w.spool = spool
	return nil
}

// unwrapPathError removes the path from an error of the operating system: the message already has it.
func unwrapPathError(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path.Err
	}
	return err
}

// textReader reads a file's text, decompressed.
type textReader struct {
	*bufio.Reader
	file *os.File // nil if the workload owns it
}

const readBuffer = 256 << 10

// openText returns the text from its start.
func (w *Workload) openText() (*textReader, error) {
	c := &textReader{}
	var raw io.Reader
	if w.stat == nil {
		if w.spool == nil {
			return nil, os.ErrClosed
		}
		raw = io.NewSectionReader(w.spool, 0, math.MaxInt64)
	} else {
		file, err := os.Open(w.path)
		if err != nil {
			return nil, unwrapPathError(err)
		}
		stat, err := file.Stat()
		if err == nil && (!os.SameFile(stat, w.stat) || stat.Size() != w.stat.Size() || !stat.ModTime().Equal(w.stat.ModTime())) {
			err = errors.New("the file changed since it was first read; start again")
		}
		if err != nil {
			return nil, errors.Join(unwrapPathError(err), file.Close())
		}
		c.file, raw = file, file
	}
	if err := c.detectCompression(raw); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// detectCompression detects compression by the first bytes of raw.
func (c *textReader) detectCompression(raw io.Reader) error {
	c.Reader = bufio.NewReaderSize(raw, readBuffer)
	magic, err := c.Peek(4)
	if err != nil && err != io.EOF {
		return unwrapPathError(err)
	}
	is := func(prefix string) bool { return bytes.HasPrefix(magic, []byte(prefix)) }
	switch {
	case is("\x1f\x8b"):
		plain, err := gzip.NewReader(c.Reader)
		if err != nil {
			return fmt.Errorf("unpack gzip: %w", err)
		}
		c.Reader = bufio.NewReaderSize(plain, readBuffer)
	case is("\x28\xb5\x2f\xfd"):
		return errors.New("is compressed by zstd; only gzip is read, so unpack it first")
	case is("\xfd7zX"):
		return errors.New("is compressed by xz; only gzip is read, so unpack it first")
	case is("BZh"):
		return errors.New("is compressed by bzip2; only gzip is read, so unpack it first")
	case is("PK\x03\x04"):
		return errors.New("is a zip archive; only gzip is read, so unpack it first")
	case is("PAR1"):
		return errors.New("is a Parquet file; write it as JSON lines first")
	}
	mark, err := c.Peek(3)
	if err != nil && err != io.EOF {
		return fmt.Errorf("unpack: %w", err)
	}
	if string(mark) == "\ufeff" {
		_, _ = c.Discard(len(mark)) // it was there in Peek
	}
	return nil
}

// Close closes the file.
func (c *textReader) Close() error {
	if c.file == nil {
		return nil
	}
	file := c.file
	c.file = nil
	return file.Close()
}
