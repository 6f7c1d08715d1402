package fetch

import (
	"encoding/base64"
	"errors"
	"io"
	"strings"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/core/media/probe"
)

// Data is what a data: URI has.
type Data struct {
	MIME  string // in small letters, without parameters; text/plain if the URI has none
	Bytes []byte
}

// framesMIME is the type of videos whose frames are JPEG files in base64, with commas
// between them.
const framesMIME = "video/jpeg"

// maxHeader is how long the part of a data: URI before its data may be.
const maxHeader = 1 << 10

// dataURI is a data: URI taken apart.
type dataURI struct {
	mime   string
	base64 bool
	data   string
}

// errData is returned for data: URIs with an error in them.
func errData(message string) error {
	return &fault.Error{Code: fault.Invalid, Message: "data: URI: " + message}
}

// split takes a data: URI apart.
func split(uri string) (dataURI, error) {
	if !isData(uri) {
		return dataURI{}, errData("it does not begin with data:")
	}
	rest := uri[len("data:"):]
	comma := strings.IndexByte(rest[:min(len(rest), maxHeader)], ',')
	if comma < 0 {
		return dataURI{}, errData("there is no comma before the data")
	}
	fields := strings.Split(strings.ToLower(rest[:comma]), ";")
	d := dataURI{mime: strings.TrimSpace(fields[0]), data: rest[comma+1:]}
	if d.mime == "" {
		d.mime = "text/plain"
	}
	d.base64 = len(fields) > 1 && strings.TrimSpace(fields[len(fields)-1]) == "base64"
	return d, nil
}

// ParseData decodes a data: URI. What would have more than max bytes is refused before
// anything is allocated. Frames of a video/jpeg URI are decoded by ParseFrames.
func ParseData(uri string, max int64) (Data, error) {
	d, err := split(uri)
	if err != nil {
		return Data{}, err
	}
	b, err := d.decode(max)
	return Data{MIME: d.mime, Bytes: b}, err
}

// ParseFrames decodes the frames of a video/jpeg URI, JPEG files in base64 with commas
// between them, of at most max bytes together and at most count.
func ParseFrames(uri string, max int64, count int) ([][]byte, error) {
	d, err := split(uri)
	if err != nil {
		return nil, err
	}
	if d.mime != framesMIME || !d.base64 {
		return nil, errData("it is none of video/jpeg in base64")
	}
	n := strings.Count(d.data, ",") + 1
	if n > count {
		return nil, errData("it has too many frames")
	}
	frames := make([][]byte, 0, n)
	for text := range strings.SplitSeq(d.data, ",") {
		b, err := dataURI{base64: true, data: text}.decode(max)
		if err != nil {
			return nil, err
		}
		max -= int64(len(b))
		frames = append(frames, b)
	}
	return frames, nil
}

// decode returns the data, of at most max bytes.
func (d dataURI) decode(max int64) ([]byte, error) {
	if !d.base64 {
		return d.unescape(max)
	}
	text := d.data
	if n := lineBreaks(text); n > 0 {
		if int64(base64.RawStdEncoding.DecodedLen(len(text)-n)) > max+2 {
			return nil, errTooLong()
		}
		text = joined(text, len(text)-n)
	}
	text = strings.TrimRight(text, "=")
	if int64(base64.RawStdEncoding.DecodedLen(len(text))) > max {
		return nil, errTooLong()
	}
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, errData("it is not in base64")
	}
	return b, nil
}

// joined returns text without its line breaks, n bytes.
func joined(text string, n int) string {
	var b strings.Builder
	b.Grow(n)
	for i := range len(text) {
		if c := text[i]; c != '\n' && c != '\r' {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// errTooLong is returned for data: URIs that are above the limit.
func errTooLong() error {
	return errData("it has more bytes than this server takes: send a smaller file")
}

// unescape returns data that is not in base64 but has escapes as URLs have.
func (d dataURI) unescape(most int64) ([]byte, error) {
	n := int64(len(d.data) - 2*strings.Count(d.data, "%"))
	if n > most {
		return nil, errTooLong()
	}
	b := make([]byte, max(n, 0)+1) // one more, so that all of it is looked at
	m, err := d.unescapeAt(0, b)
	if err == nil && int64(m) > n {
		err = errEscape() // each of them, if written as it should be, is two characters less
	}
	return b[:m], err
}

func errEscape() error { return errData("an escape is no hexadecimal number") }

// unescapeAt reads data with escapes at an offset, as io.ReaderAt does, but that the end is
// no error.
func (d dataURI) unescapeAt(off int64, b []byte) (int, error) {
	n := 0
	for i := 0; i < len(d.data) && n < len(b); i++ {
		c := d.data[i]
		if c == '%' {
			if i+2 >= len(d.data) {
				return 0, errEscape()
			}
			high, low := digit(d.data[i+1]), digit(d.data[i+2])
			if high < 0 || low < 0 {
				return 0, errEscape()
			}
			c, i = byte(high<<4|low), i+2
		}
		if off > 0 {
			off--
			continue
		}
		b[n] = c
		n++
	}
	return n, nil
}

// digit returns the value of a hexadecimal digit, -1 if c is none.
func digit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// DataSize returns how large the picture or sound in a data: URI is, of which it decodes no
// more than the header. Of frames (video/jpeg) it is the size of the first one, and how
// many there are.
func DataSize(uri string) (probe.Info, error) { return dataSize(uri, 0) }

func dataSize(uri string, maxPixels int64) (probe.Info, error) {
	d, err := split(uri)
	if err != nil {
		return probe.Info{}, err
	}
	frames := 1
	if d.mime == framesMIME {
		frames += strings.Count(d.data, ",")
		d.data, _, _ = strings.Cut(d.data, ",")
	}
	info, err := d.size(maxPixels)
	if err == nil && d.mime == framesMIME {
		info.Kind, info.Size.Frames = media.Video, frames
	}
	return info, err
}

// size reads the header of the data.
func (d dataURI) size(maxPixels int64) (probe.Info, error) {
	p := probe.Probe{MaxPixels: maxPixels}
	breaks := 0
	if d.base64 {
		breaks = lineBreaks(d.data)
	}
	read := d.reader(breaks)
	p.End(d.length(breaks))
	for {
		info, need, err := p.Result()
		if err != nil {
			return probe.Info{}, unreadable(err)
		}
		if need.IsZero() {
			return info, nil
		}
		b := make([]byte, need.Length)
		n, err := read(need.Offset, b)
		if err != nil {
			return probe.Info{}, err
		}
		p.Add(need.Offset, b[:n])
		if n < len(b) {
			p.End(need.Offset + int64(n))
		}
	}
}

// length returns how many bytes the data has, if it is written as it should be.
func (d dataURI) length(breaks int) int64 {
	if !d.base64 {
		return max(0, int64(len(d.data)-2*strings.Count(d.data, "%")))
	}
	text := strings.TrimRight(d.data, "=\r\n")
	return int64(base64.RawStdEncoding.DecodedLen(len(text) - breaks + lineBreaks(d.data[len(text):])))
}

// lineBreaks returns how many characters of text break it into lines.
func lineBreaks(text string) int {
	return strings.Count(text, "\n") + strings.Count(text, "\r")
}

// reader returns what reads the data at an offset, as io.ReaderAt does, but that the end is
// no error.
func (d dataURI) reader(breaks int) func(off int64, b []byte) (int, error) {
	switch {
	case !d.base64:
		return d.unescapeAt
	case breaks > 0:
		return d.skipTo
	}
	return d.readAt
}

// skipTo decodes from the beginning on: where a byte is in lines is not known.
func (d dataURI) skipTo(off int64, b []byte) (int, error) {
	r := base64.NewDecoder(base64.StdEncoding, strings.NewReader(d.data))
	if _, err := io.CopyN(io.Discard, r, off); err != nil && err != io.EOF {
		return 0, errData("it is not in base64")
	}
	n, err := io.ReadFull(r, b)
	if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, errData("it is not in base64")
	}
	return n, nil
}

// readAt decodes from the group of four characters that has the first byte on.
func (d dataURI) readAt(off int64, b []byte) (int, error) {
	from := min(off/3*4, int64(len(d.data)))
	skip := int(off % 3)
	to := min(from+int64(skip+len(b)+2)/3*4, int64(len(d.data)))
	text := strings.TrimRight(d.data[from:to], "=")
	buf := make([]byte, base64.RawStdEncoding.DecodedLen(len(text)))
	n, err := base64.RawStdEncoding.Decode(buf, []byte(text))
	if err != nil {
		return 0, errData("it is not in base64")
	}
	return copy(b, buf[min(skip, n):n]), nil
}

// unreadable returns what a client reads of a file that says nothing of its size.
func unreadable(err error) error {
	var e *probe.Error
	message := err.Error()
	if errors.As(err, &e) {
		message = e.Reason
		if e.Format != 0 {
			message = "as " + e.Format.String() + ": " + message
		}
	}
	return &fault.Error{Code: fault.Invalid, Message: "media file: " + message, Err: err}
}
