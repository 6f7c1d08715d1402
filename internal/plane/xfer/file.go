package xfer

import (
	"errors"
	"io"
	"net"
	"os"
)

// ChunkDigests returns the digests of the chunks of b, for a file with these bytes.
func ChunkDigests(b []byte) []Digest {
	var list []Digest
	for len(b) > 0 {
		n := min(len(b), ChunkSize)
		list = append(list, digestBytes(b[:n]))
		b = b[n:]
	}
	return list
}

// WriteFile writes n bytes of f, from offset, to w, as Write does. digests, if not nil, are the digests of
// the chunks of these bytes, from when they were stored: the owner refuses a file which has changed.
// With them, over TCP without TLS, at the boundary of a chunk and up to another or to the end of the
// transfer, the kernel sends the file (sendfile): no byte passes through this process. Otherwise the
// file is read, in shared memory straight into the region.
func WriteFile(w TransferWriter, f *os.File, offset, n int64, digests []Digest) error {
	if lw, ok := w.(*laneWriter); ok {
		return lw.writeFile(f, offset, n, digests)
	}
	buf := make([]byte, min(n, ChunkSize))
	for n > 0 {
		part := buf[:min(n, int64(len(buf)))]
		if _, err := f.ReadAt(part, offset); err != nil {
			err = errReadFile(err)
			w.Abort(err)
			return err
		}
		if err := w.Write(part); err != nil {
			return err
		}
		offset += int64(len(part))
		n -= int64(len(part))
	}
	return nil
}

// errReadFile is the outcome of a transfer whose file cannot be read, or is too short.
func errReadFile(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return newFailure(Aborted, "write: reading the file failed: %w", err)
}

// writeFile is WriteFile over a lane.
func (w *laneWriter) writeFile(f *os.File, offset, n int64, digests []Digest) error {
	if err := w.checkOpen(); err != nil {
		return err
	}
	if n < 0 || uint64(n) > w.size-w.offset-uint64(w.fill) {
		return w.fail(newFailure(Invalid, "write: more than the %d bytes of the transfer", w.size))
	}
	conn := w.sendsFiles(n, digests)
	for n > 0 {
		want := chunkLength(w.offset, w.size)
		if conn != nil {
			if err := w.sendFileChunk(conn, f, offset, want, digests[0]); err != nil {
				return w.fail(err)
			}
			digests = digests[1:]
			offset += int64(want)
			n -= int64(want)
			continue
		}
		if w.fill == 0 {
			if err := w.reserveChunk(); err != nil {
				return w.fail(err)
			}
		}
		part := w.buf[w.fill:min(int64(want), int64(w.fill)+n)]
		if _, err := f.ReadAt(part, offset); err != nil {
			return w.fail(errReadFile(err))
		}
		offset += int64(len(part))
		n -= int64(len(part))
		if w.fill += len(part); w.fill == want {
			w.fill = 0
			if err := w.sendChunk(w.buf[:want], digestBytes(w.buf[:want])); err != nil {
				return w.fail(err)
			}
		}
	}
	return nil
}

// sendsFiles returns the connection if the kernel can send the next n bytes from a file, with these
// digests; otherwise nil.
func (w *laneWriter) sendsFiles(n int64, digests []Digest) *net.TCPConn {
	conn, ok := w.lane.conn.(*net.TCPConn)
	whole := n%ChunkSize == 0 || uint64(n) == w.size-w.offset
	if !ok || !canSendFile || w.fill > 0 || !whole || int64(len(digests)) != (n+ChunkSize-1)/ChunkSize {
		return nil
	}
	return conn
}

// sendFileChunk sends the current chunk, n bytes of f from offset.
func (w *laneWriter) sendFileChunk(conn *net.TCPConn, f *os.File, offset int64, n int, d Digest) error {
	l := w.lane
	if err := l.extendDeadline(w.ctx, w.pool.cfg.Silence); err != nil {
		return err
	}
	l.out = appendChunk(l.out, chunkHeader{offset: w.offset, size: uint32(n), digest: d})
	w.total.addChunk(d, n)
	w.offset += uint64(n)
	if err := w.flush(nil, nil); err != nil {
		return err
	}
	w.cut = true // until the whole chunk is sent
	if err := sendFile(conn, f, offset, n); err != nil {
		return err
	}
	w.cut = false
	return nil
}
