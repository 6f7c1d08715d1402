package load

import (
	"bytes"
	"errors"
)

// maxEvent bounds the data of one event and one line, in bytes.
const maxEvent = 4 << 20

// errEvent is an event or a line beyond maxEvent.
var errEvent = errors.New("event of the stream is too long")

// sseDecoder splits a stream into events by the standard of server-sent events: a line ends with LF, CRLF or
// CR, an event ends at an empty line, and LF joins the data lines. Comments, ids and retry times are dropped.
// It keeps the incomplete part of an event, and allocates only to grow beyond its largest size so far.
type sseDecoder struct {
	line    []byte // beginning of an incomplete line
	data    []byte
	hasData bool
	isError bool // the event is named "error"
	afterCR bool // an LF now belongs to the previous line
	pastBOM bool // past the place of a byte order mark
}

// reset prepares e for another stream.
func (e *sseDecoder) reset() {
	*e = sseDecoder{line: reuseSlice(e.line), data: reuseSlice(e.data)}
}

// decodePiece consumes the next piece of the stream and calls visit for every event which ends in it. data is
// valid during the call. It stops at visit's error.
func (e *sseDecoder) decodePiece(piece []byte, visit func(data []byte, isError bool) error) error {
	for len(piece) > 0 {
		if e.afterCR {
			e.afterCR = false
			if piece[0] == '\n' {
				piece = piece[1:]
				continue
			}
		}
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			end = len(piece)
		}
		if cr := bytes.IndexByte(piece[:end], '\r'); cr >= 0 {
			end = cr
			e.afterCR = true
		}
		if len(e.line)+end > maxEvent {
			return errEvent
		}
		if end == len(piece) {
			e.line = append(e.line, piece...)
			return nil
		}
		line := piece[:end]
		if len(e.line) > 0 {
			e.line = append(e.line, line...)
			line = e.line
		}
		if err := e.handleLine(line, visit); err != nil {
			return err
		}
		e.line = e.line[:0]
		piece = piece[end+1:]
	}
	return nil
}

// handleLine handles one line.
func (e *sseDecoder) handleLine(line []byte, visit func(data []byte, isError bool) error) error {
	if !e.pastBOM {
		e.pastBOM = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		data, has, isError := e.data, e.hasData, e.isError
		e.data, e.hasData, e.isError = e.data[:0], false, false
		if !has {
			return nil
		}
		return visit(data, isError)
	}
	name, value := line, []byte(nil)
	if i := bytes.IndexByte(line, ':'); i >= 0 {
		name, value = line[:i], line[i+1:]
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
	}
	switch string(name) {
	case "data":
		if e.hasData {
			e.data = append(e.data, '\n')
		}
		if len(e.data)+len(value) > maxEvent {
			return errEvent
		}
		e.data, e.hasData = append(e.data, value...), true
	case "event":
		e.isError = string(value) == "error"
	}
	return nil
}
