package load

import (
	"bytes"
	"errors"
	"io"
	"math"
	"time"
)

// Bounds of a response.
const (
	maxHead    = 32 << 10 // bytes of status line and headers; also the size of a read
	maxHeaders = 256
	maxInterim = 8 // 1xx responses before the final one
)

// errMalformed is a response which is not HTTP/1.1 as this reader accepts it.
var errMalformed = errors.New("answer is not HTTP/1.1")

// bodyFraming says how the body of a response ends.
type bodyFraming uint8

const (
	lengthFraming bodyFraming = iota
	chunkedFraming
	closeFraming
)

// responseHead has the relevant parts of the status line and headers.
type responseHead struct {
	status  int
	http10  bool // HTTP/1.0
	framing bodyFraming
	length  int64 // of a body with lengthFraming
	// keepAlive reports that the connection can be used again after the body.
	keepAlive   bool
	eventStream bool   // the content type is text/event-stream
	compressed  bool   // the body is compressed, which was not requested
	worker      uint64 // x-penstock-worker; 0 without
}

// responseReader reads responses from one connection, first the head, then the body in pieces. It does not
// allocate once it exists. Every piece is from one read of the connection, and readAt is when that read
// returned: times are taken where bytes arrive, not where they are parsed.
type responseReader struct {
	src    io.Reader
	now    func() time.Duration
	readAt time.Duration

	buf  []byte
	r, w int // buf[r:w] is not consumed yet

	responseHead
	left    int64 // of the body, or of the chunk
	inChunk bool  // the end of a chunk's data is still to be read
	done    bool  // the body is consumed, including its end
}

func newResponseReader(src io.Reader, now func() time.Duration) *responseReader {
	return &responseReader{src: src, now: now, buf: make([]byte, maxHead)}
}

// fillBuffer reads once from the connection.
func (p *responseReader) fillBuffer() error {
	if p.r == p.w {
		p.r, p.w = 0, 0
	}
	if p.w == len(p.buf) {
		if p.r == 0 {
			return errMalformed // a line without end
		}
		p.w = copy(p.buf, p.buf[p.r:p.w])
		p.r = 0
	}
	n, err := p.src.Read(p.buf[p.w:])
	p.readAt = p.now()
	p.w += n
	if n > 0 {
		return nil // an error will occur again at the next read
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// readLine returns the next line without its end, which is CRLF or LF. It is valid until the next call.
func (p *responseReader) readLine() ([]byte, error) {
	line, err := p.readUpToLF()
	return bytes.TrimSuffix(line, []byte{'\r'}), err
}

// readStrictLine is readLine with a required CRLF.
func (p *responseReader) readStrictLine() ([]byte, error) {
	line, err := p.readUpToLF()
	line, ok := bytes.CutSuffix(line, []byte{'\r'})
	if err == nil && !ok {
		err = errMalformed
	}
	return line, err
}

func (p *responseReader) readUpToLF() ([]byte, error) {
	for seen := 0; ; {
		if i := bytes.IndexByte(p.buf[p.r+seen:p.w], '\n'); i >= 0 {
			line := p.buf[p.r : p.r+seen+i]
			p.r += seen + i + 1
			return line, nil
		}
		seen = p.w - p.r
		if err := p.fillBuffer(); err != nil {
			return nil, err
		}
	}
}

// readHead reads up to the body. The error is io.EOF if the connection was closed before the first byte of a
// response.
func (p *responseReader) readHead() error {
	for range maxInterim {
		err := p.readOneHead()
		if err != nil || p.status >= 200 {
			return err
		}
	}
	return errMalformed
}

func (p *responseReader) readOneHead() error {
	p.responseHead = responseHead{framing: closeFraming}
	p.inChunk, p.done, p.left = false, false, 0
	for p.r == p.w {
		if err := p.fillBuffer(); err != nil {
			return err
		}
	}
	line, err := p.readLine()
	if err != nil {
		return unexpectedEOF(err)
	}
	if !p.parseStatusLine(line) {
		return errMalformed
	}
	length := int64(-1)
	chunked := false
	for n := 0; ; n++ {
		if line, err = p.readLine(); err != nil {
			return unexpectedEOF(err)
		}
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte{':'})
		if n == maxHeaders || !ok || !validName(name) || !validValue(value) {
			return errMalformed
		}
		if !p.parseHeader(name, bytes.Trim(value, " \t"), &length, &chunked) {
			return errMalformed
		}
	}
	return p.decideFraming(length, chunked)
}

// decideFraming decides how the body ends.
func (p *responseReader) decideFraming(length int64, chunked bool) error {
	switch {
	case p.status < 200:
		return nil
	case p.status == 204 || p.status == 304:
		p.framing, p.length = lengthFraming, 0
	case chunked && (length >= 0 || p.http10):
		return errMalformed // two lengths: clients which believe different ones read different responses (request smuggling)
	case chunked:
		p.framing = chunkedFraming
	case length >= 0:
		p.framing, p.length = lengthFraming, length
	default:
		p.keepAlive = false
	}
	p.left = p.length
	p.done = p.framing == lengthFraming && p.left == 0
	return nil
}

func (p *responseReader) parseStatusLine(line []byte) bool {
	const proto = "HTTP/1."
	if len(line) < len(proto)+5 || string(line[:len(proto)]) != proto || line[8] != ' ' || line[7] != '0' && line[7] != '1' {
		return false
	}
	if len(line) > 12 && line[12] != ' ' {
		return false
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return false
		}
		p.status = p.status*10 + int(c-'0')
	}
	p.http10 = line[7] == '0'
	p.keepAlive = !p.http10
	return p.status >= 100
}

// parseHeader reads one header; false if it is invalid.
func (p *responseReader) parseHeader(name, value []byte, length *int64, chunked *bool) bool {
	switch {
	case equalLower(name, "content-length"):
		n, ok := parseNumber(value)
		if !ok || *length >= 0 && *length != n {
			return false
		}
		*length = n
	case equalLower(name, "transfer-encoding"):
		if *chunked || !equalLower(value, "chunked") {
			return false
		}
		*chunked = true
	case equalLower(name, "connection"):
		for rest := value; len(rest) > 0; {
			var word []byte
			word, rest, _ = bytes.Cut(rest, []byte{','})
			switch word = bytes.Trim(word, " \t"); {
			case equalLower(word, "close"):
				p.keepAlive = false
			case equalLower(word, "upgrade"):
				return false
			}
		}
	case equalLower(name, "content-type"):
		kind, _, _ := bytes.Cut(value, []byte{';'})
		p.eventStream = equalLower(bytes.Trim(kind, " \t"), "text/event-stream")
	case equalLower(name, "content-encoding"):
		p.compressed = p.compressed || len(value) > 0 && !equalLower(value, "identity")
	case equalLower(name, "x-penstock-worker"):
		if n, ok := parseNumber(value); ok {
			p.worker = uint64(n)
		}
	}
	return true
}

// nextPiece returns the next piece of the body, io.EOF after its end. It is valid until the next call.
func (p *responseReader) nextPiece() ([]byte, error) {
	if p.done {
		return nil, io.EOF
	}
	if p.framing == chunkedFraming && p.left == 0 {
		if err := p.nextChunk(); err != nil {
			return nil, unexpectedEOF(err)
		}
		if p.done {
			return nil, io.EOF
		}
	}
	if p.r == p.w {
		if err := p.fillBuffer(); err != nil {
			if err == io.EOF && p.framing == closeFraming {
				p.done = true
				return nil, err
			}
			return nil, unexpectedEOF(err)
		}
	}
	n := int64(p.w - p.r)
	if p.framing != closeFraming {
		n = min(n, p.left)
		p.left -= n
		p.done = p.framing == lengthFraming && p.left == 0
	}
	piece := p.buf[p.r : p.r+int(n)]
	p.r += int(n)
	return piece, nil
}

// nextChunk reads up to the data of the next chunk, or past the end of the body.
func (p *responseReader) nextChunk() error {
	if p.inChunk {
		if line, err := p.readStrictLine(); err != nil || len(line) != 0 {
			return malformedUnless(err)
		}
	}
	line, err := p.readStrictLine()
	if err != nil {
		return err
	}
	size, _, _ := bytes.Cut(line, []byte{';'})
	n, ok := parseHex(bytes.TrimRight(size, " \t"))
	if !ok {
		return errMalformed
	}
	p.left, p.inChunk = n, true
	if n > 0 {
		return nil
	}
	for range maxHeaders { // trailers
		line, err := p.readStrictLine()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			p.done = true
			return nil
		}
		if name, value, ok := bytes.Cut(line, []byte{':'}); !ok || !validName(name) || !validValue(value) {
			return errMalformed
		}
	}
	return errMalformed
}

func malformedUnless(err error) error {
	if err != nil {
		return err
	}
	return errMalformed
}

// unexpectedEOF turns an end within a response into io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// equalLower compares b with a lower-case word, ignoring case.
func equalLower(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

func parseNumber(b []byte) (n int64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, len(b) > 0
}

func parseHex(b []byte) (n int64, ok bool) {
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		if n >= 1<<58 {
			return 0, false
		}
		n = n<<4 | int64(c)
	}
	return n, len(b) > 0
}

// validName reports whether b is a token of RFC 9110, 5.6.2.
func validName(b []byte) bool {
	for _, c := range b {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
		if !letter && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) < 0 {
			return false
		}
	}
	return len(b) > 0
}

func validValue(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
