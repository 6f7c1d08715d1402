package remote

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// MaxEvent bounds one event of a stream in bytes.
const MaxEvent = 8 << 20

// errLong says that an event exceeds MaxEvent.
var errLong = errors.New("an event of the stream is longer than 8 MiB")

// EventReader reads a stream of server-sent events: lines that end with LF or CRLF, comments, fields in any
// order, data in several lines. It keeps one buffer and allocates nothing per event. Create it with
// [NewEventReader] and Release it.
type EventReader struct {
	src   io.Reader
	buf   []byte
	start int // start of the bytes not yet returned
	end   int // end of the bytes read into buf
	eof   error

	name, data, raw []byte
	joined          []byte // data of several lines
}

var eventBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// NewEventReader returns a reader of the events in src.
func NewEventReader(src io.Reader) *EventReader {
	return &EventReader{src: src, buf: *eventBuffers.Get().(*[]byte)}
}

// Release returns the buffer to the pool. Nothing of the events may be used after it.
func (e *EventReader) Release() {
	if cap(e.buf) <= 1<<20 {
		b := e.buf[:cap(e.buf)]
		eventBuffers.Put(&b)
	}
	*e = EventReader{eof: io.ErrClosedPipe}
}

// RawEvent returns the bytes of the last event, with the empty line that ends it and without comments. They
// are valid until Next.
func (e *EventReader) RawEvent() []byte { return e.raw }

// Next returns the data of the next event that has data or a name, valid until the next call. The error is
// io.EOF at the stream's end, any other error if the stream broke off. An event cut short by the stream's end
// counts.
func (e *EventReader) Next() ([]byte, error) {
	for {
		ok, err := e.readEvent()
		if ok || err != nil {
			return e.data, err
		}
	}
}

// HasBuffered reports whether Next will return without reading, because another event is buffered. It may
// return false for some buffered events.
func (e *EventReader) HasBuffered() bool {
	rest := e.buf[e.start:e.end]
	return bytes.HasPrefix(rest, dataPrefix) && bytes.Contains(rest, blankLine)
}

var dataPrefix, blankLine = []byte("data:"), []byte("\n\n")

// byteRange is a part of the buffer, relative to the start of the event.
type byteRange struct{ from, to int }

// readEvent reads up to an empty line. ok is false if there was nothing to return.
func (e *EventReader) readEvent() (ok bool, err error) {
	e.name, e.data, e.raw = nil, nil, nil
	var name, data byteRange
	var fields, hasData, several bool
	off := 0 // of the line, relative to the start of the event
	for {
		n, width, err := e.readLine(off)
		if err != nil && (err != io.EOF || !fields) {
			return false, err
		}
		line := e.buf[e.start+off:][:n]
		switch {
		case err == nil && n == 0 && !fields: // between events
			e.start += off + width
			off = 0
			continue
		case n == 0: // the end, of the event or of the stream
			off += width
			e.raw = e.buf[e.start:][:off]
			e.name = e.raw[name.from:name.to]
			if e.data = e.raw[data.from:data.to]; several {
				e.data = e.joined
			}
			e.start += off
			return hasData || len(e.name) > 0, nil
		case line[0] == ':' && !fields: // a comment before an event
			e.start += width
			continue
		case line[0] == ':': // a comment inside an event is removed, so that RawEvent has none
			copy(e.buf[e.start+off:], e.buf[e.start+off+width:e.end])
			e.end -= width
			continue
		}
		fields = true
		key, value := splitField(line)
		from := off + n - len(value)
		switch {
		case string(key) == "data" && !hasData:
			hasData, data = true, byteRange{from, off + n}
		case string(key) == "data":
			if !several {
				several = true
				e.joined = append(e.joined[:0], e.buf[e.start+data.from:e.start+data.to]...)
			}
			e.joined = append(append(e.joined, '\n'), value...)
		case string(key) == "event":
			name = byteRange{from, off + n}
		}
		off += width
	}
}

// splitField splits a line at its colon, and drops one space after it.
func splitField(line []byte) (key, value []byte) {
	i := bytes.IndexByte(line, ':')
	if i < 0 {
		return line, line[len(line):]
	}
	value = line[i+1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return line[:i], value
}

// readLine returns the length of the line at off, without its end and with it. A last line without an end
// counts; after it comes io.EOF.
func (e *EventReader) readLine(off int) (n, width int, err error) {
	for seen := off; ; {
		if i := bytes.IndexByte(e.buf[e.start+seen:e.end], '\n'); i >= 0 {
			n = seen - off + i
			width = n + 1
			break
		}
		seen = e.end - e.start
		if e.eof != nil {
			if e.eof != io.EOF || seen == off {
				return 0, 0, e.eof
			}
			n = seen - off
			width = n
			break
		}
		if err := e.fillBuffer(); err != nil {
			return 0, 0, err
		}
	}
	if n > 0 && e.buf[e.start+off+n-1] == '\r' {
		n--
	}
	return n, width, nil
}

// fillBuffer reads more, and makes room for it first: it moves the rest to the front or, if the rest fills
// the buffer, doubles the buffer.
func (e *EventReader) fillBuffer() error {
	if e.end == len(e.buf) {
		switch {
		case e.start > 0:
			e.end = copy(e.buf, e.buf[e.start:e.end])
			e.start = 0
		case len(e.buf) >= MaxEvent:
			return errLong
		default:
			e.buf = append(e.buf, make([]byte, len(e.buf))...)
		}
	}
	n, err := e.src.Read(e.buf[e.end:])
	e.end += n
	e.eof = err
	return nil
}
